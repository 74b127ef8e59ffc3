"""What engines are held to: the numbers of the simplest one, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedtailor import Simulation


def _numbers(simulation: Simulation) -> list[dict]:
    return [{k: v for k, v in r.items() if not k.startswith("seconds")} for r in simulation.metrics]


@pytest.fixture
def numbers() -> Callable[[Simulation], list[dict]]:
    """All metrics but the seconds."""
    return _numbers


@pytest.fixture
def assert_same_bits() -> Callable[[Simulation, Simulation], None]:
    """Metrics, ledger, private states and personal models of two runs."""

    def check(one: Simulation, many: Simulation) -> None:
        assert _numbers(one) == _numbers(many)
        assert one.ledger.totals == many.ledger.totals
        for client in one.everyone:
            for name, tensor in one.state(client).items():
                assert torch.equal(tensor, many.state(client)[name])
            for a, b in zip(one.personal(client).parameters(), many.personal(client).parameters(), strict=True):
                assert torch.equal(a, b)

    return check
