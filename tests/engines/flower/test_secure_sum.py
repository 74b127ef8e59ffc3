"""Secure sums over the Flower engine: every message is served as by a process of its own, from the site's disk."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest
import torch

from fedtailor import Config
from fedtailor.deploy.policy import asked
from fedtailor.deploy.site import SiteNode
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.messages import read_outcome, write_call, write_outcome
from fedtailor.engines.work import Work
from fedtailor.errors import FedTailorError
from fedtailor.experiment.run import start
from fedtailor.experiment.run_folder import read_lines
from fedtailor.privacy.secure_sum.entries import Entries
from tests.engines.flower.test_engine import WORDS, FakeGrid, Killed, again, changed, federate, same

CHANNELS = [f"privacy.{name}=plain" for name in ("samples", "loss", "scores", "logged")]
SECURE = ["method=fedrep", "privacy.body=secure-sum", "privacy.threshold=0.5", "rounds=2", *CHANNELS]


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> Path:
    """The same run in one process."""
    folder = tmp_path_factory.mktemp("inline") / "run"
    start(Config.load(words=[*WORDS, *SECURE]), folder)
    return folder


def test_the_numbers_are_those_of_inline_to_the_bit_and_nothing_secret_is_left(tmp_path, inline):
    grid = federate(tmp_path, *SECURE)
    assert same(tmp_path / "run", inline)
    kinds = [work for work, round, client in grid.calls if (round, client) == (1, 0)]
    assert kinds == ["advertise", "share", "fit", "unmask", "score"]
    for i in range(4):
        file = tmp_path / "sites" / str(i) / "state" / "test" / "secure-sum.json"
        left = json.loads(file.read_text())
        assert (left["stage"], left["root"], left["sealed"]) == ("done", "", {})
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def spoiling(work: str, client: int, reply):
    """Change one client's reply to one message of round 1."""
    return lambda call, who, answer: (
        reply(answer) if (call["work"], call["round"], who) == (work, 1, client) else answer
    )


def up(reply, name: str) -> torch.Tensor:
    return read_outcome(reply.content, "cpu").up[name]


