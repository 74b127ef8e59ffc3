"""Write docs/results/judge.md: methods tuned with the same budget, then compared with new seeds, on settings that none was designed with.

    FEDTAILOR_DATA=… python -m bench.judge run runs/judge                    # all settings; hours
    FEDTAILOR_DATA=… python -m bench.judge run runs/judge har heart          # only some of them
    python -m bench.judge page runs/judge --page docs/results/judge.md --json docs/results/judge.json

Each setting has a folder of its own, which `fedtailor report` reads; the same command goes on after an interruption. The page is made of
judge.json, which has the score of every client in every run. What it has of settings and methods whose folders are gone stays in it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.analysis.intervals import Interval, wilson
from fedtailor.analysis.ranking import ranking
from fedtailor.analysis.results import read_results
from fedtailor.api.plan import plan
from fedtailor.api.tune import tune_all
from fedtailor.experiment.config import Config, overridden
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.run import carry_out
from fedtailor.files import replace_text
from fedtailor.methods import methods as registered
from fedtailor.report.pictures import panels, save
from fedtailor.report.ranks import ranks_chart, ranks_sheet
from fedtailor.report.sheets import Best, Sheet, as_markdown
from fedtailor.report.tuning import read_tuning, sensitivity_picture, settings
from fedtailor.tuning.trials import Trial, best_trial
from fedtailor.tuning.tune import TUNING

METHODS = ("local", "fedavg-ft", "fedrep", "pfedfda", "fedah", "pgfedsplit", "fedala", "tailor")
BUDGET = 12
SEEDS = (10, 11, 12, 13, 14)
ROUNDS = 20
LOCAL, OWN = "local", "tailor"
RUN = "eval_every=4 engine=inline save_models=false checkpoint_every=0"
IMAGES = f"clients=20 partition.test_share=0.75 net=lenet rounds={ROUNDS} batch=20 {RUN}"
TABLES = f"net=mlp net.hidden=[32] rounds={ROUNDS} batch=20 {RUN}"
SIZES = {
    "fashion-mnist": 0.12,
    "cifar10": 0.14,
    "cifar100": 0.14,
}  # share of the samples: 2,100 to train with, 6,300 to test on


@dataclass(frozen=True)
class Setting:
    title: str
    words: str
    metric: str = "accuracy"

    @property
    def headline(self) -> Headline:
        return Headline(self.metric)


def _images(data: str, partition: str, title: str) -> Setting:
    return Setting(f"{data}, {title}", f"data={data} data.fraction={SIZES[data]} {partition} {IMAGES}")


SETTINGS = {
    **{f"{d}-dirichlet": _images(d, "partition=dirichlet partition.beta=0.3", "Dirichlet 0.3") for d in SIZES},
    **{
        f"{d}-classes": _images(d, "partition=pathological partition.classes_per_client=5", "five classes per client")
        for d in SIZES
    },
    "har": Setting("UCI HAR, 30 people, a third of their samples", f"data=har data.fraction=0.3 {TABLES}"),
    "heart": Setting("heart disease, four hospitals", f"data=heart {TABLES}"),
    "lending": Setting(
        "Lending Club, 50 states, one loan in seven is bad",
        "data=table data.path=natural/lending_club.csv data.client=addr_state data.label=Class data.task=binary "
        f"metrics=auroc select_by=auroc {TABLES}",
        "auroc",
    ),
}


def run(folder: Path, names: Sequence[str], methods: Sequence[str], budget: int) -> None:
    """Tune and run the methods in each setting, as `fedtailor compare --tune` does, but without pictures."""
    for name in names:
        values, place = overridden(None, SETTINGS[name].words.split()), folder / name
        kind = Config.from_values(values).federation().task.kind
        able = [method for method in methods if kind in registered.find(method).tasks]

        def on_trial(method: str, trial: Trial, best: Trial | None, name: str = name) -> None:
            print(f"{time.strftime('%H:%M')} {name}: {method}, trial {trial.number + 1}: {trial.score}", flush=True)

        tuned = tune_all({**values, "seed": SEEDS[0]}, able, budget, place / TUNING, callbacks=[], on_trial=on_trial)
        chosen = {method: found.values for method, found in tuned.items()}
        for path, config in plan(values, able, SEEDS, place, chosen).items():
            carry_out(config, path)
        print(f"{time.strftime('%H:%M')} {name}: done", flush=True)


def collect(folder: Path) -> dict[str, Any]:
    """Return the numbers of all settings that are there: every client's score, best test rounds, settings and seconds."""
    found: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if not any((folder / name).glob("*-s*/config.toml")):
            continue
        by_method: dict[str, Any] = {}
        trials = read_tuning(folder / name / TUNING)
        for result in read_results(folder / name):
            if not result.finished:
                continue
            own = by_method.setdefault(result.method, {"runs": [], **_tuning(trials[result.method])})
            own["runs"].append(
                {
                    "seed": result.seed,
                    "clients": [float(f"{v:.6g}") if np.isfinite(v) else None for v in result.clients()],
                    "samples": [int(count) for count in np.nan_to_num(result.samples("test"))],
                    "best_round": max(setting.headline.of(r, "mean") for r in result.evaluated),
                    "seconds": round(result.seconds, 1),
                }
            )
        found[name] = {method: own for method, own in by_method.items() if len(own["runs"]) == len(SEEDS)}
    return found


