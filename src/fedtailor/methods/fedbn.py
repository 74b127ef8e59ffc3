from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from fedtailor.methods.base import methods
from fedtailor.methods.fedavg import KEEP, FedAvg
from fedtailor.registry import option


@methods.register("fedbn")
@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg whose clients keep their normalisation layers, statistics included (Li et al., 2021).

    Of a net without such layers everything is shared: it is FedAvg then, and says so.
    """

    paper = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization"
    year = 2021
    family = "model splitting"
    keeps = ("norm",)

    _: KW_ONLY
    keep: tuple[str, ...] = option(("norm",), KEEP)
