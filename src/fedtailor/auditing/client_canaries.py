"""Canary clients in the run's own server: what the means that it sends reveal about who took part.

A canary's reply changes a single entry of the weights, as far as it may. An attacker who knows all other replies subtracts them, so
the canaries are put into rounds in which nobody else moves: that is the strongest attack, and it needs no training. Fewer rounds than
the run's are enough for a bound that holds, as more rounds can only tell more.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch

from fedtailor.auditing.canary import epsilon_bound, one_run
from fedtailor.auditing.finding import Finding
from fedtailor.auditing.subject import Subject
from fedtailor.learning import Reply, Server
from fedtailor.privacy.client_dp import ClientDP
from fedtailor.randomness import numpy_stream

MOST = 400  # canaries; more could show a larger ε
FEWEST = 40
NUMBERS = 5e7  # that all replies of a round may have together
WORK = 4e9  # numbers of all rounds together
DELTA = 1e-5  # δ of the bound
FAR = 1e3  # how far a canary moves its entry: beyond any clip


def client_canaries(subject: Subject) -> Finding | None:
    """Bound ε of a client from below, from the means of the entries that the server averages.

    Return None if it averages none, or the net is too large. Where ε is promised for some entries, only their means are looked at.
    """
    server, dp = copy.copy(subject.simulation.server), subject.dp
    sums = subject.simulation.sums
    summed = () if sums is None else sums.entries.names  # whose means are those of the plain sum
    server.means = {name: mean for name, mean in server.means.items() if name not in summed}
    names = dp.names if dp is not None else subject.method.averaged
    entries = [name for name in names if name in server.state and name in subject.method.up]
    if not entries:
        return None
    width, room = sum(len(server.state[name]) for name in entries), len(server.state[entries[0]])
    canaries = min(MOST, int(NUMBERS / width), room)
    if canaries < FEWEST:
        return None
    rounds = max(1, min(subject.protocol.rounds, int(WORK / (canaries * width))))
    rng = numpy_stream(subject.seed, "audit", "canaries")
    places = rng.choice(room, canaries, replace=False)

    def release(inside: np.ndarray) -> np.ndarray:
        scores = np.zeros(canaries)
        for round in range(1, rounds + 1):
            picked = rng.random(canaries) < subject.protocol.join_range[1]
            scores += _released(server, dp, entries, places, inside & picked, round)
        return scores

    correct, guesses = one_run(release, canaries, rng)
    bound, most = (epsilon_bound(c, guesses, canaries, DELTA) for c in (correct, guesses))
    details = {"canaries": canaries, "guesses": guesses, "correct": correct, "rounds": rounds}
    setting = f"{canaries} canary clients"
    promised = None if dp is None else promised_epsilon(dp, subject.protocol.rounds)
    return Finding("canary", " and ".join(entries), "all clients", setting, bound, bound, most, 0.0, details, promised)


def promised_epsilon(dp: ClientDP, rounds: int) -> float | None:
    """The ε of so many rounds at the δ of the bound, which is another than the run's; None without noise."""
    return replace(dp.amount.accountant, delta=DELTA).epsilon(rounds) if dp.sum_noise else None


def _released(
    server: Server, dp: ClientDP | None, entries: list[str], places: np.ndarray, inside: np.ndarray, round: int
) -> np.ndarray:
    """Return how far the server's state moves at each canary's coordinate when some canaries take part in a round."""
    twin, first = copy.copy(server), server.state[entries[0]]
    twin.state = dict(server.state)
    twin.begin(round)
    sent = {name: server.state[name] for name in entries}
    replies = []
    for number in np.flatnonzero(inside).tolist():
        moved = first.clone()
        moved[places[number]] += FAR
        replies.append(Reply(number, 1, {**sent, entries[0]: moved}))
    if dp is not None:
        own = copy.copy(dp)
        twin.means = server.means | dict.fromkeys(dp.names, own.mean)
        replies, _ = own.take(twin, replies, {reply.client: sent for reply in replies})
    elif not replies:
        return np.zeros(len(places))
    for name in entries:
        twin.average(replies, name, "clients")
    return (twin.state[entries[0]] - first)[torch.from_numpy(places)].double().cpu().numpy()
