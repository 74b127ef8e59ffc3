"""Seconds a round of each method, beside a bare PyTorch loop that does FedAvg's SGD steps and evaluation with nothing around them.

    python -m bench.rounds --methods fedavg,fedrep --repeats 3 --json rounds.json
    FEDTAILOR_DATA=… python -m bench.rounds data=fashion-mnist data.fraction=0.2

Machines are noisy: all are timed in turns within one run, the shortest of the repeats counts, and the ratio is what to compare.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Config, Federation, Simulation
from fedtailor.experiment.config import method_words


def bare_round(net: nn.Module, clients: list[tuple[torch.Tensor, ...]], config: Config) -> None:
    """Every client trains the same start by plain SGD and is tested: what any library has to do at the least."""
    start = {name: t.clone() for name, t in net.state_dict().items()}
    total = {name: torch.zeros_like(t) for name, t in start.items()}
    size, lr = config.settings.batch, config.settings.lr
    for x, y, _, _ in clients:
        net.load_state_dict(start)
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        for _ in range(config.settings.epochs):
            order = torch.randperm(len(y))
            for index in order.split(min(size, len(y))):
                if len(index) < min(size, len(y)):
                    continue
                optimizer.zero_grad()
                F.cross_entropy(net(x[index]), y[index]).backward()
                optimizer.step()
        for name, t in net.state_dict().items():
            total[name] += t / len(clients)
    net.load_state_dict(total)
    with torch.no_grad():
        for _, _, x, y in clients:
            for rows, labels in zip(x.split(512), y.split(512), strict=True):
                (net(rows).argmax(1) == labels).sum().item()


def tensors(federation: Federation, simulation: Simulation) -> list[tuple[torch.Tensor, ...]]:
    pairs = []
    for i, client in enumerate(federation.clients):
        train, test = (
            simulation.worker.samples(s, (i, k)) for s, k in ((client.train, "train"), (client.test, "test"))
        )
        pairs.append((train.take(torch.arange(len(train))), train.y, test.take(torch.arange(len(test))), test.y))
    return pairs


def seconds(work: object) -> float:
    begin = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="local,fedavg,fedprox,fedper,fedrep")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="write the numbers to this file")
    parser.add_argument("words", nargs="*", help="key=value words of the protocol, as for `fedtailor run`")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.methods.split(",")
    configs = {
        name: Config.load(words=[*args.words, *method_words(name), f"rounds={args.repeats + 1}"]) for name in names
    }
    federation = next(iter(configs.values())).federation()
    simulations = {name: Simulation(federation, c.method, c.net, protocol=c.settings) for name, c in configs.items()}
    first = next(iter(simulations.values()))
    clients = tensors(federation, first)
    net = first.server.net().plain()
    config = next(iter(configs.values()))
    bare_round(net, clients, config)
    for simulation in simulations.values():
        simulation.step()
    times: dict[str, list[float]] = {name: [] for name in ("bare", *names)}
    for _ in range(args.repeats):
        times["bare"].append(seconds(lambda: bare_round(net, clients, config)))
        for name, simulation in simulations.items():
            times[name].append(seconds(simulation.step))
    bare = min(times["bare"])
    table = {
        name: {"seconds": min(times[name]), "bare_seconds": bare, "ratio": min(times[name]) / bare} for name in names
    }
    print(f"{'method':<12}{'seconds':>10}{'ratio':>8}   (bare loop: {bare:.3f} s a round, one thread)")
    for name, row in table.items():
        print(f"{name:<12}{row['seconds']:>10.3f}{row['ratio']:>8.2f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
