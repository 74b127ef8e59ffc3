"""Distillation: divergences against plain formulas, the loop against Adam written out, and which student is taken."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from fedtailor import Federation, Protocol
from fedtailor.learning import Participant
from fedtailor.learning.distill import Lesson, distil, kl, mean_output, outputs_of, symmetric_kl
from fedtailor.learning.modules import Modules
from fedtailor.learning.samples import Samples
from fedtailor.learning.scoring import score
from fedtailor.nets.mlp import MLP


def logits(*shape: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_kl_is_the_textbook_sum():
    p, q = softmax(logits(7, 4).numpy()), softmax(logits(7, 4, seed=1).numpy())
    expected = (p * np.log(p / q)).sum(1).mean()
    assert kl(logits(7, 4), logits(7, 4, seed=1)).item() == pytest.approx(expected, abs=1e-12)


def test_symmetric_kl_is_zero_for_equal_answers_symmetric_and_positive():
    a, b = logits(6, 5), logits(6, 5, seed=1)
    assert symmetric_kl(a, a + 3.0).item() == pytest.approx(0.0, abs=1e-12)  # a shift of logits changes no answer
    assert symmetric_kl(a, b).item() == pytest.approx(symmetric_kl(b, a).item(), abs=1e-12)
    assert symmetric_kl(a, b).item() == pytest.approx((kl(a, b) + kl(b, a)).item())
    assert symmetric_kl(a, b) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_give_finite_values_and_gradients(dtype):
    a = torch.tensor([[100.0, -100.0, 0.0]], dtype=dtype)
    b = torch.tensor([[-100.0, 100.0, 0.0]], dtype=dtype, requires_grad=True)
    value = symmetric_kl(a, b)
    assert value.item() == pytest.approx(400.0)
    (gradient,) = torch.autograd.grad(value, b)
    assert gradient.isfinite().all()


def test_gradients_of_both_ways_against_finite_differences():
    a, b = logits(3, 4).requires_grad_(), logits(3, 4, seed=1).requires_grad_()
    assert gradcheck(kl, (a, b))
    assert gradcheck(symmetric_kl, (a, b))
    assert gradcheck(lambda q: symmetric_kl(logits(5, 3, 4), q), (b,))  # many teachers


def test_a_mean_output_of_logits_or_of_probabilities():
    z = logits(3, 6, 4)
    torch.testing.assert_close(mean_output(z), z.sum(0) / 3)
    expected = softmax(z.numpy()).mean(0)
    np.testing.assert_allclose(mean_output(z, "probs").exp().numpy(), expected, atol=1e-12)


def test_many_teachers_count_alike():
    teachers, student = logits(3, 6, 4), logits(6, 4, seed=1)
    each = [symmetric_kl(t, student) for t in teachers]
    torch.testing.assert_close(symmetric_kl(teachers, student), sum(each) / 3)


def proxy_party(federation: Federation, **settings) -> Participant:
    protocol = Protocol(**{"dtype": "float64", **settings})
    modules = Modules(MLP(hidden=(6,)), None, federation.task, protocol, carry_buffers=False)
    samples = Samples(federation.clients[2].train, federation, protocol, ready=True)
    return Participant(modules, samples, protocol, {}, ("server", 1))


def taught(party: Participant, teacher: torch.Tensor, **options) -> tuple[torch.Tensor, dict[str, float]]:
    """The student after distillation from a net with these weights, and what was logged."""
    net = party.net("teacher", model=teacher)

    def lessons(rows):
        x = party.samples.take(rows)
        return [Lesson(x, outputs_of(net, x))]

    student = party.net("student")
    distil(party, student, lessons, kl, **{"steps": 6, "batch": 1000, "lr": 0.05, "accept": "last", **options})
    return student.all.vector, party.logged


def adam_by_hand(party: Participant, teacher: torch.Tensor, steps: int, lr: float) -> list[torch.Tensor]:
    """The student after each full-batch step."""
    x = party.samples.x
    target = party.net("teacher", model=teacher)(x).detach().softmax(1)
    weights = party.net("reference").all.vector
    m, v, path = torch.zeros_like(weights), torch.zeros_like(weights), []
    for k in range(steps):
        net = party.net("reference", model=weights)
        value = (target * (target.log() - net(x).log_softmax(1))).sum(1).mean()
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(value, net.all.parameters)])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = lr * 0.5 * (1 + math.cos(math.pi * k / steps))
        weights = weights - rate * (m / (1 - 0.9 ** (k + 1))) / ((v / (1 - 0.999 ** (k + 1))).sqrt() + 1e-8)
        path.append(weights)
    return path


def teacher_of(party: Participant) -> torch.Tensor:
    net = party.net("teacher")
    party.train(net.all, epochs=60, lr=0.3)
    return net.all.vector


def test_the_loop_is_adam_with_a_cosine(federation):
    party = proxy_party(federation)
    teacher = teacher_of(party)
    found, _ = taught(party, teacher)
    torch.testing.assert_close(found, adam_by_hand(party, teacher, 6, 0.05)[-1], rtol=0, atol=1e-9)


def test_asking_once_and_asking_every_step_teach_the_same(federation):
    vectors = []
    for refresh in (False, True):
        party = proxy_party(federation)
        vectors.append(taught(party, teacher_of(party), batch=7, steps=5, refresh=refresh)[0])
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-12)


def test_lessons_are_asked_for_the_samples_that_will_be_seen_only(federation):
    party = proxy_party(federation)
    asked = []

    def lessons(rows):
        asked.append(rows)
        return [Lesson(party.samples.take(rows), torch.zeros(len(rows), 3, dtype=torch.float64))]

    distil(party, party.net(), lessons, kl, steps=2, batch=3, lr=0.1)
    assert len(asked) == 1
    assert len(asked[0]) == len(set(asked[0].tolist())) == 6


def accuracies(party: Participant, path: list[torch.Tensor]) -> list[float]:
    return [score(party.net("judge", model=w), party.samples).accuracy for w in path]


def test_which_student_is_taken(federation):
    party = proxy_party(federation)
    teacher = teacher_of(party)
    start = party.net("judge").all.vector
    path = adam_by_hand(party, teacher, 6, 0.05)
    marks = accuracies(party, path)
    best = max(marks)
    assert best > accuracies(party, [start])[0]
    for accept in ("always", "val_better"):
        found, logged = taught(proxy_party(federation), teacher, accept=accept)
        torch.testing.assert_close(found, path[marks.index(best)], rtol=0, atol=1e-9)  # the first of the best
        assert logged["distillation_accuracy_after"] == best
        assert logged["distillation_accuracy_before"] == accuracies(party, [start])[0]


def test_a_student_that_gets_worse_is_taken_always_but_not_when_it_must_be_better(federation):
    party = proxy_party(federation)
    good, bad = teacher_of(party), party.net("x").all.vector * 0
    results = {}
    for accept in ("always", "val_better", "last"):
        party = proxy_party(federation)
        student = party.net("student", model=good)
        net = party.net("teacher", model=bad)
        lessons = lambda rows, net=net, party=party: [  # noqa: E731
            Lesson(party.samples.take(rows), outputs_of(net, party.samples.take(rows)))
        ]
        distil(party, student, lessons, kl, steps=5, batch=1000, lr=0.5, accept=accept)
        results[accept] = student.all.vector
    assert torch.equal(results["val_better"], good)
    assert not torch.equal(results["always"], good)
    assert not torch.equal(results["last"], results["always"])


def test_steps_that_are_not_finite_are_left_out_and_told(federation, caplog):
    party = proxy_party(federation)
    student = party.net("student")
    before = student.all.vector
    calls = iter(range(10))

    def divergence(p, q):
        return kl(p, q) * (float("nan") if next(calls) != 2 else 1.0)

    x = party.samples.x
    lesson = Lesson(x, torch.zeros(len(x), 3, dtype=torch.float64))
    distil(party, student, lambda rows: [lesson.at(rows)], divergence, steps=4, batch=1000, lr=0.1, accept="last")
    assert "3 of 4 steps of distillation were left out" in caplog.text
    assert student.all.vector.isfinite().all()
    assert not torch.equal(student.all.vector, before)


def test_no_steps_leave_the_student_as_it_is(federation):
    for accept in ("always", "val_better", "last"):
        party = proxy_party(federation)
        before = party.net("student").all.vector
        assert torch.equal(taught(party, before + 1, steps=0, accept=accept)[0], before)
