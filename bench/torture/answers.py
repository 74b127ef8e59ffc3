"""Randomly mutated replies of sites: each is used, or refused with the site's name, and none ends the server's run.

Three sites are asked, and the last reply is mutated: the bytes that Flower carries, the records in them, or the site's
description of itself. The other two must get through as if nothing had happened, within bounded time and memory.
"""

from __future__ import annotations

import itertools
import logging
import math
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

import torch
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from bench.torture import Result
from bench.torture.mutations import description, recorded, wired
from fedtailor.data.description import Column, Description
from fedtailor.data.sites import SiteDescription, federation_of
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.checks import ReplyChecks, dtype_and_shape, sane
from fedtailor.engines.flower.engine import Flower
from fedtailor.engines.flower.messages import read_call, write_outcome, write_site
from fedtailor.engines.flower.transport import Transport
from fedtailor.engines.work import Work
from fedtailor.errors import FedTailorError
from fedtailor.learning.scoring import Score

TRIES = {"wire": 1200, "records": 1500, "descriptions": 800}
LIMIT = 300_000  # bytes of an answer
MEMORY = 3 << 29  # bytes by which unpacking and reading an answer may make the process grow
SECONDS = 20.0  # for one try, on a busy machine
LIAR = 2
NAMES = [f"site {i} (clinic-{i})" for i in range(3)]
IMAGES = Description((3, 8, 8), 4, dtype="uint8", labels=("a", "b", "c", "d"), mean=(0.5,) * 3, std=(0.25,) * 3)
STAGE, AGE = Column("stage", "category", ("I", "II", "III")), Column("age", "number", mean=60.0, std=10.0)
TABLE = Description((6,), 2, labels=("alive", "dead"), label="outcome", columns=(STAGE, AGE))
SITES = [SiteDescription(i, f"clinic-{i}", 30, 10, replace(IMAGES, mean=(0.5, 0.5, 0.4 + i / 10))) for i in range(3)]
CLINICS = [replace(s, data=replace(TABLE, columns=(STAGE, replace(AGE, mean=60.0 + i)))) for i, s in enumerate(SITES)]
SENT = {"model": torch.linspace(-1, 1, 500)}
WORKS = (Work.HELLO, Work.FIT, Work.FIT_AND_SCORE, Work.SCORE)
Spoil = Callable[[Message], Callable[[], Message]]


def run(share: float) -> list[Result]:
    tries = {what: range(max(1, round(count * share))) for what, count in TRIES.items()}
    kept = "is used or refused by name, and costs no other site its answer"
    return [
        Result.of(f"an answer with mutated bytes on the wire {kept}", (asked(Random(k), wired) for k in tries["wire"])),
        Result.of(f"an answer with mutated records {kept}", (asked(Random(k), recorded) for k in tries["records"])),
        Result.of(
            "a mutated description is refused by name, or leaves the others' scaling and bounds as they are",
            (described(Random(k)) for k in tries["descriptions"]),
        ),
    ]


# -- one try -------------------------------------------------------------------------------------------------------------------------


class Letterbox:
    """A Flower grid of three nodes within this process. It unpacks answers when they are pulled, as Flower's own does."""

    def __init__(self, spoil: Spoil, spoilt: Work, sites: Sequence[SiteDescription]) -> None:
        """Make the grid; `spoil` mutates the last node's reply to one kind of work."""
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.spoil = spoil
        self.spoilt = spoilt
        self.sites = sites
        self.ids = itertools.count(1)
        self.answers: dict[str, Callable[[], Message]] = {}

    def get_node_ids(self) -> list[int]:
        return [100, 101, 102]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        found = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = id = f"m{next(self.ids)}"
            self.answers[id] = self._answer(message)
            found.append(id)
        return found

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self.answers.pop(id)() for id in ids if id in self.answers]

    def _answer(self, call: Message) -> Callable[[], Message]:
        client = call.metadata.dst_node_id - 100
        work = read_call(call.content, "cpu")[0]["work"]
        reply = Message(write_site(self.sites[client]) if work is Work.DESCRIBE else honest(work), reply_to=call)
        return self.spoil(reply) if client == LIAR and work == self.spoilt else lambda: reply


def honest(work: Work) -> RecordDict:
    score = Score(7, 10, 0.5) if work.scores else None
    if work in (Work.HELLO, Work.SCORE):
        return write_outcome(
            Outcome({} if work is Work.SCORE else {"labels": torch.ones(4, dtype=torch.float64)}, score=score)
        )
    up = {"model": SENT["model"] * 2, "means": torch.ones(3, 8), "classes": torch.arange(3), "known": torch.ones(1) > 0}
    return write_outcome(Outcome(up, 30, 0.7, score, {"mu": 0.5, "steps": 12.0}))


