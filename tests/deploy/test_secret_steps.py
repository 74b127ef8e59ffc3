"""Private steps at a real site: a repeated question gets the same answer, another question another noise, and nothing is spent twice."""

from __future__ import annotations

import stat
from functools import cache
from pathlib import Path

import pytest
import torch

from fedtailor import FedTailorError
from fedtailor.deploy.policy import Policy, asked
from fedtailor.deploy.secret_steps import SecretDraws, Spending
from fedtailor.deploy.site import SiteNode
from fedtailor.deploy.site_folder import SiteFolder
from fedtailor.engines.base import Outcome
from fedtailor.experiment.config import Config

WORDS = ("data=digits", "data.fraction=0.1", "clients=2", "net=mlp", "net.hidden=4", "rounds=2", "batch=20")


@cache
def config() -> Config:
    return Config.load(words=[*WORDS, "method=fedavg", "privacy.sample_epsilon=8"])


@cache
def description() -> dict:
    return config().federation().description.plain()


def node(folder: Path) -> SiteNode:
    folder.mkdir(exist_ok=True)
    values, settings = config().values(), config().settings
    own = {"data": values["data"], "partition": values["partition"], "clients": 2, "partition_seed": settings.seed}
    place = SiteFolder(folder, 1, "one", "", True, Policy.for_run(config()), own)
    return SiteNode.open(place, "test", asked(config()))


def fitted(site: SiteNode, value: float, round: int = 1) -> Outcome:
    call = {"work": "fit", "round": round, "step": 0, "oldest": 0, "description": description()}
    return site.serve(call, {"model": torch.full((64 * 4 + 4 + 4 * 10 + 10,), value)})


def test_the_same_question_has_the_same_answer_and_another_one_other_noise(tmp_path: Path) -> None:
    first, again = fitted(node(tmp_path), 0.01), fitted(node(tmp_path), 0.01)
    assert torch.equal(first.up["model"], again.up["model"])
    assert first.logged == again.logged
    moved = [fitted(node(tmp_path), value).up["model"] - value for value in (0.01, 0.01 + 1e-6)]
    assert (moved[0] - moved[1]).norm() > 0.5 * moved[
        0
    ].norm()  # had the noise been the same, next to nothing would be left
    assert not torch.equal(first.up["model"], fitted(node(tmp_path / "other"), 0.01).up["model"])


def test_a_server_that_asks_again_and_again_spends_the_sites_budget(tmp_path: Path) -> None:
    spent = [fitted(node(tmp_path), value).logged["sample_epsilon"] for value in (0.01, 0.02)]
    assert 0 < spent[0] < spent[1] <= 8
    assert torch.equal(
        fitted(node(tmp_path), 0.03).up["model"], torch.full((310,), 0.03)
    )  # nothing is left to train with
    assert fitted(node(tmp_path), 0.01).logged["sample_epsilon"] == pytest.approx(spent[1])


def test_the_secret_is_the_users_own(tmp_path: Path) -> None:
    spending = Spending.open(tmp_path / "state")
    key = tmp_path / "state" / "noise.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert Spending.open(tmp_path / "state").secret == spending.secret != Spending.open(tmp_path / "else").secret
    key.chmod(0o644)
    with pytest.raises(FedTailorError, match="chmod 600"):
        Spending.open(tmp_path / "state")


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    Spending.open(tmp_path).spend("1 a", 3)
    assert Spending.open(tmp_path).elsewhere("1 b") == 3
    (tmp_path / "private_steps.json").write_text("[")
    with pytest.raises(FedTailorError, match="damaged"):
        Spending.open(tmp_path)


def test_secret_draws_are_uniform_and_normal() -> None:
    draws = SecretDraws(b"key")
    u, z = draws.uniform(100_000), draws.normal(100_000, torch.float64)
    assert abs(u.mean() - 0.5) < 4 * (1 / 12 / 1e5) ** 0.5
    assert abs(z.std() - 1) < 4 / (2e5) ** 0.5
    assert abs(z.mean()) < 4 / 1e5**0.5
    assert not torch.equal(u, draws.uniform(100_000))
