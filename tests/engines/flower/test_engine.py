"""The Flower engine without its network: messages, what a server refuses, what a site keeps, and that the numbers are those of inline."""

from __future__ import annotations

import copy
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from fedtailor import Config
from fedtailor.analysis.results import find_runs
from fedtailor.data.description import Description
from fedtailor.deploy.deploy_folder import DeployFolder
from fedtailor.deploy.policy import Policy, asked
from fedtailor.deploy.server_app import ServerApp
from fedtailor.deploy.settings import DeploySettings
from fedtailor.deploy.site import SiteNode
from fedtailor.deploy.site_folder import SiteFolder
from fedtailor.deploy.site_process import SiteProcess
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.checks import ReplyChecks
from fedtailor.engines.flower.engine import capped
from fedtailor.engines.flower.messages import BadMessage, read_call, read_outcome, write_call, write_outcome
from fedtailor.engines.work import Work
from fedtailor.errors import FedTailorError
from fedtailor.experiment.run import start
from fedtailor.experiment.run_folder import RunFolder, read_lines
from fedtailor.learning.scoring import Score

WORDS = (
    "data=digits",
    "data.fraction=0.1",
    "batch=20",
    "clients=4",
    "rounds=3",
    "net=mlp",
    "net.hidden=[8]",
    "checkpoint_every=1",
)


