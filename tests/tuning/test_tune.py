from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedtailor as ft
from fedtailor.learning import Client, Payload
from fedtailor.methods.base import Method, methods
from fedtailor.registry import among, between, log_between, option, options
from fedtailor.tuning.trials import Trial, best_trial, read_trials
from fedtailor.tuning.tune import Tuned

QUICK = {"rounds": 2, "callbacks": []}


class Constant(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), 1)


@pytest.fixture
def constant():
    """A method that learns nothing and predicts its option."""

    @methods.register("constant")
    @dataclass(frozen=True)
    class Predict(Method):
        c: float = option(0.9, "what is predicted", search=between(0, 1))

        def fit(self, client: Client, payload: Payload) -> Payload:
            return {}

        def personal(self, client: Client, payload: Payload) -> nn.Module:
            return Constant(self.c)

    yield Predict
    del methods.classes["constant"], methods.aliases["constant"]


def targets(train: float, test: float, clients: int = 3, samples: int = 20) -> ft.Federation:
    """A regression in which every target is one number, another one in the test samples."""
    x = np.ones((samples, 2), np.float32)
    of = [np.full(samples, value, np.float32) for value in (train, test)]
    return ft.Federation.from_clients([(x, of[0], x, of[1])] * clients, task="regression")


def without_seconds(trials: Sequence[Trial]) -> list[dict]:
    return [trial.model_dump(exclude={"seconds"}) for trial in trials]


def tuned(federation: ft.Federation, method: str, out, **options) -> Tuned:
    return ft.tune(federation, method, out=out, **{**QUICK, **options})[method]


def test_a_planted_optimum_is_found_with_the_budget(tmp_path, constant):
    found = tuned(targets(0.37, 0.37), "constant", tmp_path, budget=25, lr=0.1, optimizer="sgd")
    assert list(found.values) == ["method.c"]
    assert found.values["method.c"] == pytest.approx(0.37, abs=0.06)
    assert found.trials[0].values == {"method.c": 0.9}  # the default comes first
    assert found.best.score == pytest.approx(abs(found.values["method.c"] - 0.37), abs=1e-6)  # RMSE, lower is better


def test_test_samples_have_no_say(tmp_path, constant):
    found = tuned(targets(0.0, 1.0), "constant", tmp_path, budget=12, lr=0.1, optimizer="sgd")
    assert found.values["method.c"] < 0.15
    assert found.best.test is not None
    assert found.best.test > 0.85
    tempting = min(trial.best_test for trial in found.trials)
    assert tempting < 0.2  # what a search that looks at test samples would have ended with


def test_the_same_seed_makes_the_same_trials_and_another_makes_others(tmp_path, federation):
    one, two = (tuned(federation, "fedrep", tmp_path / name, budget=6, seed=3) for name in "ab")
    other = tuned(federation, "fedrep", tmp_path / "c", budget=6, seed=4)
    assert without_seconds(one.trials) == without_seconds(two.trials)
    assert [t.drawn for t in one.trials[1:]] != [t.drawn for t in other.trials[1:]]


def test_a_search_that_was_killed_ends_with_the_same_choice(tmp_path, federation):
    whole = tuned(federation, "ditto", tmp_path / "whole", budget=7)
    runs = 0

    class Kill(ft.Callback):
        def on_round(self, simulation, record):
            nonlocal runs
            runs += record["round"] == 1
            if runs == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(federation, "ditto", tmp_path / "killed", budget=7, callbacks=[Kill()])
    assert len(read_trials(tmp_path / "killed" / "ditto")) == 3
    again = tuned(federation, "ditto", tmp_path / "killed", budget=7)
    assert without_seconds(again.trials) == without_seconds(whole.trials)
    assert again.values == whole.values


def test_a_larger_budget_goes_on_and_a_smaller_one_looks_at_the_first_trials(tmp_path, federation):
    three = tuned(federation, "fedavg", tmp_path, budget=3)
    five = tuned(federation, "fedavg", tmp_path, budget=5)
    assert five.trials[:3] == three.trials  # with their seconds: they were not run again
    assert tuned(federation, "fedavg", tmp_path, budget=2).trials == five.trials[:2]


