"""Measure tailor, tailor without each of its parts, and rivals on the settings that it was designed on.

    FEDTAILOR_DATA=… python -m bench.tailor runs/tailor                                  # what is missing, then docs/results/tailor.json
    FEDTAILOR_DATA=… python -m bench.tailor runs/tailor --settings har --variants "tailor;local" --seeds 1
    FEDTAILOR_DATA=… python -m bench.tailor runs/tailor --cost cifar10-0.1                # seconds of CPU against FedAvg's
    python -m bench.tailor runs/tailor --table                                           # the tables of docs/tailor.md, from that file

Each run writes a file of its own below the folder that is given, so the same command goes on after an interruption. Variants that differ
only in what follows the last round share their rounds, whose global model is kept there too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import product
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtailor.experiment.config import Config
from fedtailor.experiment.run import simulation_of
from fedtailor.experiment.simulation import Simulation
from fedtailor.files import replace_text

FILE = Path("docs/results/tailor.json")
SMALL = "clients=20 partition.test_share=0.75 net=lenet batch=20 lr=0.1 rounds=20"
DIRICHLET = "partition=dirichlet partition.beta=0.1"
SETTINGS = {
    "fashion-0.1": f"data=fashion-mnist data.fraction=0.12 {DIRICHLET} {SMALL}",
    "cifar10-0.1": f"data=cifar10 data.fraction=0.14 {DIRICHLET} {SMALL}",
    "cifar10-2": f"data=cifar10 data.fraction=0.14 partition=pathological partition.classes_per_client=2 {SMALL}",
    "cifar100-0.1": f"data=cifar100 data.fraction=0.28 {DIRICHLET} {SMALL}",
    "har-mlp": "data=har net=mlp net.hidden=[32] batch=64 lr=0.1 rounds=10",
    "har": "data=har net=cnn1d batch=20 lr=0.1 rounds=20",
}
MOMENTUM = "server_optimizer=momentum server_momentum=0.85"
VARIANTS = {  # the rounds that a variant shares with others, and its words
    "tailor": ("tailor", "method=tailor"),
    "local": ("", "method=local"),  # with more epochs, see CLOSE
    "fedavg-ft": ("fedavg", "method=fedavg-ft"),
    "fedavg-ft, server momentum": ("fedavgm", f"method=fedavg-ft {MOMENTUM}"),
    "without close": ("tailor", "method=tailor method.close_epochs=0"),
    "without hold": ("fedavgm", "method=tailor method.hold=0"),
    "without prior": ("tailor", "method=tailor method.prior=false"),
    "without momentum": ("still", "method=tailor method.momentum=0"),
    "whole step": ("tailor", "method=tailor method.doubt=0"),
    "close on FedAvg": ("fedavg", "method=tailor method.hold=0 method.momentum=0"),
    "fedrep": ("", "method=fedrep"),
    "fedah": ("", "method=fedah"),
    "fedavg": ("fedavg", "method=fedavg"),
    "with alone": ("tailor", "method=tailor method.alone=30"),
}
CLOSE = 10  # epochs that Local gets on top of the rounds: two more than the close has

Numbers = dict[str, Any]  # of one run: each client's correct and tested samples


def config_of(setting: str, variant: str, seed: int) -> Config:
    given = dict(word.split("=", 1) for word in f"{SETTINGS[setting]} {VARIANTS[variant][1]} seed={seed}".split())
    if variant == "local":
        given["rounds"] = str(int(given["rounds"]) + CLOSE)
    fixed = {"engine": "inline", "threads": "1", "eval_every": given["rounds"]}
    return Config.load(words=[f"{name}={value}" for name, value in {**given, **fixed}.items()])


def measure(out: Path, settings: list[str], variants: list[str], seeds: list[int]) -> None:
    """Carry out the runs that are missing."""
    out.mkdir(parents=True, exist_ok=True)
    for seed, variant, setting in product(seeds, variants, settings):
        file = out / f"{setting}~{variant}~{seed}.json"
        if not file.exists():
            print(file.stem, flush=True)
            shared = VARIANTS[variant][0]
            rounds = out / f"{setting}~{shared}~{seed}.pt" if shared else None
            replace_text(file, json.dumps(run(config_of(setting, variant, seed), rounds)))


def run(config: Config, rounds: Path | None) -> Numbers:
    """Run what a config describes, from the end of rounds that another run kept if there are such."""
    with simulation_of(config) as simulation:
        last = simulation.protocol.rounds
        if rounds is not None and rounds.exists():
            simulation.restore(last, torch.load(rounds), {}, [])
        while not simulation.rounds_done:
            simulation.step()
        if rounds is not None and not rounds.exists():
            torch.save({"model": simulation.server.state["model"]}, rounds)
        simulation.closed = simulation.method.closing_steps
        torch.set_num_threads(1)
        for step in range(1, simulation.closed + 1):  # not by `simulation.step`, which evaluates everyone after each
            simulation.engine.finish(step, simulation.candidates, simulation._send)
        scores = simulation.engine.evaluate(last, simulation.everyone, simulation._send, sync=False)
    return {"correct": [s.correct for s in scores.values()], "total": [s.total for s in scores.values()]}


def cost(out: Path, setting: str, repeats: int = 2) -> None:
    """Seconds of CPU spent in training by FedAvg and tailor, in turn in one process."""
    spent: dict[str, list[float]] = {}
    for _, variant in product(range(repeats), ("fedavg", "tailor")):
        with simulation_of(config_of(setting, variant, 1)) as simulation:
            spent.setdefault(variant, []).append(seconds_of(simulation))
    replace_text(out / f"{setting}.cost", json.dumps(spent))


def seconds_of(simulation: Simulation) -> float:
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            before = time.process_time()
            result = function(*args, **kwargs)
            spent += time.process_time() - before
            return result

        return wrapped

    engine: Any = simulation.engine
    engine.fit, engine.finish = timed(engine.fit), timed(engine.finish)
    simulation.run()
    return spent


def collect(out: Path, file: Path) -> None:
    """Write all numbers below a folder to one file."""
    runs: dict[str, Any] = {}
    for setting, variant, seed in product(SETTINGS, VARIANTS, range(1, 10)):
        found = out / f"{setting}~{variant}~{seed}.json"
        if found.exists():
            runs.setdefault(setting, {}).setdefault(variant, {})[str(seed)] = json.loads(found.read_text())
    costs = {s: json.loads((out / f"{s}.cost").read_text()) for s in SETTINGS if (out / f"{s}.cost").exists()}
    replace_text(file, json.dumps({"runs": runs, "seconds": costs}))


def accuracies(numbers: Numbers) -> np.ndarray:
    return np.array(numbers["correct"]) / np.array(numbers["total"])


def worse_off(ours: Numbers, alone: Numbers) -> tuple[int, int]:
    """Count clients whose accuracy is below that of training alone: at all, and beyond a 95 % interval of the difference (Newcombe's)."""
    below = beyond = 0
    for a, b, n in zip(ours["correct"], alone["correct"], ours["total"], strict=True):
        below += a < b
        (_, high), (low, _) = wilson(a, n), wilson(b, n)
        beyond += (a - b) / n + sqrt((high - a / n) ** 2 + (b / n - low) ** 2) < 0
    return below, beyond


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    centre, half = hits + z * z / 2, z * sqrt(hits * (n - hits) / n + z * z / 4)
    return (centre - half) / (n + z * z), (centre + half) / (n + z * z)


def table(found: dict[str, Any]) -> Iterator[str]:
    runs = found["runs"]
    columns = [
        (setting, seed)
        for setting in SETTINGS
        for seed in ("1", "2")
        if runs.get(setting, {}).get("tailor", {}).get(seed)
    ]
    yield "| | " + " | ".join(f"{setting} s{seed}" for setting, seed in columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    for variant in VARIANTS:
        cells = [runs[setting].get(variant, {}).get(seed) for setting, seed in columns]
        if any(cells):
            yield f"| {variant} | " + " | ".join(_cell(accuracies(c)) if c else "" for c in cells) + " |"
    yield "\n| clients worse off than alone | raw | beyond a 95 % interval | of |\n|---|---:|---:|---:|"
    for variant in VARIANTS:
        pairs = [
            (runs[s][variant][seed], runs[s]["local"][seed])
            for s in runs
            for seed in runs[s].get(variant, {})
            if seed in runs[s].get("local", {})
        ]
        if pairs and variant != "local":
            counts = np.sum([worse_off(*pair) for pair in pairs], axis=0)
            yield f"| {variant} | {counts[0]} | {counts[1]} | {sum(len(ours['total']) for ours, _ in pairs)} |"
    for setting, spent in found["seconds"].items():
        yield f"\nSeconds of CPU in training on {setting}: " + ", ".join(
            f"{name} {np.mean(s):.1f} ({np.mean(s) / np.mean(spent['fedavg']):.2f} × FedAvg)"
            for name, s in spent.items()
        )


def _cell(each: np.ndarray) -> str:
    worst = np.sort(each)[: ceil(len(each) / 10)]
    return f"{100 * each.mean():.1f}/{100 * worst.mean():.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("--settings", type=lambda s: s.split(","), default=list(SETTINGS))
    parser.add_argument("--variants", type=lambda s: s.split(";"), default=list(VARIANTS), help="separated by ;")
    parser.add_argument("--seeds", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2])
    parser.add_argument("--cost", metavar="SETTING", help="measure seconds of CPU on this setting instead")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--table", action="store_true", help="print the tables, and run nothing")
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(table(json.loads(asked.file.read_text()))))
        return
    if asked.cost:
        cost(asked.out, asked.cost)
    else:
        measure(asked.out, asked.settings, asked.variants, asked.seeds)
    collect(asked.out, asked.file)


if __name__ == "__main__":
    main()
