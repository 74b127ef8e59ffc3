from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from fedtailor.learning import Reply, Server
from fedtailor.methods.base import methods
from fedtailor.methods.fedavg import KEEP, FedAvg
from fedtailor.registry import option


@methods.register("lg-fedavg", "lgfedavg")
@dataclass(frozen=True)
class LGFedAvg(FedAvg):
    """Keep the body, share the head; train both together (Liang et al., 2020).

    Only the head travels; the server averages heads with equal weights.
    """

    paper = "Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations"
    year = 2020
    family = "model splitting"
    down = ("head",)
    up = ("head",)
    averaged = ("head",)
    mean_by = "clients"
    keeps = ("body",)

    _: KW_ONLY
    keep: tuple[str, ...] = option(("body",), KEEP)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "head", by="clients", part=self.shared)
