"""The protocol of an experiment: what is the same for every method under comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from fedtailor.errors import FedTailorError
from fedtailor.learning.metrics import CONFUSION, metric
from fedtailor.registry import option


@dataclass(frozen=True)
class Protocol:
    """Rounds, participation, local training and evaluation, apart from the method."""

    rounds: int = option(20, "communication rounds", at_least=1, at_most=10**6)
    join: float | tuple[float, float] = option(
        1.0, "share of clients in each round, or [low, high] to draw the share each round"
    )
    dropout: float = option(0.0, "chance that a picked client drops out before it replies", at_least=0.0, at_most=1.0)
    epochs: int = option(1, "local epochs of each round", at_least=0, at_most=10**6)
    batch: int = option(10, "batch size of local training", at_least=1, at_most=10**6)
    lr: float = option(0.005, "learning rate of local SGD", above=0.0, at_most=1e6)
    augment: Literal["none", "flip-crop"] = option(
        "none", "random views of training images: mirrored with chance ½ and shifted by up to 4 pixels"
    )
    seed: int = option(
        0, "names every random stream of the run: same seed, same numbers", at_least=0, at_most=2**63 - 1
    )
    device: str = option("cpu", "where tensors live: cpu, cuda, cuda:1, mps")
    dtype: Literal["float32", "float64"] = option("float32", "floating-point type of parameters and inputs")
    threads: int = option(1, "threads of each worker: equal threads give equal bits", at_least=1, at_most=1024)
    compile: Literal["auto", "on", "off"] = option(
        "auto",
        "compile SGD steps: in long runs of small dense nets, wherever possible, or never (equal to about 1e-6, not to the bit)",
    )
    guard: float = option(
        100.0,
        "leave out a reply that moved so many times as far as the median of its round; 0 leaves out only what is not finite",
        at_least=0.0,
    )
    eval_every: int = option(1, "evaluate every so many rounds (the last one always)", at_least=1, at_most=10**6)
    eval_point: Literal["method", "after_sync", "after_train"] = option(
        "method",
        "what is evaluated: the model after the server's answer, after local training, or as the method's paper does",
    )
    metrics: tuple[str | Callable[..., float], ...] = option(
        (),
        "further metrics that are reported, such as [auroc, log_loss] (none: accuracy, F1 of multi-label data, RMSE of a regression)",
    )
    select_by: str = option("", "the metric by which rounds are selected and methods ranked (none: the task's first)")
    validation: float = option(
        0.0, "share of each client's training samples held out to select the best round on", at_least=0.0, at_most=0.9
    )
    patience: int = option(
        0, "stop after so many rounds without a better one on the validation samples (0: never)", at_least=0
    )
    class_weights: Literal["none", "balanced"] | tuple[float, ...] = option(
        "none",
        "weights of classes in the loss: none, balanced by each client's own training labels, or one number per class",
    )
    bn_buffers: Literal["method", "local", "average"] = option(
        "method", "BatchNorm statistics: kept by each client, averaged with the body, or as the method's paper does"
    )

    def __post_init__(self) -> None:
        named = {metric(asked).name for asked in self.metrics if asked != CONFUSION}
        if self.select_by and self.select_by not in named:
            metric(self.select_by)
        if self.patience and not self.validation:
            raise FedTailorError(
                f"patience = {self.patience} needs samples to judge rounds by: hold some out, such as validation=0.2."
            )
        low, high = self.join_range
        if not 0 < low <= high <= 1:
            raise FedTailorError(
                f"join = {self.join!r} is not allowed: give a share above 0 and at most 1, such as 0.3, or a range such as [0.1, 1.0]."
            )
        try:
            torch.ones(1, device=self.device).item()  # some devices hold no values at all, such as meta
        except Exception:  # each device that is not there fails in its own way
            raise FedTailorError(
                f"device = {self.device!r} is not available on this machine; device=cpu always is."
            ) from None

    @property
    def join_range(self) -> tuple[float, float]:
        return self.join if isinstance(self.join, tuple) else (self.join, self.join)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32
