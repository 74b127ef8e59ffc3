"""Run folders of other versions: one that version 0.1 left after two of four rounds, and ones of formats to come."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedtailor import Config
from fedtailor.cli.app import app
from fedtailor.deploy.settings import split, to_toml
from fedtailor.errors import FedTailorError
from fedtailor.experiment import formats
from fedtailor.experiment.checkpoint import _own_sum, load_latest
from fedtailor.experiment.config import read_toml
from fedtailor.experiment.formats import FORMAT
from fedtailor.experiment.run import resume, start
from fedtailor.experiment.run_folder import RunFolder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder of version 0.1, made by `fedtailor run` and one Ctrl-C."""
    return Path(shutil.copytree(Path(__file__).parent / "run-0.1", tmp_path / "old"))


def test_a_run_of_version_0_1_is_shown_and_reported(old, tmp_path):
    shown = CliRunner().invoke(app, ["show", str(old)])
    assert shown.exit_code == 0
    assert "This run is interrupted" in shown.output
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", str(old), "--out", str(page)]).exit_code == 0
    assert "fedrep" in page.read_text()


def test_a_run_of_version_0_1_is_resumed_to_what_it_would_have_become(old, tmp_path):
    before = (old / "metrics.jsonl").read_text()
    resume(old)
    after = (old / "metrics.jsonl").read_text()
    assert after.startswith(before)
    start(Config.load(old / "config.toml"), tmp_path / "new")
    records, fresh = RunFolder(old).records(), RunFolder(tmp_path / "new").records()
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    assert RunFolder(old).state == "finished"
    for name in (
        "accuracy",
        "train_loss",
        "bytes_up",
    ):  # to the bit on the machine that made the folder, nearly on others
        assert records[-1][name] == pytest.approx(fresh[-1][name], rel=1e-3)


def test_an_option_that_an_old_config_does_not_have_is_at_its_default(old):
    assert "eval_closing" not in read_toml(old / "config.toml")
    assert Config.load(old / "config.toml").settings.eval_closing == "last"


def test_configs_and_checkpoints_carry_the_format(tmp_path):
    words = ["net=mlp", "net.hidden=[4]", "data.fraction=0.1", "clients=2", "rounds=1", "engine=inline"]
    start(Config.load(None, words), tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_text().startswith(f"format = {FORMAT}\n")
    (meta,) = (tmp_path / "run" / "checkpoints").glob("*/checkpoint.json")
    assert json.loads(meta.read_text())["format"] == FORMAT


@pytest.mark.parametrize("number", [FORMAT + 1, 0, '"x"', "true"])
def test_a_config_of_a_format_to_come_is_refused(old, number):
    config = old / "config.toml"
    config.write_text(f"format = {number}\n{config.read_text()}")
    for read in (resume, lambda path: Config.load(path / "config.toml")):
        with pytest.raises(FedTailorError, match=f"config.toml' has format .*reads 1 to {FORMAT}: install the version"):
            read(old)
    shown = CliRunner().invoke(app, ["show", str(old)])
    assert shown.exit_code != 0
    assert isinstance(shown.exception, FedTailorError)


def test_a_checkpoint_of_a_format_to_come_is_refused_and_not_taken_for_damage(old):
    file = old / "checkpoints" / "round-000002" / "checkpoint.json"
    meta = {**json.loads(file.read_text()), "format": FORMAT + 1}
    meta.pop("self")
    file.write_text(json.dumps({**meta, "self": _own_sum(meta)}))
    with pytest.raises(FedTailorError, match=f"round-000002' has format {FORMAT + 1}"):
        load_latest(old / "checkpoints")


def test_a_retired_key_is_dropped_with_one_note(old, monkeypatch, caplog):
    monkeypatch.setitem(formats.RETIRED, "turbo", "steps are always fast")
    formats._note.cache_clear()
    file = old.parent / "old.toml"
    file.write_text(f'turbo = "on"\n{(old / "config.toml").read_text()}')
    with caplog.at_level(logging.WARNING, "fedtailor"):
        config = Config.load(file)
        assert Config.load(file, ["turbo=off"]) == config == Config.load(old / "config.toml")
    assert [r.getMessage() for r in caplog.records if "turbo" in r.getMessage()] == [
        "The key 'turbo' is ignored: steps are always fast."
    ]
    assert "turbo" not in config.values()
    with pytest.raises(FedTailorError, match="Unknown key 'turbos'"):
        Config.load(file, ["turbos=off"])


def test_a_deployments_settings_carry_the_format_and_lose_retired_keys(tmp_path, monkeypatch):
    monkeypatch.setitem(formats.RETIRED, "turbo", "steps are always fast")
    settings, config = split({"method": "fedavg", "clients": 2, "port": 7000, "turbo": "on"})
    (tmp_path / "federation.toml").write_text(to_toml(settings, config))
    assert (tmp_path / "federation.toml").read_text().startswith(f"format = {FORMAT}\n")
    assert split(read_toml(tmp_path / "federation.toml")) == (settings, config)
