"""Write docs/results/advice.md: how good the advice of `fedtailor recommend` is, on federations that it knows nothing of.

    FEDTAILOR_DATA=… python -m bench.advice run runs/advice [SETTING …]
    python -m bench.advice page runs/advice --page docs/results/advice.md

The advice is made of trials on the federation itself and of no result of another one, so each setting is a data set left out. Afterwards,
every candidate runs on all training samples with the settings that the advice found for it, and is scored on test samples.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.api.recommend import ALONE, CANDIDATES, WORTH, advise
from fedtailor.experiment.config import Config, overridden
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.run import simulation_of
from fedtailor.files import replace_text
from fedtailor.tuning.space import replaced
from fedtailor.tuning.trials import best_trial, read_trials
from fedtailor.tuning.tune import TUNING

MINUTES = 2.0
SEEDS = (21, 22, 23)
RUN = "rounds=15 engine=inline eval_every=15"
DIGITS = f"data=digits clients=10 net=mlp batch=20 {RUN}"
FASHION = f"data=fashion-mnist data.fraction=0.06 clients=10 partition.test_share=0.5 net=mlp batch=20 {RUN}"
TABLE = f"net=mlp net.hidden=[32] batch=20 {RUN}"
SETTINGS = {
    "digits, alike": f"{DIGITS} partition=iid",
    "digits, Dirichlet 0.1": f"{DIGITS} partition.beta=0.1",
    "digits, two classes": f"{DIGITS} partition=pathological",
    "Fashion-MNIST, alike": f"{FASHION} partition=iid",
    "Fashion-MNIST, Dirichlet 0.1": f"{FASHION} partition.beta=0.1",
    "Fashion-MNIST, Dirichlet 1": f"{FASHION} partition.beta=1",
    "Fashion-MNIST, two classes": f"{FASHION} partition=pathological",
    "HAR": f"data=har data.fraction=0.2 {TABLE}",
    "heart": f"data=heart {TABLE}",
    "Lending Club": "data=table data.path=natural/lending_club.csv data.client=addr_state data.label=Class data.task=binary "
    f"metrics=auroc select_by=auroc {TABLE}",
    "A-level chemistry": "data=table data.path=natural/chem97.csv data.client=lea data.label=score data.task=regression "
    f"data.features=gender,age,gcsescore {TABLE}",
}


def run(folder: Path, names: list[str]) -> None:
    for name in names:
        place = folder / name.replace(",", "").replace(" ", "-")
        file = place / "checked.json"
        if file.exists():
            continue
        values = overridden(None, SETTINGS[name].split())
        advice = advise(values, CANDIDATES, MINUTES, place, callbacks=[])
        tested = {}
        for method in advice.scores:
            trials = read_trials(place / TUNING / method)
            config = replaced(Config.from_values({**values, "method": method}), best_trial(trials).values)
            tested[method] = [_tested(config, seed) for seed in SEEDS]
        found = {
            "verdict": advice.verdict,
            "method": advice.method,
            "gain": [advice.over_alone.mean, advice.over_alone.low, advice.over_alone.high],
            "metric": advice.metric.name,
            "tested": tested,
            "minutes": advice.minutes,
            "trials": advice.trials,
        }
        replace_text(file, json.dumps(found, indent=1))
        print(f"{time.strftime('%H:%M')} {name}: {found['verdict']}, {found['method']}", flush=True)


def _tested(config: Config, seed: int) -> float:
    """The mean over clients on test samples, of a run with the same partition and another seed of everything else."""
    settings = replace(config.settings, seed=seed, partition_seed=config.settings.seed)
    with simulation_of(replace(config, settings=settings)) as simulation:
        last = simulation.run().metrics[-1]
        return float(last[f"{simulation.worker.metrics[0].name}_mean"])


def page(found: Mapping[str, Any]) -> str:
    rows, regrets, alone, caught = [], [], 0, 0
    for name, one in found.items():
        metric = Headline(one["metric"])
        sign = -1 if metric.lower_is_better else 1
        means = {method: sign * float(np.mean(values)) for method, values in one["tested"].items()}
        chosen = ALONE if one["verdict"] == "alone" else one["method"]
        best = max(means, key=lambda method: means[method])
        unit = metric.scale if metric.unit else 100 / abs(means[ALONE])  # of other metrics, percent of what alone has
        regret = unit * (means[best] - means[chosen])
        gain = unit * (max(v for m, v in means.items() if m != ALONE) - means[ALONE])
        worthless = gain < 100 * WORTH
        alone, caught = alone + worthless, caught + (worthless and one["verdict"] == "alone")
        regrets.append(regret)
        advised = unit * one["gain"][0]
        rows.append(
            f"| {name} | {one['verdict']} | {chosen} | {advised:+.1f} [{unit * one['gain'][1]:.1f}, {unit * one['gain'][2]:.1f}] | "
            f"{unit * (means[one['method']] - means[ALONE]):+.1f} | {best} | {regret:.1f} | {'yes' if worthless else 'no'} | "
            f"{one['minutes']:.1f} |"
        )
    names = ", ".join(f"`{method}`" for method in CANDIDATES)
    return f"""# How good the advice is

Written by `python -m bench.advice` from the numbers of its runs. `fedtailor recommend` gets {MINUTES:g} minutes for each of these
federations, and knows no result of another. Then every candidate ({names}) runs with the settings that
were found for it, on all training samples with {len(SEEDS)} new seeds, and is scored on test samples, which had no say in the advice.
Regret is how much better the best of them is than what was advised, in points of the mean over clients (percent of what clients reach
alone, where the metric is not a share). Training alone is as good where no candidate gains {100 * WORTH:g} points on test samples.

**Mean regret {np.mean(regrets):.2f} points, the largest {max(regrets):.2f}. Of {alone} federations in which training alone is as good,
{caught} were advised not to federate.**

| federation | advice | method | predicted gain | gain on test samples | best on test samples | regret | alone is as good | minutes |
|---|---|---|---:|---:|---|---:|---|---:|
{chr(10).join(rows)}

Predicted gain: that of the best federated candidate over training alone, with its 95 % interval over clients; beside it, the same
method's gain on test samples. Minutes were measured while other work ran on the machine.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", nargs="*", help=f"of {', '.join(SETTINGS)} (default: all)")
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.what == "run":
        run(given.folder, given.settings or list(SETTINGS))
        return
    files = {name: given.folder / name.replace(",", "").replace(" ", "-") / "checked.json" for name in SETTINGS}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    if given.page:
        replace_text(given.page, page(found))


if __name__ == "__main__":
    main()
