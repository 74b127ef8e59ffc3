"""The measurements of an audit, the quick ones first, each with a name by which a later call knows that it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fedtailor.auditing.client_canaries import client_canaries
from fedtailor.auditing.finding import Finding
from fedtailor.auditing.inversion import BATCHES, Reconstruction, gradient_inversion
from fedtailor.auditing.labels import label_inference
from fedtailor.auditing.membership import personal_membership, reply_membership, shared_membership
from fedtailor.auditing.sample_canaries import sample_canaries
from fedtailor.auditing.subject import Subject
from fedtailor.auditing.views import View
from fedtailor.data.task import CLASSES


@dataclass(frozen=True)
class Measured:
    """What a measurement found; nothing if it does not apply."""

    finding: Finding | None = None
    reconstructions: list[Reconstruction] = field(default_factory=list)


@dataclass(frozen=True)
class Unit:
    """One measurement. `measure` is given the time (of time.monotonic) by which it should come to an end."""

    name: str
    measure: Callable[[float], Measured]
    seconds: float = 0.0  # that it needs at least, as far as that is known


def units(subject: Subject) -> list[Unit]:
    """Return all measurements of a run. Clients that protect single samples send nothing more that could be attacked: it is done again."""
    canaries = Unit("lower bound on ε from canary clients", _found(client_canaries, subject))
    again = sum(record["seconds_training"] for record in subject.simulation.metrics)
    samples = Unit("lower bound on ε from canary samples, the run done again", _found(sample_canaries, subject), again)
    if subject.simulation.worker.budgets:
        return [samples]
    return [*_labels(subject), *_membership(subject), canaries, *_inversion(subject), samples]


def _labels(subject: Subject) -> Iterator[Unit]:
    if subject.task.kind in CLASSES:
        for view, entry in _seen(subject):
            yield Unit(f"labels from {entry}, seen by {view.who}", _found(label_inference, subject, view, entry))


def _membership(subject: Subject) -> Iterator[Unit]:
    yield Unit("membership from personal models", _found(personal_membership, subject))
    for entry in subject.method.down:
        yield Unit(f"membership from {entry} as sent to clients", _found(shared_membership, subject, entry))
    for view, entry in _seen(subject):
        yield Unit(f"membership from {entry}, seen by {view.who}", _found(reply_membership, subject, view, entry))


def _inversion(subject: Subject) -> Iterator[Unit]:
    for batch in BATCHES:
        step = f"one step on {batch}" if batch else "a whole round"
        for view, entry in _seen(subject):
            yield Unit(f"inversion of {step} from {entry}, seen by {view.who}", _inverted(subject, view, entry, batch))


def _inverted(subject: Subject, view: View, entry: str, batch: int) -> Callable[[float], Measured]:
    def measure(until: float) -> Measured:
        found = gradient_inversion(subject, view, entry, batch, until)
        return Measured() if found is None else Measured(*found)

    return measure


def _seen(subject: Subject) -> Iterator[tuple[View, str]]:
    return ((view, entry) for view in subject.views for entry in view.entries)


def _found(attack: Callable[..., Finding | None], *arguments: object) -> Callable[[float], Measured]:
    return lambda until: Measured(attack(*arguments))