class FakeGrid:
    """Carries messages within this process: every one is served as by a process of its own, from the site's disk."""

    def __init__(self, sites: dict[int, Path], config: Config, spoil: Callable | None = None) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.sites = {100 + client: folder for client, folder in sites.items()}  # node -> folder
        self.config = config
        self.spoil = spoil or (lambda call, client, reply: reply)
        self.ids = itertools.count(1)
        self.replies: dict[str, Message] = {}
        self.calls: list[tuple[str, int, int]] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.sites)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._serve(message) for message in messages]

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(id) for id in ids if id in self.replies]

    def _serve(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = id = f"m{next(self.ids)}"
        node = message.metadata.dst_node_id
        client = node % 100
        plain, _ = read_call(message.content, "cpu")
        if plain["work"] not in (Work.DESCRIBE, Work.END):
            self.calls.append((plain["work"], plain["round"], client))
        try:
            site = SiteProcess.__new__(SiteProcess)  # nothing to connect to
            site.place, site.node, site.run, site.say = self.place(client, self.sites[node]), None, (None, ""), str
            reply, _ = site._answer(message)
            if plain["work"] is not Work.DESCRIBE:
                reply = self.spoil(plain, client, reply)
        except Exception as error:
            reply = Message(Error(2, repr(error)), reply_to=message)
        if reply is not None:
            self.replies[id] = reply
        return id

    def place(self, client: int, folder: Path) -> SiteFolder:
        policy, values, settings = Policy.for_run(self.config), self.config.values(), self.config.settings
        if client == 99:
            own = {"data": {"name": "digits", "fraction": 0.1}}
            agreed = Description.load(folder.parent.parent / "run" / "description.json")  # as `deploy admit` copies it
            return SiteFolder(folder, None, "newcomer", "", False, policy, own, agreed)
        own = {"data": values["data"], "partition": values["partition"], "clients": settings.clients}
        return SiteFolder(folder, client, folder.name, "", True, policy, {**own, "partition_seed": settings.seed})


class Owners(dict):
    """Whose key a node of the fake grid has."""

    def __missing__(self, node: int) -> int | None:
        return None if node % 100 == 99 else node % 100


def headquarters(grid: FakeGrid, folder: Path, **terms) -> ServerApp:
    terms = {"federation": "test", "timeout": 0.5, "wait": 5.0, **terms}
    return ServerApp(grid, Owners(), DeploySettings(**terms), grid.config, folder)


def federate(
    folder: Path,
    *words: str,
    spoil: Callable | None = None,
    carrier: type | None = None,
    welcome: bool = False,
    **terms,
) -> FakeGrid:
    """Run (or carry on) a federation in a folder."""
    config = Config.load(words=[*WORDS, *words])
    count = config.settings.clients
    sites = {i: folder / "sites" / str(i) for i in range(count)}
    if welcome:
        sites = {99: folder / "sites" / "newcomer"}
    for place in sites.values():
        place.mkdir(parents=True, exist_ok=True)
    grid = (carrier or FakeGrid)(sites, config, spoil)
    server = headquarters(grid, folder, **terms)
    server.welcome() if welcome else server.run()
    return grid


def numbers(folder: Path) -> list[dict]:
    own = ("missing", "rejected")
    records = read_lines(folder / "metrics.jsonl")
    return [{k: v for k, v in r.items() if not k.startswith("seconds_") and k not in own} for r in records]


def same(a: Path, b: Path) -> bool:
    texts = all((a / f).read_text() == (b / f).read_text() for f in ("ledger.csv", "clients.jsonl", "config.toml"))
    return texts and numbers(a) == numbers(b)


OPTIONS = {
    "heart": ["partition=paired", "net=cnn", "method.pgd_steps=1", "method.akt_steps=2", "rounds=2"],
    "fedavg-ft": ["method.ft_epochs=2"],
}
METHODS = ["fedavg", "fedrep", "pgfedsplit", "fedsimsup", "fedamp", "heart", "fedavg-ft", "fedfomo", "fedgh"]


@pytest.mark.parametrize("method", METHODS)
def test_the_numbers_are_those_of_inline_to_the_bit(tmp_path, method):
    words = [f"method={method}", "join=0.75", *OPTIONS.get(method, [])]
    start(Config.load(words=[*WORDS, *words]), tmp_path / "inline")
    federate(tmp_path / "federation", *words)
    assert same(tmp_path / "inline", tmp_path / "federation" / "run")
    for i in range(4):
        name = f"client-{i:05d}.safetensors"
        here = load_file(tmp_path / "inline" / "models" / name)
        there = load_file(tmp_path / "federation" / "sites" / str(i) / "models" / name)
        assert here.keys() == there.keys()
        assert all(torch.equal(here[key], there[key]) for key in here)
    assert not (tmp_path / "federation" / "run" / "models").exists()  # no personal model reaches the server


def test_early_stopping_metrics_and_closing_steps_are_those_of_inline_to_the_bit(tmp_path):
    words = ["method=fedavg-ft", "method.ft_epochs=2", "rounds=30", "lr=0.8", "validation=0.2", "patience=1"]
    words += ["metrics=log_loss", "checkpoint_every=1"]
    start(Config.load(words=[*WORDS, *words]), tmp_path / "inline")
    federate(tmp_path / "federation", *words)
    assert same(tmp_path / "inline", tmp_path / "federation" / "run")
    records = numbers(tmp_path / "inline")
    assert len(records) < 30 + 2
    assert [r["phase"] for r in records[-2:]] == ["finish"] * 2
    assert records[-1]["log_loss"] == pytest.approx(records[-1]["loss"], rel=1e-5)


def test_what_sites_log_in_closing_steps_is_that_of_inline(tmp_path):
    words = ["method=tailor", "method.close_epochs=2", "rounds=2"]
    start(Config.load(words=[*WORDS, *words]), tmp_path / "inline")
    federate(tmp_path / "federation", *words)
    assert same(tmp_path / "inline", tmp_path / "federation" / "run")
    *_, last = read_lines(tmp_path / "federation" / "run" / "clients.jsonl")
    assert (last["phase"], last["step"]) == ("finish", 1)
    assert [list(last["logged"][str(i)]) for i in range(4)] == [["prior_weight"]] * 4


def test_outputs_stay_at_the_sites_so_what_needs_them_is_not_pooled(tmp_path):
    words = ["method=fedavg", "rounds=1", "metrics=auroc"]
    start(Config.load(words=[*WORDS, *words]), tmp_path / "inline")
    federate(tmp_path / "federation", *words)
    (here,), (there,) = numbers(tmp_path / "inline"), numbers(tmp_path / "federation" / "run")
    assert here["auroc"] is not None
    assert there["auroc"] is None
    assert {**here, "auroc": None} == there


# -- messages ------------------------------------------------------------------------------------------------------------------------


def test_an_outcome_survives_its_message_to_the_bit():
    up = {
        "body": torch.randn(7, generator=torch.Generator().manual_seed(0)),
        "wide": torch.tensor([[1 / 3]], dtype=torch.float64),
        "counts": torch.tensor([3, 0, 9]),
        "known": torch.tensor([True, False]),
        "alone": torch.tensor(0.1),
        "none": torch.empty(0, 4),
    }
    held = Score(1, 2, 0.3, {"auroc": float("nan"), "rmse": 1 / 7})
    scored = Score(3, 4, 0.1 + 0.2, {"auroc": 1 / 3}, validation=held)
    sent = Outcome(up, 12, 1 / 3, replace(scored, outputs=torch.ones(4, 3)), {"mu": 0.7})
    got = read_outcome(write_outcome(sent), "cpu")
    assert list(got.up) == list(up)
    assert all(torch.equal(got.up[n], t) and got.up[n].dtype == t.dtype for n, t in up.items())
    assert (got.samples, got.loss, got.logged) == (12, 1 / 3, {"mu": 0.7})
    assert got.score is not None
    assert repr(got.score) == repr(scored)  # NaN is not equal to itself
    assert got.score.outputs is None
    assert np.isnan(read_outcome(write_outcome(Outcome()), "cpu").loss)


def test_a_call_survives_its_message():
    plain, payload = read_call(write_call({"work": Work.FIT, "round": 3}, {"body": torch.ones(2)}), "cpu")
    assert plain == {"work": Work.FIT, "round": 3}
    assert torch.equal(payload["body"], torch.ones(2))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (RecordDict(), "no numbers"),
        (RecordDict({"numbers": MetricRecord({"samples": 1.5, "loss": 0.0})}), "samples is 1.5"),
        (RecordDict({"numbers": MetricRecord({"samples": 1, "loss": float("inf")})}), "loss is inf"),
        (RecordDict({"numbers": MetricRecord({"samples": 1, "loss": 1.0}), "logged": MetricRecord()}), "no payload"),
        (RecordDict({"numbers": MetricRecord({"samples": 1, "loss": 1.0, "total": 3})}), "correct is None"),
    ],
)
def test_a_letter_of_another_form_is_said_to_be_so(content, said):
    with pytest.raises(BadMessage, match=said):
        read_outcome(content, "cpu")


