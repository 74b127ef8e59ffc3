"""The options of a run as keyword arguments, spelled out for editors and type checkers. A test keeps them equal to `Settings`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from fedtailor.registry import options

F = TypeVar("F", bound=Callable[..., Any])


class ProtocolOptions(TypedDict, total=False):
    """The options of `Protocol`, where their meanings and bounds are."""

    rounds: int
    join: float | tuple[float, float]
    dropout: float
    epochs: int
    steps: int
    batch: int
    lr: float
    optimizer: Literal["sgd", "adam", "adamw"]
    momentum: float
    weight_decay: float
    clip_norm: float
    optimizer_state: Literal["fresh", "kept"]
    lr_schedule: Literal["constant", "cosine", "step", "exponential"]
    warmup: int
    lr_decay: float | None
    lr_step: int
    server_optimizer: Literal["none", "momentum", "adam", "yogi", "adagrad"]
    server_lr: float | None
    server_momentum: float
    server_beta2: float
    server_tau: float
    augment: Literal["none", "flip-crop"]
    seed: int
    device: str
    dtype: Literal["float32", "float64"]
    threads: int
    fast: Literal["auto", "off"]
    guard: float
    eval_every: int
    eval_point: Literal["method", "after_sync", "after_train"]
    eval_closing: Literal["last", "each"]
    metrics: tuple[str | Callable[..., float], ...]
    select_by: str
    validation: float
    patience: int
    class_weights: Literal["none", "balanced"] | tuple[float, ...]
    bn_buffers: Literal["method", "local", "average"]


class RunOptions(ProtocolOptions, total=False):
    """The options of `Settings`: the protocol's, and how the run itself is done."""

    clients: int
    partition_seed: int | None
    engine: Literal["auto", "inline", "stacked", "processes", "ray"]
    workers: int
    ray_address: str
    checkpoint_every: int
    save_models: bool


def keywords_of(cls: type) -> Callable[[F], F]:
    """Show the options of `cls` in a function's signature in place of its **keywords, so that notebooks complete them."""

    def listed(function: F) -> F:
        own, hints = inspect.signature(function), get_type_hints(cls)
        fixed = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        known = {p.name for p in fixed}
        more = [
            inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=hints[o.name])
            for o in options(cls)
            if o.name not in known
        ]
        function.__signature__ = own.replace(parameters=[*fixed, *more])  # type: ignore[attr-defined]
        return function

    return listed
