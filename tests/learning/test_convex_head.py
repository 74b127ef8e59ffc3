"""The best linear head on features: its gradient is zero, its limits are the given head and plain logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from fedtailor import FedTailorError, Simulation
from fedtailor.learning.convex_head import convex_head
from fedtailor.learning.sample_weights import weighted
from fedtailor.nets.mlp import MLP

CLASSES, WIDTH = 3, 4


def drawn(n: int, seed: int = 0, noise: float = 2.0):
    """Features of three overlapping classes."""
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(0, CLASSES, n))
    centres = torch.from_numpy(np.random.default_rng(99).normal(size=(CLASSES, WIDTH)))
    return centres[y] + noise * torch.from_numpy(rng.normal(size=(n, WIDTH))), y


def some_head(seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=CLASSES * (WIDTH + 1)))


def logits(head, z):
    return z @ head[: CLASSES * WIDTH].view(CLASSES, WIDTH).T + head[CLASSES * WIDTH :]


@pytest.mark.parametrize("strength", [0.0, 0.01, 1.0, 30.0])
def test_the_gradient_at_the_solution_is_zero(strength):
    (z, y), given = drawn(80), some_head()
    head, chosen = convex_head(z, y, given, [strength])
    assert chosen == strength
    w = head.clone().requires_grad_()
    objective = F.cross_entropy(logits(w, z), y) + strength / 2 * (w - given).square().sum()
    assert torch.autograd.grad(objective, w)[0].abs().max() < 1e-6
    assert objective < F.cross_entropy(logits(given, z), y)


def test_an_endless_pull_returns_the_given_head():
    (z, y), given = drawn(80), some_head()
    head, _ = convex_head(z, y, given, [1e12])
    torch.testing.assert_close(head, given, rtol=0, atol=1e-9)


def test_without_a_pull_it_is_logistic_regression_from_wherever_it_starts():
    z, y = drawn(200)
    reference = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000).fit(z.numpy(), y.numpy())
    for seed in (1, 2):
        head, _ = convex_head(z, y, some_head(seed), [0.0])
        mine = torch.softmax(logits(head, z), 1).numpy()
        np.testing.assert_allclose(mine, reference.predict_proba(z.numpy()), rtol=0, atol=1e-4)


def planted(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, labels drawn by a head, and that head."""
    truth, generator = 2 * some_head(5), torch.Generator().manual_seed(seed)
    z = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)
    return z, torch.multinomial(logits(truth, z).softmax(1), 1, generator=generator)[:, 0], truth


def test_cross_validation_picks_the_pull_that_the_data_asks_for():
    right, wrong = [], []
    for seed in range(8):
        folds = {"generator": torch.Generator().manual_seed(seed)}
        z, y, truth = planted(15, seed)
        right.append(convex_head(z, y, truth, [0.001, 100.0], **folds)[1])
        z, y, truth = planted(150, seed)
        wrong.append(convex_head(z, y, -truth, [0.001, 100.0], **folds)[1])
    assert right.count(100.0) >= 6  # few samples seldom do better than the head that drew them
    assert wrong.count(0.001) == 8


def test_the_head_is_fitted_with_the_chosen_pull_on_all_samples():
    z, y, truth = planted(30, 0)
    head, strength = convex_head(z, y, truth, [0.01, 0.1, 1.0], generator=torch.Generator().manual_seed(0))
    assert torch.equal(head, convex_head(z, y, truth, [strength])[0])


def test_the_generator_decides_the_folds():
    (z, y), given = drawn(30), some_head()
    runs = [convex_head(z, y, given, [0.01, 1.0], generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(runs[0][0], runs[1][0])
    before = torch.get_rng_state()
    convex_head(z, y, given, [0.5])
    assert torch.equal(before, torch.get_rng_state())  # one strength draws nothing


def test_few_samples_or_none_are_no_obstacle():
    (z, y), given, generator = drawn(1), some_head(), torch.Generator().manual_seed(0)
    assert convex_head(z, y, given, [0.1, 5.0], generator=generator)[1] == 5.0
    head, strength = convex_head(z[:0], y[:0], given, [0.1, 5.0], generator=generator)
    assert torch.equal(head, given)
    assert strength == 5.0


def test_it_fits_the_head_of_a_net(federation):
    simulation = Simulation(federation, "fedavg", MLP(hidden=(6,)), rounds=1).run()
    net = simulation.server.net(model=simulation.server.state["model"])
    z, y = simulation.features(2, "train")
    before = F.cross_entropy(net.classify(z), y)
    head, _ = convex_head(z, y, net.head.vector, [0.1])
    assert head.dtype == torch.float32
    net.head.vector = head
    assert F.cross_entropy(net.classify(z), y) < before


def test_what_it_cannot_fit_is_refused():
    (z, y), given = drawn(9), some_head()
    with pytest.raises(FedTailorError, match=r"linear head with a bias.*4 features.*14 entries"):
        convex_head(z, y, given[:-1], [1.0])
    with pytest.raises(FedTailorError, match="one output per class"):
        convex_head(z, y + 1, given, [1.0])
    with pytest.raises(FedTailorError, match="sample weights"):
        convex_head(z, weighted(y, torch.ones(9)), given, [1.0])
    for strengths in ([], [-1.0], [0.1, 1.0]):  # the last without a generator
        with pytest.raises(ValueError, match=r"strengths of at least 0.*generator"):
            convex_head(z, y, given, strengths)
