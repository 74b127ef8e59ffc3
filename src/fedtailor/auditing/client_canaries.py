"""Canary clients in the run's own server: what the means that it sends tell of who took part.

A canary's reply changes a single entry of the weights, as far as it may. An attacker who knows all other replies subtracts them, so
the canaries are put into rounds in which nobody else moves: that is the strongest attack, and it needs no training. Fewer rounds than
the run's are enough for a bound that holds, as more rounds can only tell more.
"""

from __future__ import annotations

import copy

import numpy as np
import torch

from fedtailor.auditing.canary import epsilon_bound, one_run
from fedtailor.auditing.finding import Finding
from fedtailor.auditing.subject import Subject
from fedtailor.learning import Reply, Server
from fedtailor.randomness import numpy_stream

MOST = 400  # canaries; more could show a larger ε
FEWEST = 40
NUMBERS = 5e7  # that all replies of a round may have together
WORK = 4e9  # numbers of all rounds together
DELTA = 1e-5  # δ of the bound
FAR = 1e3  # how far a canary moves its entry: beyond any clip


def client_canaries(subject: Subject) -> Finding | None:
    """Bound ε from below, from the means of the entries that the server averages; None if it averages none, or the net is too large."""
    server = subject.simulation.server
    entries = [name for name in subject.method.averaged if name in server.state and name in subject.method.up]
    if not entries:
        return None
    width = sum(len(server.state[name]) for name in entries)
    canaries = min(MOST, int(NUMBERS / width), len(server.state[entries[0]]))
    if canaries < FEWEST:
        return None
    rounds = max(1, min(subject.protocol.rounds, int(WORK / (canaries * width))))
    rng = numpy_stream(subject.seed, "audit", "canaries")
    places = rng.choice(len(server.state[entries[0]]), canaries, replace=False)

    def release(inside: np.ndarray) -> np.ndarray:
        scores = np.zeros(canaries)
        for round in range(1, rounds + 1):
            picked = rng.random(canaries) < subject.protocol.join_range[0]
            scores += _released(server, entries, places, inside & picked, round)
        return scores

    correct, guesses = one_run(release, canaries, rng)
    bound, most = (epsilon_bound(c, guesses, canaries, DELTA) for c in (correct, guesses))
    details = {"canaries": canaries, "guesses": guesses, "correct": correct, "rounds": rounds}
    setting = f"{canaries} canary clients"
    return Finding("canary", " and ".join(entries), "all clients", setting, bound, bound, most, 0.0, details)


def _released(server: Server, entries: list[str], places: np.ndarray, inside: np.ndarray, round: int) -> np.ndarray:
    """How far the server's answer to the canaries that take part in a round moves each canary's place."""
    twin = copy.copy(server)
    twin.state = dict(server.state)
    twin.begin(round)
    first = server.state[entries[0]]
    replies = []
    for number in np.flatnonzero(inside):
        moved = first.clone()
        moved[places[number]] += FAR
        replies.append(Reply(int(number), 1, {**{name: server.state[name] for name in entries}, entries[0]: moved}))
    if not replies:
        return np.zeros(len(places))
    for name in entries:
        twin.average(replies, name)
    return (twin.state[entries[0]] - first)[torch.from_numpy(places)].double().cpu().numpy()