def test_all_methods_get_the_same_number_of_trials(tmp_path, federation):
    found = ft.tune(federation, ["local", "fedavg-ft", ft.Ditto(lam=0.5)], budget=3, out=tmp_path, **QUICK)
    assert {name: len(one.trials) for name, one in found.items()} == {"local": 3, "fedavg-ft": 3, "ditto-lam-0.5": 3}
    assert found["local"].space.keys() == {"lr", "optimizer"}  # its server does nothing
    assert found["fedavg-ft"].space.keys() == {"lr", "optimizer", "server_optimizer", "method.ft_epochs"}
    assert found["ditto-lam-0.5"].space.keys() == {"lr", "optimizer", "server_optimizer"}  # lam is given


def test_what_is_given_is_not_searched(tmp_path, federation):
    found = tuned(federation, "fedrep", tmp_path, budget=3, lr=0.05)  # even if it is the default
    assert "lr" not in found.space
    with pytest.raises(ft.FedTailorError, match="Nothing is left to tune for 'local'"):
        tuned(federation, "local", tmp_path / "b", budget=3, lr=0.1, optimizer="sgd")


def test_a_folder_with_other_trials_is_refused(tmp_path, federation):
    tuned(federation, "fedrep", tmp_path, budget=1)
    with pytest.raises(ft.FedTailorError, match=r"holds trials with other settings \(rounds\)"):
        tuned(federation, "fedrep", tmp_path, budget=1, rounds=3)
    with pytest.raises(ft.FedTailorError, match=r"holds trials with other settings \(lr\)"):
        tuned(federation, "fedrep", tmp_path, budget=1, lr=0.05)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "cannot be read"), ('{"number": 0}', "cannot be read"), (None, "is that of trial 1")],
)
def test_a_damaged_trial_is_named(tmp_path, federation, text, words):
    tuned(federation, "fedrep", tmp_path, budget=2)
    file = tmp_path / "fedrep" / "trial-000.json"
    file.write_text((tmp_path / "fedrep" / "trial-001.json").read_text() if text is None else text)
    with pytest.raises(ft.FedTailorError, match=f"trial-000.json' {words}"):
        tuned(federation, "fedrep", tmp_path, budget=2)


def test_no_trial_with_a_score_is_told():
    lost = Trial(number=0, drawn={}, values={}, state="failed", metric="accuracy", rounds={})
    with pytest.raises(ft.FedTailorError, match="None of 1 trials has a score"):
        best_trial([lost])


def test_ties_go_to_the_lower_loss():
    trials = [
        Trial(number=k, drawn={}, values={}, state="complete", metric="accuracy", rounds={}, score=0.5, loss=loss)
        for k, loss in enumerate((0.7, 0.6, 0.65))
    ]
    assert best_trial(trials).number == 1


def test_a_trial_that_is_worse_than_the_median_is_pruned_but_not_before_closing_steps(tmp_path, federation):
    spoiled = {"budget": 9, "rounds": 6, "seed": 1}
    states = {
        name: [trial.state for trial in tuned(federation, name, tmp_path / name, **spoiled).trials]
        for name in ("fedavg", "fedavg-ft")
    }
    assert "pruned" in states["fedavg"][4:]
    assert set(states["fedavg"][:4]) == {"complete"}
    assert set(states["fedavg-ft"]) == {"complete"}


def test_learning_rates_of_adam_are_smaller(tmp_path, federation):
    found = tuned(federation, "fedavg", tmp_path, budget=4, optimizer="adam")
    assert all(trial.values["lr"] == pytest.approx(0.02 * trial.drawn["lr"], rel=0.01) for trial in found.trials)


def test_the_defaults_of_all_methods_are_in_their_search_spaces():
    for cls in (ft.Protocol, *methods.classes.values()):
        for one in options(cls):
            assert one.search is None or one.default in one.search, (cls, one.name)


def test_search_spaces_are_told_in_words():
    assert str(among(1, 5)) == "1, 5"
    assert str(log_between(0.001, 0.1)) == "0.001 to 0.1 (log scale)"
    assert str(between(0, 1)) == "0 to 1"


def test_a_comparison_runs_what_tuning_chose_on_all_training_samples(tmp_path, federation):
    study = ft.compare(federation, ["local", "fedrep"], seeds=2, tune=3, out=tmp_path, **QUICK)
    chosen = tuned(federation, "fedrep", tmp_path / "tuning", budget=3)
    assert [run.path.name for run in study] == ["local-s0", "local-s1", "fedrep-s0", "fedrep-s1"]
    for name in ("fedrep-s0", "fedrep-s1"):
        config = study[name].config
        assert config.settings.lr == chosen.values["lr"]
        assert config.method.head_epochs == chosen.values["method.head_epochs"]
        assert config.settings.validation == 0
    page = study.report().read_text()
    assert "Tuning of" in page
    assert "best test round" in page