def test_an_array_that_is_not_what_it_says_is_refused():
    letter = write_outcome(Outcome({"body": torch.ones(4)}))
    letter["payload"]["body"].data = b"\x80\x04not an array"
    with pytest.raises(BadMessage, match="cannot be read"):
        read_outcome(letter, "cpu")


# -- what a server refuses -----------------------------------------------------------------------------------------------------------


def changed(reply: Message, **entries: torch.Tensor) -> Message:
    """The same answer with other tensors."""
    outcome = read_outcome(reply.content, "cpu")
    content = write_outcome(Outcome({**outcome.up, **entries}, outcome.samples, outcome.loss, outcome.score))
    return again(reply, content)


def again(reply: Message, content: RecordDict) -> Message:
    spoilt = copy.copy(reply)
    spoilt.__dict__ = {**reply.__dict__, "_content": content}
    return spoilt


def numbers_of(reply: Message, **values: float) -> Message:
    content = write_outcome(read_outcome(reply.content, "cpu"))
    content["numbers"] = MetricRecord({**content["numbers"], **values})
    return again(reply, content)


SPOILT = {
    "not finite": lambda r: changed(r, body=torch.full_like(body(r), float("nan"))),
    "where float32": lambda r: changed(r, body=body(r)[:-1]),
    "is float64": lambda r: changed(r, body=body(r).double()),
    "does not declare": lambda r: changed(r, head=torch.ones(3)),
    "most sites send": lambda r: again(r, write_outcome(Outcome({}, read_outcome(r.content, "cpu").samples, 0.1))),
    "are allowed": lambda r: changed(r, body=torch.zeros(200_000)),
    "no numbers": lambda r: again(r, RecordDict()),
    "samples, but has": lambda r: numbers_of(r, samples=10**9),
    "by zero": lambda r: 1 // 0,
    "no answer in": lambda r: None,
}


def body(reply: Message) -> torch.Tensor:
    return read_outcome(reply.content, "cpu").up["body"]


