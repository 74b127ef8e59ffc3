"""The learning rate over rounds."""

from __future__ import annotations

import math

from fedtailor.learning.protocol import Protocol


def lr_factor(protocol: Protocol, round: int) -> float:
    """What the learning rates of round t, counted from 1, are multiplied with.

    A function of the round alone, so that it does not matter who takes part or where a run was resumed. The factor rises linearly over
    the rounds of the warm-up; the schedule then covers the rounds that are left.
    """
    if round <= protocol.warmup:
        return round / (protocol.warmup + 1)
    past, length = round - 1 - protocol.warmup, max(1, protocol.rounds - protocol.warmup)
    match protocol.lr_schedule:
        case "cosine":
            return (1 + math.cos(math.pi * past / length)) / 2
        case "step":
            return (0.1 if protocol.lr_decay is None else protocol.lr_decay) ** (past // protocol.lr_step)
        case "exponential":
            return (0.99 if protocol.lr_decay is None else protocol.lr_decay) ** past
    return 1.0
