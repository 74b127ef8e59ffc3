"""A call and its outcome as Flower's records: tensors by name, and plain values beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtailor.data.sites import Site
from fedtailor.engines.base import Outcome
from fedtailor.learning import Payload
from fedtailor.learning.scoring import Score


class BadLetter(ValueError):
    """What arrived is not what a well-behaved party sends."""


def write_call(plain: Mapping[str, Any], payload: Payload) -> RecordDict:
    return RecordDict({"call": ConfigRecord({"plain": json.dumps(plain)}), "payload": _arrays(payload)})


def read_call(content: RecordDict, device: str) -> tuple[dict[str, Any], Payload]:
    plain = json.loads(str(_record(content, "call", ConfigRecord)["plain"]))
    return plain, _tensors(_record(content, "payload", ArrayRecord), device)


def write_outcome(outcome: Outcome) -> RecordDict:
    numbers: dict[str, int | float] = {"samples": outcome.samples, "loss": outcome.loss}
    if outcome.score is not None:
        numbers |= {"correct": outcome.score.correct, "total": outcome.score.total, "test_loss": outcome.score.loss}
    records = {
        "payload": _arrays(outcome.up),
        "numbers": MetricRecord(numbers),  # type: ignore[arg-type]
        "logged": MetricRecord(outcome.logged),  # type: ignore[arg-type]
    }
    return RecordDict(records)  # type: ignore[arg-type]


def read_outcome(content: RecordDict, device: str) -> Outcome:
    """Read an answer, which may hold anything: a BadLetter says what is wrong with its form."""
    numbers = _record(content, "numbers", MetricRecord)
    samples, loss = _number(numbers, "samples", int), _number(numbers, "loss", float)
    score = None
    if "total" in numbers:
        correct, total = _number(numbers, "correct", int), _number(numbers, "total", int)
        score = Score(correct, total, _number(numbers, "test_loss", float))
    logged = {name: float(value) for name, value in _record(content, "logged", MetricRecord).items() if _plain(value)}
    return Outcome(_tensors(_record(content, "payload", ArrayRecord), device), samples, loss, score, logged)


def write_site(site: Site) -> RecordDict:
    return RecordDict({"site": ConfigRecord({"plain": json.dumps(site.plain())})})


def read_site(content: RecordDict) -> Site:
    try:
        return Site.read(json.loads(str(_record(content, "site", ConfigRecord)["plain"])))
    except (KeyError, TypeError, ValueError) as problem:
        raise BadLetter(str(problem)) from None


def weight(content: RecordDict) -> int:
    """Bytes of the arrays in a message, before anything of them is unpacked."""
    return sum(record.count_bytes() for record in content.array_records.values())


def _arrays(payload: Payload) -> ArrayRecord:
    return ArrayRecord({name: Array(t.detach().cpu().contiguous().numpy()) for name, t in payload.items()})


def _tensors(record: ArrayRecord, device: str) -> Payload:
    try:
        return {name: torch.from_numpy(array.numpy()).to(device) for name, array in record.items()}
    except (ValueError, TypeError, EOFError, OSError) as problem:
        raise BadLetter(f"its arrays cannot be read ({problem})") from None


def _record(content: RecordDict, name: str, kind: type) -> Any:
    record = content.get(name)
    if not isinstance(record, kind):
        raise BadLetter(f"it has no {name}")
    return record


def _number(record: MetricRecord, name: str, kind: type) -> Any:
    value = record.get(name)
    if not _plain(value) or (kind is int and not isinstance(value, int)):
        raise BadLetter(f"its {name} is {value!r}, not a number")
    return kind(value)


def _plain(value: object) -> bool:
    return isinstance(value, int | float) and not (isinstance(value, float) and math.isinf(value))
