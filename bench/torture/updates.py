"""One client against the others: malicious updates, broken features, diverging learning rates; and no honest client is left out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.torture import Result
from fedtailor import Federation, Simulation
from fedtailor.data.client_data import Split
from fedtailor.engines import Inline, Outcome, Work
from fedtailor.engines.base import Send
from fedtailor.engines.worker import Worker
from fedtailor.learning import Payload, Protocol
from fedtailor.methods import Method, methods
from fedtailor.nets.mlp import MLP

CLIENTS, CLASSES, FEATURES, TEST = 10, 5, 8, 20
BAD = CLIENTS - 1  # the misbehaving client
DROP = 0.1  # accuracy that the others may lose, since they lack one client's samples
NET = MLP(hidden=(16,))
OPTIONS: dict[str, dict[str, Any]] = {  # short training at the server; no attack on pixels, since samples are features
    "perada": {"akt_steps": 5, "akt_batch": 16},
    "heart": {"akt_steps": 5, "akt_batch": 16, "hda": False, "views": "clean"},
}
EVERY = sorted(name for name, cls in methods.classes.items() if cls.__module__.startswith("fedtailor.methods."))

Spoil = Callable[
    [Tensor, Tensor, int], Tensor
]  # (what was sent or zeros, the reply, the number of clients) -> the spoilt reply

STOPPED: dict[str, Spoil] = {
    "times 1e6": lambda sent, up, _: sent + 1e6 * (up - sent),
    "NaN": lambda sent, up, _: torch.full_like(up, torch.nan),
    "infinite": lambda sent, up, _: torch.full_like(up, torch.inf),
    "one NaN": lambda sent, up, _: torch.where(torch.arange(up.numel()).view(up.shape) == 0, torch.nan, up),
    "times 1e30": lambda sent, up, _: sent + 1e30 * (up - sent),
}
NOT_STOPPED: dict[str, Spoil] = {  # but by a robust mean: see `takeovers`
    "as if alone (Σn/n)": lambda sent, up, times: sent + times * (up - sent),
    "times −10": lambda sent, up, _: sent - 10 * (up - sent),
}


def run(share: float = 1.0) -> list[Result]:
    some = EVERY[:: max(1, round(1 / share))]
    sending = [name for name in some if methods.classes[name].up]
    with heard():
        return [
            *(
                Result.of(f"an update that is {what} costs the others nothing", (attacked(n, spoil) for n in sending))
                for what, spoil in STOPPED.items()
            ),
            Result.of("features × 1e30 at one client cost the others nothing", map(_broken, some)),
            Result.of(
                "a rate of 1000 is told in a line or two, and the server stays finite", (_fast(n, 1e3) for n in some)
            ),
            Result.of(
                "a rate of 1e6 is told in a line or two, and the server stays finite", (_fast(n, 1e6) for n in some)
            ),
            Result.of("nobody honest is left out where one has 600 times the samples of most", map(_uneven, some)),
            Result.of("nobody honest is left out where most have nothing left to learn", map(_settled, some)),
            *(_not_promised(what, [attacked(n, spoil) for n in sending]) for what, spoil in NOT_STOPPED.items()),
        ]


def _not_promised(what: str, outcomes: Iterable[str]) -> Result:
    found = Result.of("", outcomes)
    return Result(f"not promised: an update {what} harms {len(found.failures)} of {found.tries} methods", found.tries)


class Spoiling(Inline):
    """An engine in which one client replies to each training call with a spoilt update."""

    def __init__(self, worker: Worker, spoil: Spoil) -> None:
        super().__init__(worker)
        self.spoil = spoil

    def call(self, work: Work, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        outcomes = super().call(work, round, clients, send)
        if work.trains and BAD in outcomes:
            up = self._spoilt(send(BAD), outcomes[BAD].up)
            outcomes[BAD] = dataclasses.replace(outcomes[BAD], up=up)
        return outcomes

    def _spoilt(self, sent: Payload, up: Payload) -> Payload:
        return {
            name: self.spoil(_origin(sent.get(name), tensor), tensor, CLIENTS).to(tensor.dtype)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in up.items()
        }


def _origin(sent: Tensor | None, up: Tensor) -> Tensor:
    return sent if sent is not None and sent.shape == up.shape else torch.zeros_like(up)


def attacked(name: str, spoil: Spoil, rule: str = "none") -> str:
    """Return the harm that one client's spoilt updates do to the others, with a robust mean or with the guard alone."""
    guard = Protocol().guard if rule == "none" else 0.0  # the rule has to do it alone
    federation, method, protocol = _federation(name), method_of(name), Protocol(rounds=5, lr=0.1, guard=guard)
    engine = Spoiling(Worker(federation, method, NET, None, protocol), spoil)
    return _harm(name, Simulation(federation, method, NET, engine=engine, protocol=protocol, robust=rule), rule)


