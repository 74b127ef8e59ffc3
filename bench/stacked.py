"""Small clients side by side: `engine=stacked` against one client after the other, in turns in one run.

    python -m bench.stacked                      # 500 clients of 60 rows and 13 features, batch 10, five epochs, an MLP
    python -m bench.stacked --workers 2          # on two cores
    python -m bench.stacked --digits             # the embedded digits with an MLP
    python -m bench.stacked --json stacked.json

Times are of whole rounds (training, aggregation, evaluation); `steps` is the time within training steps alone. Each engine's rounds are
timed in turns, and the median of the ratios is what to compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from fedtailor import Federation, Simulation

METHODS = "fedavg,fedrep,ditto,pgfedsplit,fedah"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    federation = digits() if args.digits else table(args.clients)
    found = {}
    for name in args.methods.split(","):
        found[name] = in_turns(federation, name, args.workers, args.turns)
        row = found[name]
        print(f"{name:<12}{row['inline']:>9.3f} s {row['stacked']:>9.3f} s   {row['ratio']:>6.2f} ×", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


def table(clients: int, rows: int = 60, features: int = 13) -> Federation:
    """Clients whose labels follow a rule of their own, near to a common one."""
    generator = np.random.default_rng(0)
    common = generator.normal(size=features)
    parts = []
    for _ in range(clients):
        x = generator.normal(size=(rows, features)).astype(np.float32)
        own = common + 0.5 * generator.normal(size=features)
        parts.append((x, (x @ own > 0).astype(int)))
    return Federation.from_clients(parts)


def digits() -> Federation:
    from fedtailor import Config

    return Config.load(words=["data=digits", "clients=20"]).federation()


def in_turns(federation: Federation, method: str, workers: int, turns: int) -> dict[str, float]:
    engines = {"inline": "inline" if workers == 1 else "processes", "stacked": "stacked"}
    runs = {
        name: Simulation(
            federation, method, net="mlp", engine=engine, workers=workers, rounds=turns + 1, epochs=5, batch=10, lr=0.05
        )
        for name, engine in engines.items()
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run.step()
            if turn:
                times[name].append(time.perf_counter() - begin)
    for run in runs.values():
        run.close()
    ratio = statistics.median(a / b for a, b in zip(times["inline"], times["stacked"], strict=True))
    return {**{name: statistics.median(t) for name, t in times.items()}, "ratio": ratio}


if __name__ == "__main__":
    main()
