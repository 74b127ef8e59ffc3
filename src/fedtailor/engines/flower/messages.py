"""A call and its outcome as Flower's records: tensors by name, and plain values beside them.

The sender of what is read here may have written anything; a BadMessage tells what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtailor.data.sites import SiteDescription
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.npy import read_npy
from fedtailor.engines.work import Work
from fedtailor.learning import Payload
from fedtailor.learning.scoring import Score

MANY = 200  # entries per record: tensors, or numbers that a client logs in one round
LONGEST = 100  # characters of an entry's name
INFINITE = (float("inf"), float("-inf"))  # a client may log these when it diverges; they are dropped
LARGEST = 1e30  # no honest number is larger, and sums of such numbers stay finite
METRIC, VALIDATION = "metric.", "validation."  # before the names of a score's numbers
DESCRIPTION = 4_000_000  # bytes of a site's description, which holds names of columns, categories and labels


class BadMessage(ValueError):
    """A received message that no well-behaved sender would write."""


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn any exception raised while a received message is read into a BadMessage with a text fit for a log."""
    try:
        yield
    except BadMessage:
        raise
    except Exception as problem:  # MemoryError and RecursionError included
        raise BadMessage(f"{what} cannot be read ({type(problem).__name__}: {in_a_line(problem)})") from None


def in_a_line(text: object) -> str:
    """Make received text fit for a log: short, and without control characters."""
    plain = "".join(c if c.isprintable() else " " for c in str(text)[:300])
    return plain.strip() + ("…" if len(str(text)) > 300 else "")


def write_call(plain: Mapping[str, Any], payload: Payload) -> RecordDict:
    return RecordDict({"call": ConfigRecord({"plain": json.dumps(plain)}), "payload": _arrays(payload)})


def read_call(content: RecordDict, device: str) -> tuple[dict[str, Any], Payload]:
    with refusing("the call"):
        plain = json.loads(_record(content, "call", ConfigRecord)["plain"])
        return {**plain, "work": Work(plain["work"])}, _tensors(_record(content, "payload", ArrayRecord), device)


def write_outcome(outcome: Outcome) -> RecordDict:
    numbers: dict[str, int | float] = {"samples": outcome.samples, "loss": outcome.loss}
    if outcome.score is not None:
        numbers |= _score_numbers(outcome.score)
        if outcome.score.validation is not None:
            numbers |= {f"{VALIDATION}{name}": n for name, n in _score_numbers(outcome.score.validation).items()}
    records = {
        "payload": _arrays(outcome.up),
        "numbers": MetricRecord(numbers),  # type: ignore[arg-type]
        "logged": MetricRecord(outcome.logged),  # type: ignore[arg-type]
    }
    return RecordDict(records)  # type: ignore[arg-type]


def read_outcome(content: RecordDict, device: str) -> Outcome:
    with refusing("it"):
        numbers = _record(content, "numbers", MetricRecord)
        samples, loss = _number(numbers, "samples", int), _number(numbers, "loss", float)
        score = _read_score(numbers, "")
        if score is not None:
            score = replace(score, validation=_read_score(numbers, VALIDATION))
        logged = _record(content, "logged", MetricRecord)
        finite = {name: _number(logged, name, float) for name, value in logged.items() if value not in INFINITE}
        return Outcome(_tensors(_record(content, "payload", ArrayRecord), device), samples, loss, score, finite)


def _score_numbers(score: Score) -> dict[str, int | float]:
    """A score as numbers; a model's outputs stay at the site."""
    metrics = {f"{METRIC}{name}": value for name, value in score.values.items()}
    return {"correct": score.correct, "total": score.total, "test_loss": score.loss, **metrics}


def _read_score(numbers: MetricRecord, before: str) -> Score | None:
    if f"{before}total" not in numbers:
        return None
    correct, total = (_number(numbers, f"{before}{name}", int) for name in ("correct", "total"))
    prefix = f"{before}{METRIC}"
    values = {key.removeprefix(prefix): _number(numbers, key, float) for key in numbers if key.startswith(prefix)}
    return Score(correct, total, _number(numbers, f"{before}test_loss", float), values)


def write_site(site: SiteDescription) -> RecordDict:
    return RecordDict({"site": ConfigRecord({"plain": json.dumps(site.plain())})})


def read_site(content: RecordDict) -> SiteDescription:
    with refusing("it"):
        check_weight(content, DESCRIPTION)
        return SiteDescription.read(json.loads(_record(content, "site", ConfigRecord)["plain"]))


def check_weight(content: RecordDict, limit: int, option: str = "") -> None:
    """Refuse a message that is too large before any of it is unpacked."""
    size = weight(content)
    if size > limit:
        raise BadMessage(f"it weighs {size:,} bytes, and {limit:,} are allowed{option}")


def weight(content: RecordDict) -> int:
    """Return the bytes of a whole message: arrays, texts, numbers, and all names."""
    return sum(
        len(name) + sum(len(entry) + _size(value) for entry, value in record.items())
        for name, record in content.items()
    )


def _size(value: object) -> int:
    match value:
        case Array():
            return len(value.data) + len(value.dtype) + len(value.stype) + 8 * len(value.shape)
        case str() | bytes():
            return len(value)
        case list():
            return sum(map(_size, value))
        case _:
            return 8


def _arrays(payload: Payload) -> ArrayRecord:
    return ArrayRecord({name: Array(t.detach().cpu().contiguous().numpy()) for name, t in payload.items()})


def _tensors(record: ArrayRecord, device: str) -> Payload:
    payload: Payload = {}
    for name, array in record.items():
        if array.stype != "numpy.ndarray":
            raise BadMessage(f"its array '{name}' is not NumPy's, but {in_a_line(array.stype)!r}")
        with refusing(f"its array '{name}'"):
            payload[name] = torch.from_numpy(read_npy(array.data)).to(device)
    return payload


def _record(content: RecordDict, name: str, kind: type) -> Any:
    record: Any = content.get(name)
    present = isinstance(record, kind)
    if not present:
        raise BadMessage(f"it has no {name}")
    if len(record) > MANY:
        raise BadMessage(f"its {name} has {len(record):,} entries, and {MANY} are allowed")
    odd = [entry for entry in record if not 0 < len(entry) <= LONGEST or not entry.isprintable()]
    if odd:
        raise BadMessage(f"its {name} has an entry of an impossible name: {in_a_line(odd[0])!r}")
    return record


def _number(record: MetricRecord, name: str, kind: type) -> Any:
    """Read a number of the record; a float may be NaN, as the loss of a client that did not train is."""
    value: Any = record.get(name)
    numeric = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not numeric:
        raise BadMessage(
            f"its {name} is {value if isinstance(value, float | None) else type(value).__name__}, not a number"
        )
    if abs(value) > LARGEST:
        raise BadMessage(f"its {name} is {value:g}, and numbers up to {LARGEST:g} are allowed")
    return kind(value)