def _broken(name: str) -> str:
    federation = _federation(name)
    clients = list(federation.clients)
    train, test = (dataclasses.replace(split, x=split.x * 1e30) for split in (clients[BAD].train, clients[BAD].test))
    clients[BAD] = dataclasses.replace(clients[BAD], train=train, test=test)
    return _harm(name, _simulation(dataclasses.replace(federation, clients=clients), name, lr=0.1))


def _fast(name: str, lr: float) -> str:
    with heard() as lines:
        simulation = _simulation(_federation(name), name, lr=lr).run()
    told = len([line for line in lines if "diverged" in line])
    learns = _accuracy(simulation) >= _usual(name, simulation.protocol.rounds) - DROP  # pFedFDA does, at lr=1000
    if told > 2 or not (told or learns):
        return f"{name}, lr={lr:g}: divergence was told in {told} lines"
    return "" if _is_finite(simulation) else f"{name}, lr={lr:g}: the server's state is not finite"


def _uneven(name: str) -> str:
    sizes = (3, 2000, 3, 4, 8, 3, 3, 6, 3, 20)
    return _left_out(_simulation(_federation(name, sizes), name, lr=0.005, rounds=3), name)


def _settled(name: str) -> str:
    """Check that nobody is left out when most clients have one class and soon nothing left to learn."""
    one = np.eye(CLASSES)[np.arange(CLIENTS - 3) % CLASSES]
    skews = [*one, *np.full((3, CLASSES), 1 / CLASSES)]
    lr = 0.1 if name == "pfedme" else 0.5  # pFedMe diverges where λ·lr is above 2
    return _left_out(_simulation(_federation(name, skews=skews), name, lr=lr, rounds=60, eval_every=60), name)


def _left_out(simulation: Simulation, name: str) -> str:
    left = [record["round"] for record in simulation.run().metrics if "rejected" in record]
    return f"{name}: an honest reply was left out in rounds {left}" if left else ""


def _harm(name: str, simulation: Simulation, rule: str = "none") -> str:
    """Return the harm that one client did to the others, if any."""
    who = name if rule == "none" else f"{name}, robust={rule}"
    try:
        simulation.run()
    except Exception as problem:
        return f"{who}: {type(problem).__name__}: {problem}"
    if not _is_finite(simulation):
        return f"{who}: the server's state is not finite"
    now, usual = _accuracy(simulation), _usual(name, simulation.protocol.rounds, rule)
    return f"{who}: the others' accuracy fell from {usual:.2f} to {now:.2f}" if now < usual - DROP else ""


def _is_finite(simulation: Simulation) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in simulation.server.state.values())


def _accuracy(simulation: Simulation) -> float:
    """Return the mean accuracy over all clients but the misbehaving one."""
    return float(np.mean([score.accuracy for i, score in simulation.scores.items() if i != BAD]))


@cache
def _usual(name: str, rounds: int, rule: str = "none") -> float:
    return _accuracy(_simulation(_federation(name), name, lr=0.1, rounds=rounds, robust=rule).run())


def _simulation(federation: Federation, name: str, **settings: Any) -> Simulation:
    return Simulation(federation, method_of(name), NET, engine="inline", **{"rounds": 5, **settings})


def method_of(name: str) -> Method:
    options = dict(OPTIONS.get(name, {}))
    if any(f.name == "ft_epochs" for f in dataclasses.fields(methods.classes[name])):
        options["ft_epochs"] = 2
    return methods.build(name, options)


def _federation(
    name: str, sizes: Sequence[int] = (40,) * CLIENTS, skews: Sequence[np.ndarray] | None = None
) -> Federation:
    """Make clients with skewed labels and these sizes; with some samples at the server for methods that need them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, FEATURES)) * 1.2

    def samples(count: int, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = rng.choice(CLASSES, size=count, p=shares)
        return (centres[y] + rng.normal(size=(count, FEATURES))).astype(np.float32), y

    skews = skews or [rng.dirichlet([0.5] * CLASSES) for _ in sizes]
    parts = [(*samples(n, skew), *samples(TEST, skew)) for n, skew in zip(sizes, skews, strict=True)]
    federation = Federation.from_clients(parts)
    if name not in OPTIONS:
        return federation
    x, y = samples(30, np.full(CLASSES, 1 / CLASSES))
    return dataclasses.replace(federation, server=Split(torch.from_numpy(x), torch.from_numpy(y)))


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect what is logged meanwhile, and keep it off the terminal."""
    lines: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log = logging.getLogger("fedtailor")
    before = log.handlers, log.propagate
    log.handlers, log.propagate = [Ear()], False
    try:
        yield lines
    finally:
        log.handlers, log.propagate = before