@pytest.mark.parametrize("fault", SPOILT)
def test_an_answer_unfit_for_use_is_left_out_named_and_counted(tmp_path, caplog, fault):
    def spoil(call, client, reply):
        return SPOILT[fault](reply) if (call["work"], call["round"], client) == ("fit", 2, 1) else reply

    with caplog.at_level(logging.WARNING):
        federate(tmp_path, "method=fedrep", spoil=spoil, max_reply_mb=0.5, timeout=0.3)
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [r["replied"] for r in records] == [4, 3, 4]
    assert [r["missing"] + r["rejected"] for r in records] == [0, 1, 0]
    (line,) = [r.getMessage() for r in caplog.records if "round 2" in r.getMessage()]
    assert "site 1 (client-1)" in line
    assert fault in line
    assert all(np.isfinite(r["accuracy"]) for r in records)


def test_a_score_that_cannot_be_is_left_out(tmp_path):
    def spoil(call, client, reply):
        return numbers_of(reply, correct=10**6) if call["work"] == "score" and client == 3 else reply

    federate(tmp_path, "method=fedrep", spoil=spoil)
    for line in read_lines(tmp_path / "run" / "clients.jsonl"):
        assert [a is None for a in line["accuracy"]] == [False, False, False, True]


def test_too_few_answers_end_the_run_and_it_can_be_carried_on(tmp_path):
    def spoil(call, client, reply):
        return None if call["work"] == "fit" and call["round"] == 2 and client else reply

    with pytest.raises(
        FedTailorError, match=r"Round 2: 1 of 4 sites .* min_replies is 2.*resumes from its last checkpoint"
    ):
        federate(tmp_path / "parts", "method=fedrep", spoil=spoil, min_replies=2, timeout=0.2)
    grid = federate(tmp_path / "parts", "method=fedrep", min_replies=2)
    assert min(round for _, round, _ in grid.calls) == 2
    federate(tmp_path / "whole", "method=fedrep")
    assert same(tmp_path / "parts" / "run", tmp_path / "whole" / "run")


def tensors(**shapes: tuple[int, ...]) -> Outcome:
    return Outcome({name: torch.zeros(shape) for name, shape in shapes.items()}, 5)


def test_entries_that_were_not_sent_down_must_be_as_most_sites_have_them():
    look = ReplyChecks(("model", "means"), dict.fromkeys(range(4), (5, 2)), few=10)
    good = {i: tensors(model=(100,), means=(3 + i, 8)) for i in range(3)}  # a count of classes may differ
    assert look.refused(Work.FIT, good, {}) == {}
    bad = look.refused(Work.FIT, {**good, 3: tensors(model=(99,), means=(3, 8))}, {})
    assert list(bad) == [3]
    assert "'model' (float32 99)" in bad[3]
    assert list(look.refused(Work.FIT, {0: good[0], 3: tensors(model=(100,), means=(3, 9))}, {})) == [
        3
    ]  # known from before
    assert list(look.refused(Work.FIT, {0: good[0], 1: good[1], 3: tensors(model=(100,))}, {})) == [3]


def test_clients_that_were_sent_other_things_may_answer_with_others():
    look = ReplyChecks(("model", "gains"), dict.fromkeys(range(3), (5, 2)), few=10)
    answers = {0: tensors(model=(50,)), 1: tensors(model=(50,), gains=(2,)), 2: tensors(model=(50,), gains=(1,))}
    sent = {0: {}, 1: {"models": torch.zeros(2, 50)}, 2: {"models": torch.zeros(1, 50)}}
    assert look.refused(Work.FIT, answers, sent) == {}


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [
        ((30, 10, 60_000), 1.0, (30, 10, 60_000)),
        ((30, 10, 60_000), 0.5, (30, 10, 40)),
        ((30, 30, 30), 0.5, (30, 30, 30)),
        ((30, 10), 0.5, (10, 10)),
        ((100, 90, 5, 5), 0.4, (20, 20, 5, 5)),
        ((100, 90, 5, 5), 0.1, (5, 5, 5, 5)),
        ((10**9, 1), 0.3, (1, 1)),
        ((7,), 0.5, (7,)),
        ((), 0.5, ()),
    ],
)
def test_no_site_weighs_more_than_its_share(samples, share, expected):
    assert tuple(capped(dict(enumerate(samples)), share).values()) == expected


