"""Small clients side by side: `engine=stacked` against one client after the other, in turns in one run.

    python -m bench.stacked --json docs/results/stacked.json --page docs/performance.md      # all jobs, on one core and on two
    python -m bench.stacked --jobs table --workers 1 --turns 2    # a quick look
    python -m bench.stacked --memory                              # the largest memory of 10,000 clients

The jobs: `table` has 500 clients of 60 rows and 13 features, an MLP 13-64-2, batch 10 and five epochs; `digits` the embedded digits at 20
clients, with an MLP and five epochs; `heart` the four hospitals, with defaults; `chem97` the 131 education authorities of `bench.natural`
as it runs them (with FEDTAILOR_DATA). A round is training, aggregation and evaluation; `steps` is the clients' training alone, the part
that is stacked. The engines take turns, and the median of the ratios is what to compare.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from bench.natural import STUDIES
from fedtailor import Config, Federation, Simulation
from fedtailor.engines import stack
from fedtailor.learning.protocol import Protocol
from fedtailor.learning.requests import Training
from fedtailor.learning.stacked import train
from fedtailor.methods import methods
from fedtailor.nets.architecture import Architecture
from fedtailor.nets.mlp import MLP

METHODS = ("fedavg", "fedrep", "ditto", "pgfedsplit", "fedah")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--jobs", default="table,digits,heart,chem97")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--page", type=Path, help="put the table into this page")
    parser.add_argument("--memory", action="store_true", help="measure memory only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        print(f"10,000 clients: at most {memory(10_000):,.0f} MB")
        return
    rows = []
    for name in args.jobs.split(","):
        job = job_of(name)
        for workers in map(int, args.workers.split(",")):
            for method in args.methods.split(","):
                if job.federation.task.kind not in methods.find(method).tasks:
                    continue
                row = {"job": name, "workers": workers, "method": method}
                row |= in_turns(job, method, workers, args.turns)
                rows.append(row)
                print(" ".join(f"{name} {_short(value)}" for name, value in row.items()), flush=True)
    found = {"turns": args.turns, "rows": rows}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.page:
        write_page(args.page, "stacked", as_table(found))


def write_page(page: Path, name: str, table: str) -> None:
    """Put a table where the page has a place of this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text().partition(begin)
    after = rest.partition(end)[2]
    page.write_text(before + begin + "\n" + table + end + after)


def as_table(found: dict[str, Any]) -> str:
    """Markdown: a line for each job, number of cores and method."""
    lines = [
        "| job | cores | method | one by one, s per round | stacked, s per round | ratio | of the steps alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        steps = f"{row['ratio_of_steps']:.1f}" if "ratio_of_steps" in row else ""
        lines.append(
            f"| {row['job']} | {row['workers']} | {row['method']} | {row['one_by_one']:.3f} | {row['stacked']:.3f} | "
            f"{row['ratio']:.1f} | {steps} |"
        )
    return "\n".join(lines) + "\n"


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def small_clients(clients: int, rows: int = 60, features: int = 13) -> Federation:
    """Clients whose labels follow a rule of their own, near to a common one."""
    generator = np.random.default_rng(0)
    common = generator.normal(size=features)
    parts = []
    for _ in range(clients):
        x = generator.normal(size=(rows, features)).astype(np.float32)
        own = common + 0.5 * generator.normal(size=features)
        parts.append((x, (x @ own > 0).astype(int)))
    return Federation.from_clients(parts)


@dataclass(frozen=True)
class Job:
    federation: Federation
    net: Architecture | None
    settings: Protocol

    def run(self, method: str, engine: str, workers: int, rounds: int) -> Simulation:
        protocol = replace(self.settings, rounds=rounds, eval_every=1)
        return Simulation(self.federation, method, self.net, engine=engine, workers=workers, protocol=protocol)


def job_of(name: str) -> Job:
    if name == "table":
        return Job(small_clients(500), MLP(hidden=(64,)), Protocol(epochs=5, batch=10, lr=0.05))
    if name == "chem97":
        config = STUDIES[name].config("lr=0.02")
    else:
        words = {"digits": ["data=digits", "clients=20", "net=mlp", "epochs=5"], "heart": ["data=heart"]}
        config = Config.load(words=words[name])
    federation = config.federation()
    config = config.completed(federation)
    return Job(federation, config.net, config.settings)


def in_turns(job: Job, method: str, workers: int, turns: int) -> dict[str, float]:
    """Seconds per round one by one and stacked, the ratio of the two, and on one core that of the training steps."""
    engines = {"one_by_one": "inline" if workers == 1 else "processes", "stacked": "stacked"}
    runs = {name: job.run(method, engine, workers, turns + 1) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, simulation in runs.items():
            begin = time.perf_counter()
            simulation.step()
            if turn:
                times[name].append(time.perf_counter() - begin)
    for simulation in runs.values():
        simulation.close()
    ratio = statistics.median(a / b for a, b in zip(times["one_by_one"], times["stacked"], strict=True))
    found = {**{name: statistics.median(t) for name, t in times.items()}, "ratio": ratio}
    if workers == 1 and method != "pgfedsplit":
        found["ratio_of_steps"] = steps(job, method)
    return found


def steps(job: Job, method: str) -> float:
    """How many times as long the training steps of a round take one by one as stacked, without what surrounds them."""
    spent = {"one_by_one": 0.0, "stacked": 0.0}

    def timed(name: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent[name] += time.perf_counter() - begin

        return call

    with (
        patch.object(Training, "alone", timed("one_by_one", Training.alone)),
        patch.object(stack, "train", timed("stacked", train)),
    ):
        for engine in ("inline", "stacked", "inline", "stacked"):
            with job.run(method, engine, 1, 2) as simulation:
                simulation.step()
    return spent["one_by_one"] / spent["stacked"]


def memory(clients: int) -> float:
    """The largest memory of this process, in MB, after a round of so many clients."""
    job = replace(job_of("table"), federation=small_clients(clients))
    with job.run("fedrep", "stacked", 1, 1) as simulation:
        simulation.step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
