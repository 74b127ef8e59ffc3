"""The learning rate over rounds."""

from __future__ import annotations

import math

from fedtailor.learning.protocol import Protocol


def lr_factor(protocol: Protocol, round: int) -> float:
    """Return the factor of all learning rates in a round, counted from 1.

    It depends on the round alone, not on who takes part or where a run was resumed. It rises linearly during the warm-up; the schedule
    covers the remaining rounds.
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
