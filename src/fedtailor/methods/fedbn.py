from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from fedtailor.methods.base import methods
from fedtailor.methods.fedavg import KEEP, FedAvg
from fedtailor.registry import option


@methods.register("fedbn")
@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg in which clients keep their normalisation layers, running statistics included (Li et al., 2021).

    The rest of the model travels. With a net without such layers it is FedAvg, and warns about that.
    """

    paper = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization"
    year = 2021
    family = "model splitting"
    keeps = ("norm",)

    _: KW_ONLY
    keep: tuple[str, ...] = option(("norm",), KEEP)
