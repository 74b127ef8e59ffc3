"""Time the rounds of each method beside a bare PyTorch loop that does only FedAvg's SGD steps and evaluation.

    python -m bench.rounds --methods fedavg,fedrep --repeats 3 --json rounds.json
    python -m bench.rounds --methods fedavg --same-net          # what the framework costs or saves, with the same net
    FEDTAILOR_DATA=… python -m bench.rounds data=fashion-mnist data.fraction=0.2 net=cnn

Without overrides it runs on 20 % of Fashion-MNIST if available, else on random images of the same shape. Machines are noisy: each
method's rounds and the bare loop's are timed in turns, the shortest of the repeats counts, and the ratio is what to compare. The bare
loop has as many processes as there are cores, one thread each, and so has FedTailor.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.bare import BareLoop, PlainCNN, tensors
from fedtailor import Config, Federation, Simulation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import method_overrides

J_SMALL = ["data=fashion-mnist", "data.fraction=0.2", "net=cnn", "clients=20", "partition.beta=0.1", "lr=0.005"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedavg,fedper,fedrep,fedala,fedah,pgfedsplit,ditto,fedafk")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="write the numbers to this file")
    parser.add_argument(
        "--same-net", action="store_true", help="give the bare loop FedTailor's form of the net as well"
    )
    parser.add_argument("words", nargs="*", help="key=value words of the protocol, as for `fedtailor run`")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.methods.split(",")
    words = args.words or J_SMALL
    configs = {
        name: Config.load(words=[*words, *method_overrides(name), f"rounds={args.repeats + 1}"]) for name in names
    }
    config = next(iter(configs.values()))
    federation = federation_of(config, args.words)
    plain = PlainCNN(federation.shape, federation.classes)
    bare = BareLoop(
        config.net.build(federation.task) if args.same_net else plain,
        tensors(federation),
        batch=config.settings.batch,
        lr=config.settings.lr,
        epochs=config.settings.epochs,
        processes=len(os.sched_getaffinity(0)),
    )
    table = {name: against(bare, federation, c, args.repeats) for name, c in configs.items()}
    samples = sum(len(c.train) for c in federation.clients)
    print(f"{samples} training samples, {len(federation.clients)} clients; seconds a round")
    print(f"{'method':<12}{'seconds':>10}{'bare':>8}{'ratio':>8}")
    for name, row in table.items():
        print(f"{name:<12}{row['seconds']:>10.2f}{row['bare_seconds']:>8.2f}{row['ratio']:>8.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(table, indent=1))


def against(bare: BareLoop, federation: Federation, config: Config, repeats: int) -> dict[str, float]:
    """Time one method's rounds and the bare loop's in turns, close together: the machine's speed drifts within minutes."""
    run = simulation(federation, config)
    times = in_turns({"bare": bare.round, "method": run.step}, repeats)
    run.close()
    return {"seconds": times["method"], "bare_seconds": times["bare"], "ratio": times["method"] / times["bare"]}


def federation_of(config: Config, given: list[str]) -> Federation:
    """Return the requested data; without Fashion-MNIST, noise of its shape for as many clients (times do not depend on pixels)."""
    try:
        return config.federation()
    except FedTailorError:
        if given:
            raise
    rng = np.random.default_rng(0)
    sizes = rng.integers(350, 1050, size=20)
    clients = []
    for size in sizes:
        x, y = rng.integers(0, 256, (size, 1, 28, 28), np.uint8), rng.integers(0, 10, size)
        cut = size * 3 // 4
        clients.append((x[:cut], y[:cut], x[cut:], y[cut:]))
    return Federation.from_clients(clients)


def simulation(federation: Federation, config: Config, net: nn.Module | None = None) -> Simulation:
    """Make the simulation of a config, with another net if one is given."""
    settings = config.settings
    return Simulation(
        federation,
        config.method,
        net or config.net,
        engine=settings.engine,
        workers=settings.workers,
        ray_address=settings.ray_address,
        protocol=settings,
    )


def in_turns(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the shortest time of each, after one warm-up round; the order is reversed each time."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name in list(works)[:: 1 if turn % 2 else -1]:
            took = seconds(works[name])
            if turn:
                times[name].append(took)
    return {name: min(found) for name, found in times.items()}


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
