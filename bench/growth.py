"""Measure how the server's memory, traffic and work grow with the number of clients, for each method.

    python -m bench.growth docs/results/scale.json                          # all methods; goes on where it stopped
    python -m bench.growth docs/results/scale.json --methods fedamp,ditto --clients 250,500,1000

The net is bench.server's: a LeNet with 62,000 weights, 120 features and 10 classes. In the first round everybody takes part, so that
the server has what it will ever keep; then a round is measured with 100 participants, and one in which all take part. Bytes are sizes of
tensors, and exact. Work is CPU time of this process, the shortest of three, or one measurement with all
clients taking part: read its growth, not its seconds. A few clients train; their replies, slightly perturbed, stand for those of all.
PerAda and HEART-PFL take one step of distillation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bench.server import SAMPLES, noise, shaken
from fedtailor import Config, Federation, Simulation
from fedtailor.experiment.config import method_overrides
from fedtailor.learning import Payload, Reply
from fedtailor.methods import methods
from fedtailor.nets.lenet import LeNet

PARTICIPANTS, TRAINED, REPEATS = 100, 5, 3
SHORT = {"perada": "perada:akt_steps=1", "heart": "heart:akt_steps=1,pgd_steps=1", "fedsimsup": "fedsimsup"}


def measured(name: str, federation: Federation) -> dict[str, float]:
    """Return bytes and CPU seconds of one method with this many clients."""
    words = [*method_overrides(SHORT.get(name, name)), "rounds=10", "engine=inline", "join=0.5"]
    config = Config.load(words=words)
    simulation = Simulation(federation, config.method, LeNet(conv2=19), protocol=config.settings)
    everyone = list(range(len(federation.clients)))
    some = everyone[:: max(1, len(everyone) // PARTICIPANTS)][:PARTICIPANTS]
    server = Round(simulation)
    server.carry_out(1, everyone)
    few = [server.carry_out(2 + k, some) for k in range(REPEATS)]
    all_of_them = server.carry_out(2 + REPEATS, everyone)
    synced = len(everyone) if config.method.syncs_everyone else 0
    return {
        "model": size([server.model]),
        "kept": size(simulation.server.state.values()),
        "client_keeps": server.client_state,
        "down": few[-1]["down"],
        "up": few[-1]["up"],
        "sync": synced * few[-1]["down"] / len(some),
        "cpu": min(one["cpu"] for one in few),
        "cpu_all": all_of_them["cpu"],
    }


class Round:
    """Rounds of a simulation in which a few clients train and the others send perturbed copies of their replies."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.model = simulation.server.net().all.vector
        self.client_state = 0

    def carry_out(self, number: int, here: list[int]) -> dict[str, float]:
        method, server, worker = self.simulation.method, self.simulation.server, self.simulation.worker
        server.begin(number)
        began, down = time.process_time(), 0
        first: dict[int, Payload] = {}
        for i in here:
            payload = method.send(server, i)
            down += size(payload.values())
            if len(first) < TRAINED:
                first[i] = payload
        sending = time.process_time() - began
        ups = [worker.fit(i, number, payload, evaluate=False).up for i, payload in first.items()]
        self.client_state = size((worker.states.get(next(iter(first))) or {}).values())
        rng = torch.Generator().manual_seed(number)
        ups += [shaken(ups[k % TRAINED], rng) for k in range(TRAINED, len(here))]
        replies = [Reply(i, SAMPLES, up) for i, up in zip(here, ups, strict=True)]
        began = time.process_time()
        method.aggregate(server, replies)
        up = sum(size(up.values()) for up in ups)
        return {"down": down, "up": up, "cpu": sending + time.process_time() - began}


def size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="the file to write, or to go on with")
    parser.add_argument("--methods", default=",".join(sorted(methods.classes)))
    parser.add_argument("--clients", default="250,500,1000")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, dict[str, Any]] = json.loads(args.json.read_text()) if args.json.exists() else {}
    for clients in map(int, args.clients.split(",")):
        federation = noise(clients)
        for name in args.methods.split(","):
            if str(clients) in table.setdefault(name, {}):
                continue
            row = table[name][str(clients)] = measured(name, federation)
            print(f"{name} {clients}: {row}", flush=True)
            args.json.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
