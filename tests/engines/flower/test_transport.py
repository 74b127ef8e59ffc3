"""Asking nodes that answer late, wrongly or not at all: nobody else pays for it."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from fedtailor.data.description import Description
from fedtailor.data.sites import SiteDescription
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower import transport as module
from fedtailor.engines.flower.messages import read_call, write_outcome, write_site
from fedtailor.engines.flower.transport import Transport
from fedtailor.engines.work import Work

OWNERS = {100 + client: client for client in range(3)}
SITE = SiteDescription(0, "north", 30, 10, Description((5,), 2, labels=("no", "yes")))


class Nodes:
    """Three nodes; `behave` gives a node's answer to a work, raises as Flower does while unpacking, or None for silence."""

    def __init__(self, behave: Callable[[int, str, Message], Message | None]) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.behave = behave
        self.ids = itertools.count(1)
        self.calls: dict[str, tuple[int, str, Message]] = {}
        self.sent: list[tuple[int, str]] = []

    def get_node_ids(self) -> list[int]:
        return [100, 101, 102]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        found = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = id = f"m{next(self.ids)}"
            client = message.metadata.dst_node_id - 100
            work = read_call(message.content, "cpu")[0]["work"]
            self.sent.append((client, work))
            content = (
                write_site(replace(SITE, client=client, name=f"s{client}")) if work == "describe" else answer_to(client)
            )
            self.calls[id] = client, work, Message(content, reply_to=message)
            found.append(id)
        return found

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        found = []
        for id in [id for id in ids if id in self.calls]:
            client, work, reply = self.calls[id]
            answer = self.behave(client, work, reply)
            if answer is not None:
                del self.calls[id]
                found.append(answer)
        return found


def answer_to(client: int):
    return write_outcome(Outcome({"body": torch.full((3,), float(client))}, 5, 0.1))


def ask(post: Transport, work: Work = Work.FIT, round: int = 1):
    return post.ask(work, round, {}, {i: {} for i in range(3)})


def test_an_answer_that_flower_cannot_unpack_costs_no_other_its_answer():
    def behave(client, work, reply):
        if client == 1 and work == "fit":
            raise RecursionError("deep\x1b[2J")
        return reply

    answers, troubles = ask(Transport(Nodes(behave), OWNERS, {}, timeout=5.0, limit=10**6, device="cpu"))
    assert {i: a.up["body"][0].item() for i, a in answers.items()} == {0: 0.0, 2: 2.0}
    assert troubles == {1: "an answer that cannot be unpacked (RecursionError: deep [2J)"}


def test_an_answer_counts_for_the_message_it_was_fetched_for_only():
    def behave(client, work, reply):
        if client == 1 and work == "fit":
            reply.metadata.__dict__["_reply_to_message_id"] = "m6"  # what site 2 was asked
        return reply

    answers, troubles = ask(Transport(Nodes(behave), OWNERS, {}, timeout=0.1, limit=10**6, device="cpu"))
    assert {i: a.up["body"][0].item() for i, a in answers.items()} == {0: 0.0, 2: 2.0}
    assert list(troubles) == [1]


def test_messages_that_are_too_large_together_are_named_not_fatal():
    nodes = Nodes(lambda client, work, reply: reply)
    post = Transport(nodes, OWNERS, {}, timeout=1.0, limit=10**6, device="cpu")
    post.meet()
    nodes.push_messages = lambda messages: []  # what Flower's grid answers then
    assert ask(post) == ({}, dict.fromkeys(range(3), "the message could not be sent"))