def test_a_site_that_says_it_has_all_the_samples_counts_for_its_share_only(tmp_path):
    """Its answer is zeros: with its own weight there would be nothing left of the others' model."""

    class Boastful(FakeGrid):
        def _serve(self, message):
            id = super()._serve(message)
            reply, client = self.replies[id], message.metadata.dst_node_id % 100
            if client == 1 and "site" in reply.content:
                told = json.loads(reply.content["site"]["plain"]) | {"train": 10**9}
                reply.content["site"]["plain"] = json.dumps(told)
            elif client == 1 and read_call(message.content, "cpu")[0]["work"] == "fit":
                zero = torch.zeros_like(read_outcome(reply.content, "cpu").up["model"])
                self.replies[id] = numbers_of(changed(reply, model=zero), samples=10**9)
            return id

    def norm(name: str, **terms) -> float:
        federate(tmp_path / name, "method=fedavg", "rounds=1", "join=1", carrier=Boastful, **terms)
        (state,) = (tmp_path / name / "run" / "checkpoints").glob("*/server.safetensors")
        return load_file(state)["model"].norm().item()

    assert norm("believed") < 1e-4
    assert norm("capped", max_share=0.25) > 0.5


# -- nodes that come and go ----------------------------------------------------------------------------------------------------------


class Restless(FakeGrid):
    """Site 2 is gone in round 2 and back in round 3, under another node."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        plain = [read_call(message.content, "cpu")[0] for message in messages]
        ids = super().push_messages(messages)
        if plain[0]["work"] == "score" and plain[0]["round"] == 1:
            self.away = self.sites.pop(102)
        if plain[0]["work"] == "score" and plain[0]["round"] == 2:
            self.sites[202] = self.away
        return ids


def test_a_site_that_is_gone_is_named_and_comes_back_under_another_node(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        federate(tmp_path, "method=fedrep", carrier=Restless)
    gone = [r.getMessage() for r in caplog.records]
    assert gone == [
        f"round 2, {work}: no answer from site 2 (client-2): its node is not online" for work in ("fit", "score")
    ]
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [(r["replied"], r["missing"]) for r in records] == [(4, 0), (3, 2), (4, 0)]
    kept = tmp_path / "sites" / "2" / "state" / "test" / "fedrep"
    assert (kept / "round-000006").exists()  # it went on from its state of round 1


def test_the_server_waits_for_all_sites_and_says_how_many_came(tmp_path):
    config = Config.load(words=[*WORDS, "method=fedavg"])
    grid = FakeGrid({0: tmp_path}, config)
    with pytest.raises(FedTailorError, match=r"Only 1 of 4 sites were ready after 0.1 s"):
        headquarters(grid, tmp_path, wait=0.1, timeout=1.0).run()


# -- what a site keeps ---------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a server as a kill does, wherever it is."""


