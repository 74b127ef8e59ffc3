"""Tasks: what labels say of them, their losses by hand, and data that does not fit one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fedtailor import Federation
from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
BITS = RNG.integers(0, 2, size=(40, 4))
NUMBERS = RNG.normal(size=40)


@pytest.mark.parametrize(
    ("y", "kind", "outputs"),
    [
        (np.arange(40) % 3, "multiclass", 3),
        (np.arange(40) % 2, "multiclass", 2),
        (np.arange(40) % 2 == 0, "binary", 1),
        (BITS, "multilabel", 4),
        (BITS.astype(float), "multilabel", 4),
        (torch.from_numpy(NUMBERS), "regression", 1),
        (np.stack([NUMBERS, -NUMBERS], axis=1), "regression", 2),
    ],
)
def test_labels_tell_the_task(y, kind, outputs):
    dealt = Federation.from_arrays(X, y, clients=4)
    given = Federation.from_clients([(X[:20], y[:20]), (X[20:], y[20:])])
    for federation in (dealt, given):
        assert (federation.task.kind, federation.task.outputs) == (kind, outputs)
        assert repr(federation)


def test_the_task_can_be_said():
    y = np.arange(40) % 2
    assert Federation.from_arrays(X, y, clients=2, task="binary").task.outputs == 1
    assert Federation.from_arrays(X, y, clients=2, task="regression").clients[0].train.y.shape[1] == 1
    with pytest.raises(FedTailorError, match="task = 'ranking' is not allowed"):
        Federation.from_arrays(X, y, task="ranking")
    with pytest.raises(FedTailorError, match="a binary task has 0 and 1"):
        Federation.from_arrays(X, y + 1, task="binary")


def test_a_column_of_fractions_is_a_regression_and_other_columns_name_classes():
    frame = pd.DataFrame({"who": ["a", "b"] * 20, "v": X[:, 0], "price": NUMBERS, "grade": np.arange(40.0) % 3})
    price = Federation.from_table(frame, client="who", label="price", features=["v"])
    assert price.kind == "regression"
    expected = np.sort(NUMBERS[::2].astype(np.float32))
    held = torch.cat([price.clients[0].train.y, price.clients[0].test.y])[:, 0]
    assert np.array_equal(np.sort(held.numpy()), expected)
    grade = Federation.from_table(frame, client="who", label="grade", features=["v"])
    assert (grade.kind, grade.labels) == ("multiclass", ("0", "1", "2"))
    said = Federation.from_table(frame, client="who", label="grade", features=["v"], task="regression")
    assert said.clients[0].train.y.max() == 2


@pytest.mark.parametrize("y", [BITS, NUMBERS])
def test_samples_without_a_class_are_not_dealt_by_class(y):
    with pytest.raises(FedTailorError, match=r"'dirichlet' deals samples by their class.*partition=iid"):
        Federation.from_arrays(X, y, partition="dirichlet")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([(X, NUMBERS), (X, np.where(NUMBERS > 1, np.nan, NUMBERS))], "Targets must be finite"),
        ([(X, BITS), (X, BITS[:, :3])], "4 labels per sample"),
        ([(X, BITS), (X, 2 * BITS)], "other than 0 and 1"),
        ([(X, NUMBERS), (X, np.array(["a"] * 40))], "texts at some clients and numbers at others"),
    ],
)
def test_labels_that_do_not_fit_are_named(parts, said):
    with pytest.raises(FedTailorError, match=said):
        Federation.from_clients(parts, test_share=0.0)


def test_losses_by_hand():
    out, y = torch.tensor([[0.3], [-1.2], [2.0]]).double(), torch.tensor([1, 0, 0])
    p = 1 / (1 + torch.exp(-out[:, 0]))
    each = -torch.where(y == 1, p, 1 - p).log()
    task = Task((2,), 2, kind="binary")
    torch.testing.assert_close(task.loss(out, y), each.mean())
    torch.testing.assert_close(task.summed_loss(out, y), each.sum())
    w = torch.tensor([3.0, 0.5]).double()
    torch.testing.assert_close(task.loss(out, y, w), (w[y] * each).sum() / w[y].sum())
    both = Task((2,), 2, kind="multiclass").loss(torch.cat([torch.zeros_like(out), out], dim=1), y, w)
    torch.testing.assert_close(task.loss(out, y, w), both)  # one logit, or two of which one is zero
    wide, many = torch.randn(5, 3).double(), torch.randint(2, (5, 3)).double()
    q = wide.sigmoid()
    bce = -(many * q.log() + (1 - many) * (1 - q).log())
    torch.testing.assert_close(Task((2,), 3, kind="multilabel").summed_loss(wide, many), bce.mean(1).sum())
    torch.testing.assert_close(Task((2,), 3, kind="regression").loss(wide, many), (wide - many).square().mean())


def test_balanced_weights_give_every_class_the_same_say():
    y = torch.tensor([0, 0, 0, 2])
    weights = Task((2,), 4).class_weights(y)
    assert weights.tolist() == pytest.approx([4 / 6, 1.0, 2.0, 1.0])
    assert weights[y].mean() == pytest.approx(1.0)
    bits = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert Task((2,), 2, kind="multilabel").class_weights(bits).tolist() == [3.0, 1.0]


@pytest.mark.parametrize("split", ["whole", "mapped"])
def test_a_validation_part_is_drawn_from_the_training_samples_and_changes_nothing_else(federation, split):
    if split == "mapped":
        x, y = RNG.normal(size=(48, 5)).astype(np.float32), np.arange(48) % 3
        federation = Federation.from_clients([(x[i : i + 12], y[i : i + 12]) for i in range(0, 48, 12)], test_share=0.0)
    held = federation.with_validation(0.25, seed=3)
    for before, after in zip(federation.clients, held.clients, strict=True):
        n = len(before.train)
        assert (len(after.train), len(after.validation)) == (n - n // 4, n // 4)
        rows = torch.cat([after.train.apart().x, after.validation.apart().x])
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, before.train.x.tolist()))
        assert after.test is before.test
    again = federation.with_validation(0.25, seed=3)
    assert torch.equal(again.clients[0].validation.y, held.clients[0].validation.y)
    alone = Federation(**{**vars(federation), "clients": federation.clients[2:3]}).with_validation(0.25, 3, first=2)
    assert torch.equal(alone.clients[0].validation.apart().x, held.clients[2].validation.apart().x)
    assert federation.with_validation(0.0, seed=3) is federation