def test_a_silent_site_is_asked_in_the_background_and_comes_back(caplog):
    away = [True]
    nodes = Nodes(lambda client, work, reply: None if away and client == 1 and len(nodes.sent) > 3 else reply)
    post = Transport(nodes, OWNERS, {}, timeout=0.3, limit=10**6, device="cpu")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            answers, troubles = ask(post)
            assert (list(answers), troubles) == ([0, 2], {1: "no answer in 0.3 s"})
        post.timeout = 60.0
        began = time.monotonic()
        for _ in range(5):
            answers, troubles = ask(post)
            assert list(answers) == [0, 2]
            assert "in the background" in troubles[1]
        assert time.monotonic() - began < 20  # not one timeout
        assert nodes.sent[-10:].count((1, "describe")) == 0  # one question is out, and is not asked again and again
        assert nodes.sent.count((1, "fit")) == 2  # no work piles up for it
        away.clear()
        assert list(ask(post)[0]) == [0, 1, 2]
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("site 1 (s1) has left 2 messages in a row unanswered")
    assert said[1].startswith("site 1 (s1) answers again")


def test_one_miss_is_forgiven():
    missed = iter((True, False) * 10)
    nodes = Nodes(lambda client, work, reply: None if work == "fit" and client == 1 and lost[0] else reply)
    post = Transport(nodes, OWNERS, {}, timeout=0.1, limit=10**6, device="cpu")
    for _ in range(6):
        lost = [next(missed)]
        answers, _ = ask(post)
        assert (1 in answers) is not lost[0]


def test_flowers_own_word_for_a_lost_node_is_silence_and_a_sites_error_is_not():
    for code, background in ((5, True), (2, False)):
        nodes = Nodes(
            lambda client, work, reply, code=code: (
                Message(Error(code, "why\nso"), reply_to=fake(reply)) if client == 1 and work == "fit" else reply
            )
        )
        post = Transport(nodes, OWNERS, {}, timeout=1.0, limit=10**6, device="cpu")
        troubles = [ask(post)[1][1] for _ in range(4)]
        assert troubles[:2] == ["why so", "why so"]
        # Asked who it is, it answers at once, and so gets work again.
        assert ((1, "describe") in nodes.sent[3:]) is background


def fake(reply: Message) -> Message:
    """The message that a reply replies to, as far as another reply needs it."""
    asked = Message(write_site(SITE), 101, "train")
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked


def test_a_node_that_does_not_say_who_it_is_is_waited_for_once_and_not_where_all_others_are_known(monkeypatch, caplog):
    monkeypatch.setattr(module, "RETRY", 0.0)
    nodes = Nodes(lambda client, work, reply: None if client == 2 else reply)
    post = Transport(nodes, OWNERS, {}, timeout=0.2, limit=10**6, device="cpu")
    post.meet()
    assert sorted(site.client for site in post.sites.values()) == [0, 1]
    assert "node 102 (client 2) does not say which site it is: no answer in 0.2 s" in caplog.text
    post.timeout = 60.0
    began = time.monotonic()
    for _ in range(3):
        answers, troubles = ask(post)
        assert (list(answers), troubles) == ([0, 1], {2: "its node is not online"})
    fresh = Transport(nodes, OWNERS, {}, timeout=60.0, limit=10**6, device="cpu")
    fresh.meet([0, 1])
    assert sorted(fresh.nodes) == [0, 1]
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("size", [10, 10**6])
def test_a_message_is_weighed_whole_before_it_is_read(size):
    def behave(client, work, reply):
        if client == 1 and work == "fit":
            reply.content["logged"]["x" * size] = 1.0
        return reply

    answers, troubles = ask(Transport(Nodes(behave), OWNERS, {}, timeout=1.0, limit=100_000, device="cpu"))
    assert (1 in answers) is (size == 10)
    assert size == 10 or "bytes, and 100,000 are allowed (max_reply_mb)" in troubles[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's memory")
def test_an_answer_that_unpacks_to_far_more_than_it_weighs_is_refused():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)

    def behave(client, work, reply):
        if client == 1 and work == "fit":
            bytearray(8 << 30)  # as an array does that says it is made of the same chunk a million times
        return reply

    answers, troubles = ask(Transport(Nodes(behave), OWNERS, {}, timeout=1.0, limit=10**6, device="cpu"))
    assert list(answers) == [0, 2]
    assert "more memory to unpack than max_reply_mb" in troubles[1]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
