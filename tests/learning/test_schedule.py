"""Schedules against torch.optim.lr_scheduler."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from fedtailor import Protocol
from fedtailor.learning.schedule import lr_factor

ROUNDS = 12


def reference(schedule: str, warmup: int, decay: float, step: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, dtype=torch.float64)], lr=1.0)
    main: lr_scheduler.LRScheduler = {
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, factor=1.0),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, T_max=ROUNDS - warmup),
        "step": lambda: lr_scheduler.StepLR(optimizer, step, decay),
        "exponential": lambda: lr_scheduler.ExponentialLR(optimizer, decay),
    }[schedule]()
    if warmup:
        rising = lr_scheduler.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        main = lr_scheduler.SequentialLR(optimizer, [rising, main], milestones=[warmup])
    factors = []
    for _ in range(ROUNDS):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        main.step()
    return factors


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize(
    ("schedule", "decay", "step"),
    [("constant", None, 10), ("cosine", None, 10), ("step", 0.3, 4), ("step", None, 2), ("exponential", 0.8, 10)],
)
def test_factors_are_those_of_torch(schedule, decay, step, warmup):
    protocol = Protocol(rounds=ROUNDS, lr_schedule=schedule, lr_decay=decay, lr_step=step, warmup=warmup)
    factors = [lr_factor(protocol, round) for round in range(1, ROUNDS + 1)]
    assert factors == pytest.approx(reference(schedule, warmup, decay or 0.1, step), abs=1e-12)


def test_the_last_round_of_a_cosine_still_trains_and_a_long_warmup_is_all_there_is():
    assert 0 < lr_factor(Protocol(rounds=10, lr_schedule="cosine"), 10) < 0.03
    assert [lr_factor(Protocol(rounds=2, warmup=5), round) for round in (1, 2)] == pytest.approx([1 / 6, 2 / 6])


def test_the_default_is_exactly_one():
    assert [lr_factor(Protocol(rounds=5), round) for round in range(1, 6)] == [1.0] * 5
