"""What another party wrote: whatever is wrong with it is a BadMessage, and a message is weighed as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.messages import (
    BadMessage,
    in_a_line,
    read_call,
    read_outcome,
    read_site,
    weight,
    write_outcome,
)


def outcome(**records) -> RecordDict:
    content = write_outcome(Outcome({"body": torch.ones(4)}, 5, 0.5, logged={"mu": 1.0}))
    for name, record in records.items():
        content[name] = record
    return content


def numbers(**values) -> MetricRecord:
    record = MetricRecord({"samples": 5, "loss": 0.5})
    record.__dict__["_data"].update(values)  # also what Flower's records would not take
    return record


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (outcome(numbers=numbers(loss=1e300)), r"loss is 1e\+300"),
        (outcome(numbers=numbers(loss=10**400)), "loss is|cannot be read"),
        (outcome(numbers=numbers(loss=[0.5] * 100_000)), "loss is list, not a number"),
        (outcome(numbers=numbers(samples=True)), "samples is bool"),
        (outcome(logged=MetricRecord({"mu": [1.0]})), "mu is list"),
        (outcome(logged=MetricRecord({f"n{k}": 1.0 for k in range(201)})), "logged has 201 entries"),
        (outcome(logged=MetricRecord({"x" * 101: 1.0})), "an impossible name"),
        (outcome(logged=MetricRecord({"a\x1b[2J": 1.0})), "an impossible name"),
        (outcome(payload=ArrayRecord({"body": Array("float32", (4,), "pickle", b"")})), "not NumPy's, but 'pickle'"),
        (
            outcome(payload=ArrayRecord({"body": Array("float32", (4,), "numpy.ndarray", b"PK\x03\x04")})),
            "'body' cannot be",
        ),
        (outcome(payload=ArrayRecord({"body": Array(np.array(["text"]))})), "'body' cannot be read"),
    ],
)
def test_a_letter_that_lies_is_refused_in_a_line(content, said):
    with pytest.raises(BadMessage, match=said) as refusal:
        read_outcome(content, "cpu")
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 500


def test_numbers_that_diverged_are_not_passed_on_but_do_not_spoil_the_rest():
    got = read_outcome(outcome(logged=MetricRecord({"mu": float("inf"), "nu": 0.5, "xi": float("nan")})), "cpu")
    assert list(got.logged) == ["nu", "xi"]


@pytest.mark.parametrize("text", ["[" * 100_000, "", "{", "1" * 10_000, '{"name": 5}', "null"])
def test_a_description_or_call_that_is_no_such_thing_is_refused(text):
    with pytest.raises(BadMessage, match="it cannot be read"):
        read_site(RecordDict({"site": ConfigRecord({"plain": text})}))
    if text not in ('{"name": 5}', "null"):
        with pytest.raises(BadMessage, match="the call cannot be read"):
            read_call(RecordDict({"call": ConfigRecord({"plain": text}), "payload": ArrayRecord()}), "cpu")


def test_a_description_is_weighed_before_it_is_read():
    with pytest.raises(BadMessage, match=r"weighs 5,000,0\d\d bytes"):
        read_site(RecordDict({"site": ConfigRecord({"plain": " " * 5_000_000})}))


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"logged": MetricRecord({"x" * 10**6: 1.0})}),
        RecordDict({"logged": MetricRecord({"mu": [1.0] * 125_000})}),
        RecordDict({"more": ConfigRecord({"text": "x" * 10**6})}),
        RecordDict({"more": ConfigRecord({"texts": ["xy"] * 500_000, "none": []})}),
        RecordDict({"more": ConfigRecord({"bytes": b"x" * 10**6})}),
        RecordDict({"x" * 10**6: MetricRecord()}),
        RecordDict({"payload": ArrayRecord({"body": Array(np.zeros(125_000))})}),
        RecordDict({"payload": ArrayRecord({"body": Array("x" * 10**6, (), "", b"")})}),
    ],
)
def test_a_message_weighs_all_that_is_in_it(content):
    assert 10**6 <= weight(content) < 1.01 * 10**6


def test_words_of_another_party_stay_in_their_line():
    assert in_a_line("a\nb\x1b[2Jc") == "a b [2Jc"
    assert len(in_a_line("x" * 10**6)) < 310