def merged(path: Path, fresh: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a judge.json with those just collected in place of older ones of the same setting and method."""
    old = json.loads(path.read_text())
    both = {name: {**old.get(name, {}), **fresh.get(name, {})} for name in SETTINGS}
    return {name: methods for name, methods in both.items() if methods}


def _tuning(trials: Sequence[Trial]) -> dict[str, Any]:
    return {
        "trials": len(trials),
        "chosen": settings(best_trial(trials)),
        "tuning_seconds": round(sum(trial.seconds for trial in trials), 1),
    }


# -- the page -------------------------------------------------------------------------------------------------------------------


def mean_and_decile(clients: np.ndarray) -> tuple[float, float]:
    """Return the mean over clients, and over the tenth of them that fare worst."""
    known = np.sort(clients[np.isfinite(clients)])
    return float(known.mean()), float(known[: -(-len(known) // 10)].mean())


def setting_sheet(setting: Setting, methods: Mapping[str, Any]) -> Sheet:
    """One row per method, the best first."""
    head = setting.headline
    rows: dict[str, list[np.ndarray]] = {}
    losing: dict[str, str] = {}
    alone = _by_seed(methods.get(LOCAL, {"runs": []})["runs"])
    for name, found in methods.items():
        scores = np.array([mean_and_decile(_clients(run)) for run in found["runs"]])
        best = np.array([run["best_round"] for run in found["runs"]])
        lost = worse_off(setting, found["runs"], alone)
        losing[name] = "—" if name == LOCAL else lost
        rows[name] = [scores[:, 0], scores[:, 1], best, np.array([run["seconds"] for run in found["runs"]])]
    order = sorted(rows, key=lambda name: -rows[name][0].mean())
    tops = [max(rows[name][k].mean() for name in rows) for k in range(2)]
    lines = []
    for name in order:
        mean, worst, best, seconds = rows[name]
        cells = [Best(head.written(v)) if v.mean() == tops[k] else head.written(v) for k, v in enumerate((mean, worst))]
        lines.append((name, *cells, losing[name], head.written(best), f"{seconds.mean():.1f}", methods[name]["chosen"]))
    percent = " in percent" if head.unit else ""
    header = (
        "method",
        f"{head.title} (mean of clients{percent})",
        "worst decile",
        "worse off than alone",
        "best test round",
        "seconds",
        "chosen settings",
    )
    return Sheet(setting.title, header, lines)


def worse_off(setting: Setting, runs: Sequence[Mapping[str, Any]], alone: Mapping[int, Mapping[str, Any]]) -> str:
    """Say how many clients are worse off than alone, all seeds together and, in brackets, how many beyond chance (Newcombe, 95 %)."""
    lost, surely, count = 0, 0, 0
    for run in runs:
        if run["seed"] not in alone:
            return "—"
        own, base = _estimate(run), _estimate(alone[run["seed"]])
        gap = own - base
        known = np.isfinite(gap.values)
        lost, count = lost + int((gap.values[known] < 0).sum()), count + int(known.sum())
        surely += int((gap.high[known] < 0).sum())
    sure = f" ({100 * surely / count:.1f} %)" if setting.metric == "accuracy" else ""
    return f"{100 * lost / count:.0f} %{sure}"


def _estimate(run: Mapping[str, Any]) -> Interval:
    values = _clients(run)
    return Interval(values, *wilson(values, np.array(run["samples"], dtype=float)))


def _by_seed(runs: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {run["seed"]: run for run in runs}


def _clients(run: Mapping[str, Any]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in run["clients"]])


def whole_ranking(found: Mapping[str, Any]) -> Any:
    """Rank the judge's methods over the settings that all of them can do, and their seeds; methods beside these ran in some only."""
    judged = set(METHODS) & set().union(*found.values())
    blocks = {}
    for name, methods in found.items():
        for seed in SEEDS if judged <= methods.keys() else ():
            block = {m: _clients(run) for m in judged for run in methods[m]["runs"] if run["seed"] == seed}
            if block:
                known = np.isfinite(np.stack(list(block.values()))).all(axis=0)
                blocks[name, seed] = {m: values[known] for m, values in block.items()}
    return ranking(blocks)


def verdict(found: Mapping[str, Any]) -> str:
    """Say in how many settings tailor leads, and how far it is behind where it does not."""
    lines = []
    leads = {"mean": 0, "worst decile": 0}
    for name, methods in found.items():
        if OWN not in methods:
            continue
        gaps = []
        for k, what in enumerate(leads):
            scores = {
                m: np.mean([mean_and_decile(_clients(run))[k] for run in own["runs"]]) for m, own in methods.items()
            }
            rival = max((s for m, s in scores.items() if m != OWN), default=np.nan)
            leads[what] += bool(scores[OWN] >= rival)
            gaps.append(f"{what} {100 * (scores[OWN] - rival):+.1f}")
        lost = worse_off(SETTINGS[name], methods[OWN]["runs"], _by_seed(methods[LOCAL]["runs"]))
        lines.append(f"- {SETTINGS[name].title}: {', '.join(gaps)}; worse off than alone: {lost}")
    count = len(lines)
    lead = f"`{OWN}` has the best mean in {leads['mean']} of {count} settings and the best worst decile in {leads['worst decile']}."
    return "\n".join([lead, "Its distance to the best of the others, in points:", "", *lines])


def page(found: Mapping[str, Any]) -> str:
    sheets = {name: as_markdown(setting_sheet(SETTINGS[name], methods), 2) for name, methods in found.items()}
    commands = {name: f"`fedtailor compare {' '.join(METHODS)} {_shown(name)}`\n" for name in found}
    hours = sum(
        own["tuning_seconds"] + sum(run["seconds"] for run in own["runs"])
        for methods in found.values()
        for own in methods.values()
    )
    ranks = whole_ranking(found)
    ranked = (
        [as_markdown(ranks_sheet(ranks, "Ranks over the settings that all methods can do"), 2), "![ranks](judge.png)\n"]
        if ranks
        else []
    )
    left = [setting.title for name, setting in SETTINGS.items() if name not in found]
    missing = f"Not run yet: {'; '.join(left)}. " if left else ""
    known = "HAR was among the settings that `tailor` was designed with." if "har" in found else ""
    head = f"""# The fair judge

Written by `python -m bench.judge` from docs/results/judge.json. Each method gets {BUDGET} trials per setting to find its learning rate,
optimizer, server optimizer (none or momentum) and own options. They are chosen on validation samples, a fifth of each client's training
samples, with seed {SEEDS[0]}. Then it runs with seeds {SEEDS[0]} to {SEEDS[-1]} on all training samples; ± is the standard deviation over
seeds. {ROUNDS} rounds of one epoch; the numbers are those of the last models. “Best test round” is what those report who take the best
of the evaluated rounds on test samples: it is not a result, but shows how much that habit adds. “Worse off than alone” are clients
below `local` with the same seed; in brackets those below it by more than chance (Newcombe's 95 % interval over test samples). All of
it took {hours / 3600:.1f} hours of one core, while other work ran beside it.
Methods that need more than two classes are left out of the binary tasks. `{OWN}`'s n₀ (`doubt`) joined its search space after it had run on
Fashion-MNIST, heart disease and Lending Club; where it is among the chosen settings, `{OWN}` was run again with it, the others were not.
{missing}{known}

{verdict(found)}
"""
    return "\n".join([head, *ranked, *(f"{sheets[name]}\n{commands[name]}" for name in found)])


def _shown(name: str) -> str:
    return shlex.join([*SETTINGS[name].words.split(), "--tune", str(BUDGET), "--seeds", ",".join(map(str, SEEDS))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", nargs="*", choices=[*SETTINGS, []], help="default: all")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.what == "run":
        run(given.folder, given.settings or list(SETTINGS), given.methods.split(","), given.budget)
        return
    fresh = collect(given.folder)
    found = merged(given.json, fresh) if given.json and given.json.exists() else fresh
    found = {name: methods for name, methods in found.items() if {LOCAL, OWN} <= methods.keys()}  # others are under way
    if given.json:
        replace_text(given.json, json.dumps(found, indent=None, separators=(",", ":")) + "\n")
    if given.page:
        replace_text(given.page, page(found))
        ranks = whole_ranking(found)
        if ranks:
            save(panels([ranks_chart(ranks)], size=(7, 3.6)), given.page.with_suffix(".png"))
        for name in fresh:
            sensitivity_picture(read_tuning(given.folder / name / TUNING), given.folder / name / "sensitivity.png")


if __name__ == "__main__":
    main()