def asked(rng: Random, mutate: Callable[[Random, Message], Callable[[], Message]]) -> str:
    """Ask three sites for the same work; return what went wrong, if anything."""
    work = rng.choice(WORKS)
    checks = ReplyChecks(("model", "means", "classes", "known", "labels"), dict.fromkeys(range(3), (30, 10)), few=4)
    engine = Flower(post(lambda reply: mutate(rng, reply), work), checks, NAMES, oldest=lambda: 0)

    def call(said: list[str]) -> str:
        outcomes = engine.call(work, 1, range(3), lambda i: SENT if work is not Work.HELLO else {})
        if any(i not in outcomes for i in range(3) if i != LIAR):
            return f"{work}: the answer of an honest site is lost: {said}"
        if LIAR in outcomes:
            return f"{work}: {fault}" if (fault := unfit(work, outcomes[LIAR])) else ""
        return named(NAMES[LIAR], said)

    return bounded(call)


def described(rng: Random) -> str:
    """Ask three sites for their descriptions, and make a federation of them."""
    sites = rng.choice((SITES, CLINICS, CLINICS))
    reply = description(rng, sites[LIAR].plain())
    office = post(lambda honest: lambda: renewed(honest, reply), Work.DESCRIBE, sites)

    def meet(said: list[str]) -> str:
        office.meet()
        known = list(office.sites.values())
        if [site.client for site in known[:2]] != [0, 1]:
            return f"an honest site is lost: {said}"
        if len(known) < 3:
            return named("node 102", said)
        try:
            federation = federation_of(known)
        except FedTailorError as problem:
            return "" if len(str(problem)) < 2000 else "a complaint without end"
        bound = federation.classes <= 100_000 and federation.vocabulary <= 10**7 and max(federation.sizes) <= 10**9
        return "" if as_agreed(federation.description) and bound else f"a federation of {known[LIAR].data}"[:300]

    return bounded(meet)


def as_agreed(data: Description) -> bool:
    """Return whether the two honest sites' samples mean what they did, scaled within the range of their own constants."""
    if not data.columns:
        return all(0.4 <= m <= 0.6 for m in data.mean) and set(data.std) == {0.25} and data.shape == IMAGES.shape
    stage, age = data.columns
    return stage == STAGE and 60.0 <= age.mean <= 61.0 and age.std == 10.0 and data.shape == (6 + age.indicator,)


def post(spoil: Spoil, spoilt: Work, sites: Sequence[SiteDescription] = SITES) -> Transport:
    return Transport(
        Letterbox(spoil, spoilt, sites), {100 + i: i for i in range(3)}, {}, timeout=0.1, limit=LIMIT, device="cpu"
    )


def unfit(work: Work, outcome: Outcome) -> str:
    """Return why a reply should have been refused, if so."""
    for name, tensor in outcome.up.items():
        if name in SENT and work is not Work.HELLO and dtype_and_shape(tensor) != dtype_and_shape(SENT[name]):
            return f"'{name}' of another dtype or shape passed"
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"values that are not finite passed in '{name}'"
    if work.trains and not 0 < outcome.samples <= 30:
        return f"{outcome.samples} samples passed"
    if outcome.score is not None and not sane(outcome.score, 10):
        return f"{outcome.score} passed"
    long = [name for name in outcome.logged if len(name) > 200]
    wild = [v for v in (outcome.loss, *outcome.logged.values()) if math.isinf(v) or abs(v) > 1e300]
    return f"{len(outcome.logged)} logged numbers passed" if long or wild or len(outcome.logged) > 200 else ""


def named(name: str, said: list[str]) -> str:
    """Check that one line says what was wrong at which site, and that no refusal was due to memory running out."""
    if not any(name in line for line in said):
        return f"left out without a word of {name}: {said}"
    if any("MemoryError" in line for line in said):
        return f"memory ran out: {said}"
    return (
        "a line without end, or one that plays with the terminal"
        if any(len(s) > 1500 or not s.isprintable() for s in said)
        else ""
    )


def bounded(attempt: Callable[[list[str]], str]) -> str:
    """Return what an attempt, given the logged lines, reports; an exception or too much time or memory also counts as a failure."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("fedtailor")
    kept, log.propagate = log.propagate, False
    log.addHandler(handler)
    with open("/proc/self/statm") as sizes:
        now = int(sizes.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(
        resource.RLIMIT_AS, (now + 4 * MEMORY, limits[1])
    )  # exceeding the bounds must not bring down the machine
    began = time.monotonic()
    try:
        fault = attempt(said)
    except Exception as problem:
        fault = f"{type(problem).__name__} escapes: {str(problem)[:200]}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        log.removeHandler(handler)
        log.propagate = kept
    took = time.monotonic() - began, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    return fault or (
        "" if took[0] < SECONDS and took[1] < MEMORY else f"one answer took {took[0]:.0f} s and {took[1]:,} bytes"
    )


def renewed(reply: Message, content: RecordDict) -> Message:
    reply.__dict__["_content"] = content
    return reply
