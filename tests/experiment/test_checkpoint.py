"""Checkpoints: exact, atomic, and damage is noticed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from fedtailor.experiment.checkpoint import Checkpoint, drop_after, load_latest, oldest_round, save
from fedtailor.experiment.journal import Mark


def make(round: int) -> Checkpoint:
    shared = torch.randn(3, generator=torch.Generator().manual_seed(round))
    server = {"body": shared, "period": torch.tensor(round), "known": torch.tensor([True, False])}
    return Checkpoint(
        round, server, {0: {"head": shared}, 7: {"head": shared.double(), "seen": torch.tensor(3)}, 9: {}}
    )


def same(a: Checkpoint, b: Checkpoint) -> bool:
    def flat(c: Checkpoint) -> dict:
        return {("server", k): v for k, v in c.server.items()} | {
            (i, k): v for i, s in c.clients.items() for k, v in s.items()
        }

    x, y = flat(a), flat(b)
    alike = x.keys() == y.keys() and all(torch.equal(x[k], y[k]) and x[k].dtype == y[k].dtype for k in x)
    return alike and a.clients.keys() == b.clients.keys()


def test_what_is_saved_comes_back_to_the_bit(tmp_path):
    save(tmp_path, make(4))
    loaded = load_latest(tmp_path)
    assert loaded.round == 4
    assert same(loaded, make(4))


def test_the_last_two_are_kept(tmp_path):
    for round in (1, 2, 3):
        save(tmp_path, make(round))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000002", "round-000003"]


def test_a_damaged_one_is_named_and_the_one_before_used(tmp_path, caplog):
    for round in (1, 2):
        save(tmp_path, make(round))
    victim = tmp_path / "round-000002" / "server.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    assert same(load_latest(tmp_path), make(1))
    assert "round-000002 is damaged (server.safetensors does not match its checksum)" in caplog.text


def test_one_digit_changed_in_checkpoint_json_counts_as_damage(tmp_path):
    save(tmp_path, make(1))
    save(tmp_path, replace(make(2), files={"metrics.jsonl": Mark(7, "ab")}))
    meta = tmp_path / "round-000002" / "checkpoint.json"
    text = meta.read_text()
    assert load_latest(tmp_path).files == {"metrics.jsonl": Mark(7, "ab")}
    for place in (i for i, letter in enumerate(text) if letter.isdigit()):
        meta.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
        assert load_latest(tmp_path).round == 1, text[place - 20 : place + 1]


def test_a_checkpoint_of_the_first_versions_is_read_if_its_round_is_that_of_its_folder(tmp_path):
    save(tmp_path, make(1))
    meta = tmp_path / "round-000001" / "checkpoint.json"
    plain = {key: value for key, value in json.loads(meta.read_text()).items() if key not in ("self", "files")}
    meta.write_text(json.dumps(plain))
    assert same(load_latest(tmp_path), make(1))
    meta.write_text(json.dumps(plain | {"round": 2}))
    assert load_latest(tmp_path) is None


def test_a_checkpoint_half_removed_by_a_kill_is_none(tmp_path, monkeypatch, caplog):
    for round in (1, 2):
        save(tmp_path, make(round))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, make(3))
    assert load_latest(tmp_path, upto=1) is None
    assert not caplog.text
    drop_after(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000002", "round-000003"]


def test_truncated_missing_and_garbage_files_count_as_damage(tmp_path):
    for round in (1, 2, 3):
        save(tmp_path, make(round))
    (tmp_path / "round-000003" / "clients.safetensors").unlink()
    (tmp_path / "round-000002" / "checkpoint.json").write_text("{")
    assert load_latest(tmp_path) is None


def test_a_draft_left_by_a_kill_is_not_a_checkpoint(tmp_path):
    save(tmp_path, make(1))
    draft = tmp_path / ".draft-000002"
    draft.mkdir()
    (draft / "server.safetensors").write_bytes(b"half")
    assert load_latest(tmp_path).round == 1
    save(tmp_path, make(2))
    assert load_latest(tmp_path).round == 2


def test_all_are_kept_that_are_needed_to_go_back_to_a_round(tmp_path):
    assert oldest_round(tmp_path) == 0
    for round, oldest in ((2, 0), (4, 0), (7, 0), (9, 6)):
        save(tmp_path, make(round), oldest)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000004", "round-000007", "round-000009"]
    assert oldest_round(tmp_path) == 4
    assert load_latest(tmp_path, upto=6).round == 4
    assert load_latest(tmp_path, upto=7).round == 7
    assert load_latest(tmp_path, upto=3) is None


def test_what_comes_after_a_round_that_is_run_anew_goes(tmp_path):
    for round in (2, 4, 6):
        save(tmp_path, make(round), 0)
    save(tmp_path, make(4), 0)
    assert load_latest(tmp_path).round == 4
