import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from fedtailor import Federation, Protocol
from fedtailor.data.task import Task
from fedtailor.engines.worker import Worker
from fedtailor.learning.label_prior import add_label_prior, as_logits, as_outputs, evenness
from fedtailor.learning.scoring import hits
from fedtailor.methods.local import Local
from fedtailor.nets.mlp import MLP


def test_evenness_is_entropy_over_that_of_equal_shares():
    assert evenness(torch.tensor([0, 7, 0])) == 0
    assert evenness(torch.tensor([5, 5, 0])) == pytest.approx(1)
    shares = np.array([1, 2, 5]) / 8
    assert evenness(torch.tensor([1, 2, 5])) == pytest.approx(-(shares * np.log(shares)).sum() / math.log(3))


def test_outputs_of_a_binary_task_are_the_difference_of_two_logits():
    logits = torch.tensor([0.3, -1.0])
    output = as_outputs(Task((2,), 2, "binary"), logits)
    assert torch.equal(as_logits(output[None]).softmax(1)[0], logits.softmax(0))
    assert torch.equal(as_outputs(Task((2,), 2), logits), logits)


@pytest.mark.parametrize("task", ["multiclass", "binary"])
def test_the_weight_of_the_prior_is_the_best_one(task):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)).astype(np.float32), (rng.random(30) < 0.2).astype(int)
    federation = Federation.from_clients([(x, y, x[:2], y[:2])], task=task)
    client = Worker(federation, Local(), MLP(hidden=(3,)), None, Protocol(dtype="float64"))._client(0, 1, "fit")
    net = client.net()
    plain = as_logits(net.eval()(client.samples.x)).detach().numpy()
    found = add_label_prior(net, client.samples, client.task)
    prior = np.log((np.bincount(y) + 0.5) / (len(y) + 1))

    def loss(alpha: float) -> float:
        logits = plain + alpha * prior
        return (np.log(np.exp(logits).sum(1)) - logits[np.arange(30), y]).mean()

    assert found == pytest.approx(minimize_scalar(loss, bounds=(0, 1), options={"xatol": 1e-9}).x, abs=1e-5)
    shown = as_logits(net.eval()(client.samples.x)).detach()
    np.testing.assert_allclose(shown.softmax(1), torch.tensor(plain + found * prior).softmax(1), rtol=1e-12)
    assert torch.equal(hits(net, client.samples), (shown.argmax(1) == client.samples.y).float())
