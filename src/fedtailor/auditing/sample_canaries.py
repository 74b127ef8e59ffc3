"""Canary samples in a repeated run: what personal models reveal about who was in the data, as a lower bound on ε of samples.

A canary is a sample with a wrong label, which a model that has not seen it does not predict. Each is put among its client's training
samples or left out, by a coin; then the run is done again as it was, and the attacker guesses from the loss of the client's model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedtailor.auditing.canary import epsilon_bound, one_run
from fedtailor.auditing.client_canaries import DELTA, FEWEST, MOST
from fedtailor.auditing.finding import Finding
from fedtailor.auditing.membership import HOLDER, PERSONAL, losses
from fedtailor.auditing.subject import Subject
from fedtailor.data.client_data import ClientData, Split
from fedtailor.data.task import CLASSES
from fedtailor.experiment.simulation import Simulation
from fedtailor.privacy.sampled_gaussian import epsilon_of
from fedtailor.randomness import numpy_stream


def sample_canaries(subject: Subject) -> Finding | None:
    """Bound ε of a sample from below; None if samples have no single class, or there are too few of them."""
    if subject.task.kind not in CLASSES or subject.task.classes < 2:
        return None
    rng = numpy_stream(subject.seed, "audit", "sample canaries")
    planted = _planted(subject, rng)
    canaries = sum(len(split) for split in planted.values())
    if canaries < FEWEST:
        return None

    def release(inside: np.ndarray) -> np.ndarray:
        owners = np.repeat(list(planted), [len(split) for split in planted.values()])
        clients = list(subject.federation.clients)
        for client, split in planted.items():
            clients[client] = _with(clients[client], split.apart(np.flatnonzero(inside[owners == client]).tolist()))
        with _again(subject, clients) as simulation:
            simulation.run()
            return np.concatenate([-_losses(subject, simulation, client, split) for client, split in planted.items()])

    correct, guesses = one_run(release, canaries, rng)
    bound, most = (epsilon_bound(c, guesses, canaries, DELTA) for c in (correct, guesses))
    details = {"canaries": float(canaries), "guesses": float(guesses), "correct": float(correct)}
    setting = f"{canaries} canary samples"
    return Finding("canary", PERSONAL, HOLDER, setting, bound, bound, most, 0.0, details, _promised(subject))


def _promised(subject: Subject) -> float | None:
    """The largest ε of a client's samples at the δ of the bound; None if personal models take steps that are not private."""
    budgets, method = subject.simulation.worker.budgets.values(), subject.method
    if not budgets or method.home or method.closing_steps:
        return None
    return max(epsilon_of(own.rate, own.noise, own.steps, DELTA) for own in budgets)


def _planted(subject: Subject, rng: np.random.Generator) -> dict[int, Split]:
    """Return some samples of each client that nobody trained on, with wrong labels."""
    each = MOST // len(subject.clients)
    planted = {}
    for client in subject.clients:
        split = subject.strangers(client)[1]
        split = split.apart(range(min(each, len(split))))
        wrong = torch.from_numpy(rng.integers(1, subject.task.classes, len(split)))
        if len(split):
            planted[client] = replace(split, y=(split.y + wrong) % subject.task.classes)
    return planted


def _with(client: ClientData, more: Split) -> ClientData:
    own = client.train.apart()
    weight = None if own.weight is None else torch.cat([own.weight, torch.ones(len(more))])
    return replace(client, train=Split(torch.cat([own.x, more.x]), torch.cat([own.y, more.y]), weight=weight))


def _again(subject: Subject, clients: list[ClientData]) -> Simulation:
    """Rebuild the run's simulation with other data of the clients, and nothing else changed."""
    first, modules = subject.simulation, subject.simulation.worker.modules
    protocol = replace(first.protocol, eval_every=first.protocol.rounds, validation=0.0, patience=0)
    federation = replace(subject.federation, clients=clients)
    net, head = modules.architecture, modules.head
    return Simulation(
        federation, first.method, net, head=head, engine="inline", protocol=protocol, privacy=first.privacy
    )


def _losses(subject: Subject, simulation: Simulation, client: int, split: Split) -> np.ndarray:
    return losses(subject, simulation.personal(client).eval(), *subject.samples(split))
