"""Measure many clients: memory, the cost of clients that do not take part, and the cost of a client beyond its SGD steps.

    python -m bench.scale --clients 10000 --methods fedavg,fedrep,ditto --json scale.json

Three measurements, on random data:
- participation: 100 of N clients per round, the papers' CNN, 20 samples each; seconds per round and memory (of all processes, each shared
  page counted once), beside the same with N/10 clients: the ratio of the two is what clients that do not take part cost.
- overhead: FedAvg, 1,000 clients with a tiny net and one batch each; milliseconds per client and round beyond the same steps and forward
  passes in a bare loop.
- long: 200 rounds; the last quarter's seconds and memory beside the first's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from bench.rounds import seconds
from fedtailor import Federation, Simulation
from fedtailor.engines import Processes
from fedtailor.nets.mlp import MLP

PARTICIPANTS = 100
MIB = 1024**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", type=int, default=200, help="rounds of the long run")
    parser.add_argument("--methods", default="fedavg,fedrep,ditto")
    parser.add_argument("--json", help="write the numbers to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.methods.split(",")
    table: dict[str, Any] = {"participation": {}, "overhead": {}, "long": {}}
    few, many = images(args.clients // 10), images(args.clients)
    for name in names:
        row = table["participation"][name] = participation(name, few, many, args.rounds)
        print(f"{name}: {row}", flush=True)
    row = table["overhead"]["fedavg"] = overhead("fedavg", args.rounds)
    print(f"fedavg: {row}", flush=True)
    row = table["long"][names[0]] = long_run(names[0], args.long)
    print(f"{names[0]}: {row}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(table, indent=1))


def participation(name: str, few: Federation, many: Federation, rounds: int) -> dict[str, float]:
    """Time rounds with 100 participants among few clients and among many, in turns, and measure memory with many."""
    runs = [
        Simulation(f, name, "cnn", join=PARTICIPANTS / len(f.clients), eval_every=10**6, rounds=10**6)
        for f in (few, many)
    ]
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for run, found in zip(runs, times, strict=True):
            found.append(seconds(run.step))
    runs[0].close()
    small, large = (statistics.median(found[1:]) for found in times)
    return {
        "clients": len(many.clients),
        "seconds": round(large, 3),
        "ratio_to_a_tenth_of_the_clients": round(large / small, 3),
        "memory_mib": round(memory(runs[1])),
    }


def overhead(name: str, rounds: int, clients: int = 1000) -> dict[str, float]:
    rng = np.random.default_rng(0)
    rows = [vectors(rng, 10) + vectors(rng, 4) for _ in range(clients)]
    run = Simulation(Federation.from_clients(rows), name, MLP(hidden=(8,)), engine="inline", rounds=rounds + 1)
    net = run.server.net().plain()
    tensors = [tuple(map(torch.from_numpy, row)) for row in rows]
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(seconds(run.step))
        bare.append(seconds(lambda: bare_steps(net, tensors)))
    return {
        "clients": clients,
        "milliseconds_a_client": round((min(ours) - min(bare)) / clients * 1000, 3),
        "bare_milliseconds_a_client": round(min(bare) / clients * 1000, 3),
    }


def long_run(name: str, rounds: int) -> dict[str, float]:
    run = Simulation(images(100), name, "lenet", rounds=rounds, engine="processes")
    times, sizes = [], []
    for _ in range(rounds):
        times.append(seconds(run.step))
        sizes.append(memory(run))
    quarter = rounds // 4
    return {
        "rounds": rounds,
        "seconds_first_quarter": round(statistics.median(times[1:quarter]), 3),
        "seconds_last_quarter": round(statistics.median(times[-quarter:]), 3),
        "memory_mib_first_quarter": round(max(sizes[:quarter])),
        "memory_mib_last_quarter": round(max(sizes[-quarter:])),
    }


def bare_steps(net: nn.Module, clients: list[tuple[torch.Tensor, ...]]) -> None:
    """Do one step and one forward pass per client, and nothing else."""
    parameters: list[torch.Tensor] = list(net.parameters())
    for x, y, test_x, _ in clients:
        gradients = torch.autograd.grad(F.cross_entropy(net(x), y), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.005)
            net(test_x)


def images(clients: int) -> Federation:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(clients):
        x, y = rng.integers(0, 256, (25, 1, 28, 28), np.uint8), rng.integers(0, 10, 25)
        rows.append((x[:20], y[:20], x[20:], y[20:]))
    return Federation.from_clients(rows)


def vectors(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(n, 8)).astype(np.float32), rng.integers(0, 3, n)


def memory(run: Simulation) -> float:
    """Return MiB of this process and the run's workers; shared pages are divided among the processes that share them."""
    workers = [p.pid for p in run.engine.processes] if isinstance(run.engine, Processes) else []
    total = 0
    for pid in (os.getpid(), *workers):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / MIB


if __name__ == "__main__":
    main()