HOSTILE = {
    "its 'keys' is uint8 1×3 where 1 × 64 bytes": (
        "advertise",
        lambda r: changed(r, keys=torch.zeros(1, 3, dtype=torch.uint8)),
        3,
    ),
    "no usable point of the curve": ("advertise", lambda r: changed(r, keys=torch.zeros(1, 64, dtype=torch.uint8)), 3),
    "its 'sealed' is float32 number": ("share", lambda r: changed(r, sealed=torch.tensor(1.0)), 3),
    "(int64 519)": ("fit", lambda r: changed(r, body=up(r, "body")[:-1]), 3),
    "where a masked one is expected": ("fit", lambda r: changed(r, body=up(r, "body").float()), 3),
    "most sites send": (
        "fit",
        lambda r: again(r, write_outcome(Outcome({}, read_outcome(r.content, "cpu").samples, 0.1))),
        3,
    ),
    "is not the one it was given": ("unmask", lambda r: changed(r, shares=up(r, "shares") ^ 1), 4),
    "no answer in": ("unmask", lambda r: None, 4),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_or_silent_site_is_named_and_costs_itself_only(tmp_path, caplog, fault):
    work, reply, replied = HOSTILE[fault]
    with caplog.at_level(logging.WARNING):
        federate(tmp_path, *SECURE, spoil=spoiling(work, 1, reply), timeout=0.3)
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [r["replied"] for r in records] == [replied, 4]
    lines = [r.getMessage() for r in caplog.records if fault in r.getMessage()]
    assert lines
    assert all("site 1" in line for line in lines)


@pytest.mark.parametrize("work", ["advertise", "share", "fit", "unmask"])
def test_a_server_killed_in_a_sum_repeats_the_round_with_fresh_keys(tmp_path, inline, work):
    def kill(call, client, reply):
        if (call["work"], call["round"], client) == (work, 2, 2):
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate(tmp_path / "parts", *SECURE, spoil=kill)
    federate(tmp_path / "parts", *SECURE)
    assert same(tmp_path / "parts" / "run", inline)


class Asking(FakeGrid):
    """Keeps what the server asks site 1 to unmask, and asks a second time as if client 0 had dropped out."""

    def _serve(self, message):
        id = super()._serve(message)
        plain = json.loads(message.content["call"]["plain"])
        if (plain["work"], plain["round"], message.metadata.dst_node_id) == ("unmask", 2, 101):
            self.second = {**plain, "work": Work.UNMASK}
        return id


def test_a_server_that_asks_a_site_for_both_shares_is_refused(tmp_path):
    grid = federate(tmp_path, *SECURE, carrier=Asking)
    node = SiteNode.open(grid.place(1, grid.sites[101]), "test", grid.second["config"])
    request = write_call(grid.second, {"survivors": torch.tensor([1, 2, 3])})
    with pytest.raises(FedTailorError, match="it has done in the secure sum of round 2; 'done' can follow once"):
        node.answer(request)
    repeated = write_call({**grid.second, "round": 1}, {"survivors": torch.tensor([1, 2, 3])})
    with pytest.raises(FedTailorError, match="no secure sum of round 1 has begun here"):
        node.answer(repeated)


def test_a_site_whose_run_has_no_secure_sum_takes_part_in_none(tmp_path):
    grid = federate(tmp_path, "method=fedrep", "rounds=1", carrier=Asking)
    node = SiteNode.open(grid.place(1, grid.sites[101]), "test", asked(grid.config))
    call = {"work": Work.ADVERTISE, "round": 1, "client": 1, "step": 0, "oldest": 0}
    with pytest.raises(FedTailorError, match="no secure sum to 'advertise' for"):
        node.answer(write_call(call, {}))


def test_no_site_weighs_more_than_its_share_of_the_sum(tmp_path, monkeypatch):
    """The server declares the largest weight, and sites cut theirs to it: with a share of 1/4, four sites weigh the same."""
    weights = []
    means = Entries.means
    monkeypatch.setattr(
        Entries, "means", lambda self, total, *rest: weights.append(int(total[-1])) or means(self, total, *rest)
    )
    sizes = [len(client.train) for client in Config.load(words=[*WORDS, *SECURE]).federation().clients]
    for share in (1.0, 0.25):
        federate(tmp_path / str(share), *SECURE, "rounds=1", max_share=share)
    assert weights == [sum(sizes), 4 * min(sizes)]


NOISED = [
    "method=fedrep",
    "privacy.body=dp+secure-sum",
    "privacy.noise=0.5",
    "privacy.threshold=0.5",
    "rounds=2",
    *CHANNELS,
]


def with_keys(folder: Path) -> Path:
    """Give each site the secret of its noise, so that two federations have the same."""
    for i in range(4):
        state = folder / "sites" / str(i) / "state" / "test"
        state.mkdir(parents=True)
        (state / "noise.key").write_bytes(bytes([i] * 32))
        (state / "noise.key").chmod(0o600)
    return folder


@pytest.mark.parametrize("work", ["fit", "unmask"])
def test_a_repeated_round_has_the_same_noise_and_spends_nothing_more(tmp_path, work):
    """The noise of a site comes from its own secret: killed and resumed, the run has the bits of one that was not."""
    federate(with_keys(tmp_path / "whole"), *NOISED)
    parts = with_keys(tmp_path / "parts")

    def kill(call, client, reply):
        if (call["work"], call["round"], client) == (work, 2, 2):
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate(parts, *NOISED, spoil=kill)
    federate(parts, *NOISED)
    assert same(parts / "run", tmp_path / "whole" / "run")
    start(Config.load(words=[*WORDS, *NOISED]), tmp_path / "inline")
    assert not same(tmp_path / "whole" / "run", tmp_path / "inline")  # the seed of the run does not give it away
    for i in range(4):
        record = json.loads((parts / "sites" / str(i) / "state" / "test" / "noise_shares.json").read_text())
        assert list(record.values()) == [[0, 1, 2, 3]] * 2


def test_a_site_does_not_reveal_its_share_with_other_clients_than_before(tmp_path, caplog):
    """The server is killed after the sum of round 2 was revealed, and a site is silent when the round is repeated: that sum is lost."""
    folder = with_keys(tmp_path)

    def kill(call, client, reply):
        if (call["work"], call["round"], client) == ("score", 2, 3):
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate(folder, *NOISED, spoil=kill)
    with caplog.at_level(logging.WARNING):
        federate(
            folder,
            *NOISED,
            spoil=lambda call, who, r: None if (call["work"], call["round"], who) == ("fit", 2, 3) else r,
            timeout=0.3,
        )
    records = read_lines(folder / "run" / "metrics.jsonl")
    assert records[-1]["sum_lost"] == 1
    assert "has revealed the sum of these changes with other clients before" in caplog.text