KILLED = ["method=fedproto-per", "method.ft_epochs=2", "join=0.5"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[int, Path]:
    """Federations that nothing happens to, by how often they save."""
    folders = {every: tmp_path_factory.mktemp(f"every-{every}") for every in (1, 2)}
    for every, folder in folders.items():
        federate(folder, *KILLED, f"checkpoint_every={every}")
    return folders


@pytest.mark.parametrize(
    ("work", "round", "every"), [("fit", 1, 1), ("score", 2, 1), ("fit", 3, 2), ("finish", 1, 1), ("save", 3, 2)]
)
def test_a_server_killed_anywhere_carries_on_to_the_numbers_of_an_uninterrupted_run(
    tmp_path, uninterrupted, work, round, every
):
    words, whole = [*KILLED, f"checkpoint_every={every}"], uninterrupted[every]

    def spoil(call, client, reply):
        if (call["work"], call["round"]) == (work, round):
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate(tmp_path / "parts", *words, spoil=spoil)
    federate(tmp_path / "parts", *words)
    assert same(tmp_path / "parts" / "run", whole / "run")
    for i in range(4):
        a, b = (load_file(next((w / "sites" / str(i)).glob("models/*"))) for w in (tmp_path / "parts", whole))
        assert all(torch.equal(a[k], b[k]) for k in a)


def test_a_site_keeps_no_more_states_than_its_server_can_go_back_to(tmp_path):
    federate(tmp_path, "method=fedrep", "rounds=6")
    kept = sorted(p.name for p in (tmp_path / "sites" / "0" / "state" / "test" / "fedrep").iterdir())
    assert kept == [
        "round-000008",
        "round-000010",
        "round-000012",
    ]  # of rounds 4 (the server has 5 and 6, or had 4 and 5), 5 and 6


def test_a_sites_state_and_undeclared_payloads_are_nobodys_to_ask_for_or_send(tmp_path):
    config = Config.load(words=[*WORDS, "method=fedrep"])
    site = SiteNode.open(FakeGrid({}, config).place(1, tmp_path), "test", asked(config))
    call = {"round": 1, "step": 0, "oldest": 0}
    for work in (Work.GET_STATE, Work.SET_STATE, Work.DROP_STATE):
        with pytest.raises(FedTailorError, match=f"does not do '{work}'"):
            site.serve({**call, "work": work}, {})
    with pytest.raises(FedTailorError, match=r"sends \['trap'\], which fedrep does not declare"):
        site.serve({**call, "work": "fit"}, {"trap": torch.ones(1)})
    for federation in ("../x", "a/b", "", 5, None, "x" * 200):
        with pytest.raises(FedTailorError, match="no name"):
            SiteNode.open(site.place, federation, asked(config))


def test_a_site_trains_in_no_more_rounds_than_it_agreed_to_however_often_a_server_asks(tmp_path):
    def spoil(call, client, reply):
        if (call["work"], call["round"]) == ("fit", 1):
            raise Killed
        return reply

    for _ in range(6):  # a server that starts over and over again, to ask for the same round
        with pytest.raises(Killed):
            federate(tmp_path, "method=fedrep", "join=0.25", spoil=spoil)
    counts = [json.loads(p.read_text()) for p in tmp_path.glob("sites/*/state/rounds.json")]
    assert counts == [6]
    with pytest.raises(FedTailorError, match="0 of 1 sites sent a usable reply"):
        federate(tmp_path, "method=fedrep", "join=0.25")


# -- newcomers, and bytes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedrep", "fedsimsup"])
def test_a_newcomer_gets_the_model_that_onboarding_gives(tmp_path, caplog, method):
    from fedtailor.experiment.onboarding import finished_simulation, onboard, read_newcomer

    words = [f"method={method}"]
    start(Config.load(words=[*WORDS, *words]), tmp_path / "inline")
    data = ["data=digits", "data.fraction=0.1"]
    expected = onboard(finished_simulation(tmp_path / "inline"), read_newcomer(tmp_path / "inline", data))
    federate(tmp_path / "federation", *words)
    with caplog.at_level(logging.INFO):
        federate(tmp_path / "federation", *words, welcome=True)
    model = load_file(tmp_path / "federation" / "sites" / "newcomer" / "models" / "newcomer.safetensors")
    assert all(torch.equal(model[k], t) for k, t in expected.model.state_dict().items())
    assert (
        f"{100 * expected.after.accuracy:.2f} % (before it trained: {100 * expected.before.accuracy:.2f} %)"
        in caplog.text
    )


def test_the_bytes_of_answers_are_those_in_the_ledger(tmp_path):
    moved = {"up": 0, "frames": 0}

    def spoil(call, client, reply):
        if call["work"] == "fit":
            moved["up"] += reply.content["payload"].count_bytes()
            moved["frames"] += sum(128 + len(name) for name in reply.content["payload"])
        return reply

    federate(tmp_path, "method=fedavg", "rounds=2", spoil=spoil)
    rows = [row.split(",") for row in (tmp_path / "run" / "ledger.csv").read_text().splitlines()[1:]]
    ledger = sum(int(row[4]) for row in rows if row[2] == "up")
    assert ledger > 0
    assert moved["up"] == ledger + moved["frames"]  # NumPy's header of each array, and its name


def test_a_reply_that_breaks_the_server_is_found_and_left_out(tmp_path, caplog):
    def spoil(call, client, reply):
        if (call["work"], call["round"], client) == ("fit", 2, 1):
            return changed(reply, labels=torch.full_like(read_outcome(reply.content, "cpu").up["labels"], 10**6))
        return reply

    with caplog.at_level(logging.WARNING):
        federate(tmp_path, "method=fedgh", spoil=spoil)
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [(r["replied"], r["rejected"]) for r in records] == [(4, 0), (3, 1), (4, 0)]
    assert "the answer of site 1 (client-1) is left out: round 2: the server cannot use it (IndexError" in caplog.text


@pytest.mark.parametrize("method", ["fedavg", "fedah", "ditto", "pgfedsplit"])
@pytest.mark.parametrize("times", [1e6, 1e38])
def test_an_update_blown_up_is_left_out_and_the_honest_sites_stay_in(tmp_path, caplog, method, times):
    def spoil(call, client, reply):
        if not call["work"].trains or client != 1:
            return reply
        up = read_outcome(reply.content, "cpu").up
        return changed(reply, **{name: t * times for name, t in up.items() if name in ("model", "body", "head")})

    with caplog.at_level(logging.WARNING):
        federate(tmp_path, f"method={method}", spoil=spoil)
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [(r["replied"], r["rejected"]) for r in records] == [(3, 1)] * 3
    assert all(np.isfinite(r["loss"]) for r in records)
    blamed = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert all("site 1 (client-1)" in line and "site 0" not in line for line in blamed)
    lines = read_lines(tmp_path / "run" / "clients.jsonl")
    assert all(None not in line["accuracy"] for line in lines if "accuracy" in line)


def test_numbers_about_training_that_a_site_makes_up_do_no_harm(tmp_path):
    def spoil(call, client, reply):
        content = write_outcome(read_outcome(reply.content, "cpu"))
        content["logged"] = MetricRecord(
            {"skipped_steps": float("nan"), "undone_phases": -3.0, "exploded_phases": 1e300}
        )
        return again(reply, content) if client == 2 else reply

    federate(tmp_path, "method=fedrep", spoil=spoil)
    assert not any("diverged" in r for r in read_lines(tmp_path / "run" / "metrics.jsonl"))


def test_sites_bring_tables_of_their_own_and_labels_meet_by_name(tmp_path):
    rng = np.random.default_rng(0)
    labels = [("no", "yes"), ("maybe", "yes")]
    for i, names in enumerate(labels):
        place = tmp_path / "sites" / str(i)
        place.mkdir(parents=True)
        rows = [f"{rng.normal(3 * names.index(n)):.4f},{rng.normal():.4f},{n}" for n in rng.choice(names, 40 + i)]
        (place / "data.csv").write_text("\n".join(["dose,age,outcome", *rows]))
    config = Config.load(words=["data=sites", "clients=2", "method=fedrep", "rounds=3", "lr=0.1", "net.hidden=[4]"])
    grid = OwnData({i: tmp_path / "sites" / str(i) for i in range(2)}, config)
    headquarters(grid, tmp_path, timeout=1.0).run()
    heads = [load_file(tmp_path / "sites" / str(i) / "models" / f"client-0000{i}.safetensors") for i in range(2)]
    assert all((3,) in {t.shape for t in head.values()} for head in heads)  # maybe, no, yes
    assert [r["replied"] for r in read_lines(tmp_path / "run" / "metrics.jsonl")] == [2, 2, 2]
    assert not (tmp_path / "run" / "labels.json").exists()  # who has which labels is not the server's to know


def test_a_site_predicts_with_its_model_from_its_folder_alone(tmp_path, fedtailor):
    grid = with_tables(tmp_path, ("I", "II"), ("I", "II"))
    headquarters(grid, tmp_path, timeout=1.0).run()
    site = tmp_path / "sites" / "1"
    (site / "new.csv").write_text("stage,age\nI,50\nII,70\n")
    fedtailor("predict", site, "--data", site / "new.csv", "-o", site / "told.csv")
    lines = (site / "told.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[1].split(",")[1] in ("no", "yes")
    for i in range(2):
        (tmp_path / "sites" / str(i) / "site.toml").touch()  # which the stand-in for real sites does without
    assert find_runs([tmp_path]) == [tmp_path / "run"]


class OwnData(FakeGrid):
    def place(self, client: int, folder: Path) -> SiteFolder:
        table = {"name": "table", "path": "data.csv", "label": "outcome"}  # seen from the site's folder
        number = None if client == 99 else client
        return SiteFolder(folder, number, f"hospital-{client}", "", False, Policy.for_run(self.config), {"data": table})


# -- the same meaning at every site ----------------------------------------------------------------------------------------------------

SITES = ["data=sites", "clients=2", "method=fedrep", "rounds=2", "net.hidden=[4]"]


def with_tables(folder: Path, *stages: Sequence[str]) -> FakeGrid:
    """Sites with patients in these stages of a disease."""
    rng = np.random.default_rng(0)
    for i, own in enumerate(stages):
        place = folder / "sites" / str(i)
        place.mkdir(parents=True, exist_ok=True)
        rows = [f"{own[k % len(own)]},{rng.normal(60 + i, 9):.1f},{'no' if k % 2 else 'yes'}" for k in range(40)]
        (place / "data.csv").write_text("\n".join(["stage,age,outcome", *rows]))
    return OwnData({i: folder / "sites" / str(i) for i in range(len(stages))}, Config.load(words=SITES))


def test_sites_whose_categories_differ_are_refused_and_train_once_they_have_one_description(tmp_path):
    grid = with_tables(tmp_path, ["I", "II", "III"], ["II", "III", "IV"])
    with pytest.raises(
        FedTailorError, match=r"'I' only at site 0 \(hospital-0\); 'IV' only at .* `fedtailor deploy describe"
    ):
        headquarters(grid, tmp_path, timeout=5.0).run()
    assert grid.calls == []  # nothing was trained
    DeployFolder(tmp_path).describe()
    headquarters(grid, tmp_path, timeout=5.0).run()
    given = Description.load(tmp_path / "description.json")
    assert given.columns[0].values == ("I", "II", "III", "IV")
    for folder in (tmp_path / "run", *(tmp_path / "sites" / str(i) for i in range(2))):
        assert Description.load(folder / "description.json") == given
    assert [r["replied"] for r in read_lines(tmp_path / "run" / "metrics.jsonl")] == [2, 2]
    assert not (tmp_path / "members" / "refused.json").exists()
    told = json.loads((tmp_path / "members" / "sites.json").read_text())
    assert [(site["data"], site["train"]) for site in told] == [(None, 30), (None, 30)]  # that they fit, and how many


def test_a_resumed_server_keeps_the_description_that_its_run_began_with(tmp_path):
    def stop(call, client, reply):
        if (call["work"], call["round"]) == ("fit", 2):
            raise Killed
        return reply

    grid = with_tables(tmp_path, ["I", "II"], ["II", "I"])
    grid.spoil = stop
    with pytest.raises(Killed):
        headquarters(grid, tmp_path, timeout=5.0).run()
    began = Description.load(tmp_path / "run" / "description.json")
    assert began.columns[1].mean == pytest.approx(60.5, abs=3)
    more = tmp_path / "sites" / "0" / "data.csv"
    more.write_text(more.read_text() + "\nI,200,no" * 9)  # its own mean would be another now
    grid.spoil = lambda call, client, reply: reply
    headquarters(grid, tmp_path, timeout=5.0).run()
    assert RunFolder(tmp_path / "run").state == "finished"
    assert Description.load(tmp_path / "run" / "description.json") == began
    assert Description.load(tmp_path / "sites" / "0" / "description.json") == began


def test_a_newcomer_is_held_to_the_description_of_the_run(tmp_path, caplog):
    grid = with_tables(tmp_path, ["I", "II"], ["II", "I"])
    headquarters(grid, tmp_path, timeout=5.0).run()
    place = tmp_path / "sites" / "newcomer"
    place.mkdir()
    grid.sites = {199: place}
    table = (tmp_path / "sites" / "0" / "data.csv").read_text()
    (place / "data.csv").write_text(table.replace("II,", "IV,"))
    with pytest.raises(FedTailorError, match=r"From a new site: .* column 'stage' has the value 'IV', where 'I', 'II'"):
        headquarters(grid, tmp_path, timeout=5.0, wait=0.1).welcome()
    (place / "data.csv").write_text(table)
    with caplog.at_level(logging.INFO):
        headquarters(grid, tmp_path, timeout=5.0).welcome()
    assert "test samples" in caplog.text
    assert Description.load(place / "description.json") == Description.load(tmp_path / "run" / "description.json")
