from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fedtailor.methods.base import methods
from fedtailor.methods.fedavg import KEEP, FedAvg
from fedtailor.registry import option


@methods.register("fedper")
@dataclass(frozen=True)
class FedPer(FedAvg):
    """Share the body, keep the head; train both together (Arivazhagan et al., 2019).

    Only the body travels: this is FedAvg with keep=head. With keep=head,*.lora_B, one factor of low-rank adapters stays too: FedSA-LoRA.
    """

    paper = "Arivazhagan et al., Federated Learning with Personalization Layers"
    year = 2019
    family = "model splitting"
    down: ClassVar[tuple[str, ...]] = ("body",)
    up: ClassVar[tuple[str, ...]] = ("body",)
    averaged: ClassVar[tuple[str, ...]] = ("body",)
    keeps: ClassVar[tuple[str, ...]] = ("head",)

    _: KW_ONLY
    keep: tuple[str, ...] = option(("head",), KEEP)
