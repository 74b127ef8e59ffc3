"""A claim small enough to run: on skewed digits, each client's own head is ahead of one model for all."""

from __future__ import annotations

import pytest

from fedtailor.papers.claims.claim import Arm, ArmPair, Claim, ClaimProtocol

WORDS = (
    "data=digits data.fraction=0.3 partition=pathological partition.classes_per_client=2 clients=5 net=mlp net.hidden=[8] "
    "rounds=4 batch=16 lr=0.1"
)
OWN_HEADS, ONE_MODEL = Arm("FedPer", ("method=fedper",)), Arm("FedAvg", ("method=fedavg",))


def claim_of(*comparisons: ArmPair) -> Claim:
    return Claim(
        paper="field",
        key="own-heads",
        says="Own heads are ahead of one model.",
        source="Table 0",
        protocol=ClaimProtocol("tiny", "digits", tuple(WORDS.split())),
        comparisons=comparisons,
        full=("pgfedsplit/table2", "FashionMNIST, Dir 0.1"),
    )


@pytest.fixture(scope="session")
def claim() -> Claim:
    return claim_of(ArmPair(OWN_HEADS, ONE_MODEL, published=14.2))


@pytest.fixture(scope="session")
def opposite() -> Claim:
    return claim_of(ArmPair(ONE_MODEL, OWN_HEADS, published=14.2))


@pytest.fixture(scope="session")
def ran(claim, tmp_path_factory):
    """The folder with the finished runs of the claim."""
    from fedtailor.papers.grid import carry_on

    out = tmp_path_factory.mktemp("claims")
    for job in claim.jobs(out):
        carry_on(job)
    return out
