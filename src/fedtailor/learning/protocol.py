"""The protocol of an experiment: what is the same for every method under comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from fedtailor.errors import FedTailorError
from fedtailor.learning.metrics import CONFUSION, metric
from fedtailor.registry import among, check, differing, log_between, option


@dataclass(frozen=True)
class Protocol:
    """Rounds, participation, local training and evaluation, apart from the method."""

    rounds: int = option(20, "communication rounds", at_least=1, at_most=10**6)
    join: float | tuple[float, float] = option(
        1.0, "share of clients in each round, or [low, high] to draw the share each round"
    )
    dropout: float = option(0.0, "chance that a picked client drops out before it replies", at_least=0.0, at_most=1.0)
    epochs: int = option(1, "local epochs of each round", at_least=0, at_most=10**6)
    steps: int = option(
        0,
        "optimizer steps of each round in place of epochs, over reshuffled batches (0: by epochs)",
        at_least=0,
        at_most=10**9,
    )
    batch: int = option(10, "batch size of local training", at_least=1, at_most=10**6)
    lr: float = option(0.05, "learning rate of local training", above=0.0, at_most=1e6, search=log_between(0.002, 0.5))
    optimizer: Literal["sgd", "adam", "adamw"] = option(
        "sgd", "optimizer of local training, as torch.optim has it", search=among("sgd", "adam")
    )
    momentum: float = option(0.0, "momentum of optimizer=sgd", at_least=0.0, at_most=1.0)
    weight_decay: float = option(0.0, "weight decay of local training", at_least=0.0)
    clip_norm: float = option(
        0.0, "longest gradient of a step; longer ones are scaled down to it (0: off)", at_least=0.0
    )
    optimizer_state: Literal["fresh", "kept"] = option(
        "fresh",
        "momentum and other optimizer state of a client: fresh each time training starts, or kept at the client between rounds",
    )
    lr_schedule: Literal["constant", "cosine", "step", "exponential"] = option(
        "constant", "how the learning rate falls over rounds; closing steps and newcomers use lr itself"
    )
    warmup: int = option(0, "rounds in which the learning rate rises to lr before the schedule starts", at_least=0)
    lr_decay: float | None = option(
        None,
        "factor of lr_schedule=step, every lr_step rounds (none: 0.1), and of exponential, every round (none: 0.99)",
        above=0.0,
        at_most=1.0,
    )
    lr_step: int = option(10, "rounds between two decays of lr_schedule=step", at_least=1)
    server_optimizer: Literal["none", "momentum", "adam", "yogi", "adagrad"] = option(
        "none",
        "optimizer of the server, for which a mean of clients is a step: FedAvgM, FedAdam, FedYogi, FedAdagrad",
        search=among("none", "momentum"),
    )
    server_lr: float | None = option(
        None, "learning rate of the server optimizer (none: 1 for momentum, 0.01 for the others)", above=0.0
    )
    server_momentum: float = option(0.9, "momentum (β₁) of the server optimizer", at_least=0.0, at_most=1.0)
    server_beta2: float = option(0.99, "β₂ of server_optimizer=adam and yogi", at_least=0.0, at_most=1.0)
    server_tau: float = option(1e-3, "τ of server_optimizer=adam, yogi and adagrad: how adaptive they are", above=0.0)
    augment: Literal["none", "flip-crop"] = option(
        "none", "random views of training images: mirrored with chance ½ and shifted by up to 4 pixels"
    )
    seed: int = option(
        0, "names every random stream of the run: same seed, same numbers", at_least=0, at_most=2**63 - 1
    )
    device: str = option("cpu", "where tensors live: cpu, cuda, cuda:1, mps")
    dtype: Literal["float32", "float64"] = option("float32", "floating-point type of parameters and inputs")
    threads: int = option(1, "threads of each worker: equal threads give equal bits", at_least=1, at_most=1024)
    fast: Literal["auto", "off"] = option(
        "auto", "faster layers and steps where they pay (equal up to rounding); off is plain PyTorch throughout"
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
    eval_closing: Literal["last", "each"] = option("last", "evaluate after the last closing step, or after each")
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
        check(self)
        named = {metric(asked).name for asked in self.metrics if asked != CONFUSION}
        if self.select_by and self.select_by not in named:
            metric(self.select_by)
        if self.patience and not self.validation:
            raise FedTailorError(
                f"patience = {self.patience} needs samples to judge rounds by: hold some out, such as validation=0.2."
            )
        if self.steps and self.epochs != 1:
            raise FedTailorError(
                f"epochs = {self.epochs} and steps = {self.steps} both say how long a round trains. Leave one out."
            )
        low, high = self.join_range
        if not 0 < low <= high <= 1:
            raise FedTailorError(
                f"join = {self.join!r} is not allowed: give a share above 0 and at most 1, such as 0.3, or a range such as [0.1, 1.0]."
            )
        if self.momentum and self.optimizer != "sgd":
            raise FedTailorError(
                f"momentum = {self.momentum} belongs to optimizer = 'sgd'; {self.optimizer} has a momentum of its own. Leave one out."
            )
        if self.lr_decay is not None and self.lr_schedule not in ("step", "exponential"):
            raise FedTailorError(
                f"lr_decay = {self.lr_decay} belongs to lr_schedule = 'step' or 'exponential', not to {self.lr_schedule!r}."
            )
        if self.server_lr is not None and self.server_optimizer == "none":
            raise FedTailorError(
                f"server_lr = {self.server_lr} needs a server_optimizer: momentum, adam, yogi or adagrad."
            )
        try:
            torch.ones(1, device=self.device).item()  # some devices hold no values at all, such as meta
        except Exception:  # each device that is not there fails in its own way
            raise FedTailorError(
                f"device = {self.device!r} is not available on this machine; device=cpu always is."
            ) from None

    def __repr__(self) -> str:
        return differing(self)

    @property
    def join_range(self) -> tuple[float, float]:
        return self.join if isinstance(self.join, tuple) else (self.join, self.join)

    @property
    def plain_sgd(self) -> bool:
        """Whether local training is w ← w − lr·gradient and nothing else."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.clip_norm)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32
