"""Time the server in one round of each method: making what it sends to every participant, and aggregating their replies.

    python -m bench.server --clients 1000 --json server.json
    python -m bench.server --methods fedamp,fedsimsup --threads 2 join=0.5

No training is timed. A few clients train on noise, and their replies, slightly perturbed, stand for the replies of all; the net is a LeNet
with 62,000 weights, 120 features and 10 classes. PerAda and HEART-PFL are timed only if named, such as perada:akt_steps=5: their servers
ask every participant's net about proxy samples, which takes minutes. FedPAC takes longer the more alike clients are, as perturbed
ones are; with --trained 1000 all of them train, and it takes as long as in practice.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

import numpy as np
import torch

from bench.rounds import seconds
from fedtailor import Config, Federation, Simulation
from fedtailor.data.client_data import Split
from fedtailor.experiment.config import method_overrides
from fedtailor.experiment.sampling import select
from fedtailor.learning import Payload, Reply
from fedtailor.methods import methods
from fedtailor.nets.lenet import LeNet

SAMPLES, PROXY = 20, 64
LONG = {"perada", "heart"}


def noise(clients: int) -> Federation:
    """Make clients with noise images in about three classes each, and a server with a few proxy samples."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients, SAMPLES, 3, 32, 32), dtype=np.uint8)
    y = np.take_along_axis(rng.integers(0, 10, (clients, 3)), rng.integers(0, 3, (clients, SAMPLES)), axis=1)
    federation = Federation.from_clients([(a, b, a[:0], b[:0]) for a, b in zip(x, y, strict=True)])
    proxy = Split(torch.from_numpy(x.reshape(-1, 3, 32, 32)[:PROXY]), torch.from_numpy(y.reshape(-1)[:PROXY]))
    ten = dataclasses.replace(federation.description, classes=10)
    return dataclasses.replace(federation, description=ten, server=proxy)


def shaken(payload: Payload, rng: torch.Generator) -> Payload:
    """Perturb each number by about one per cent; integers and masks stay as they are."""
    return {
        name: t * (1 + 0.01 * torch.randn(t.shape, generator=rng, dtype=t.dtype)) if t.is_floating_point() else t
        for name, t in payload.items()
    }


def round_of(simulation: Simulation, number: int, trained: int) -> dict[str, float]:
    """Return the seconds of all sends and of the aggregation of one round."""
    method, server = simulation.method, simulation.server
    server.begin(number)
    here = select(simulation.protocol, simulation.candidates, number).replying
    down: dict[int, Payload] = {}

    def send_all() -> None:
        for i in here:
            payload = method.send(server, i)
            if len(down) < trained:
                down[i] = payload

    sending = seconds(send_all)
    outcomes = [simulation.worker.fit(i, number, payload, evaluate=False) for i, payload in down.items()]
    rng = torch.Generator().manual_seed(number)
    ups = [o.up for o in outcomes] + [shaken(outcomes[k % trained].up, rng) for k in range(trained, len(here))]
    replies = [Reply(i, SAMPLES, up) for i, up in zip(here, ups, strict=True)]
    return {"send": sending, "aggregate": seconds(lambda: method.aggregate(server, replies))}


def measured(name: str, federation: Federation, args: argparse.Namespace) -> dict[str, float]:
    """Return the shortest round after the first, in which some methods have nothing to send yet."""
    config = Config.load(words=[*args.words, *method_overrides(name), f"rounds={args.repeats + 1}"])
    torch.set_num_threads(args.threads)
    simulation = Simulation(federation, config.method, LeNet(conv2=19), protocol=config.settings)
    rounds = [round_of(simulation, number, args.trained) for number in range(1, args.repeats + 2)][1:]
    best = min(rounds, key=lambda r: sum(r.values()))
    return {**best, "seconds": sum(best.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(sorted(set(methods.classes) - LONG)))
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--trained", type=int, default=25, help="clients that train")
    parser.add_argument("--json", help="write the numbers to this file")
    parser.add_argument("words", nargs="*", help="key=value words of the protocol, as for `fedtailor run`")
    args = parser.parse_args()
    federation = noise(args.clients)
    table = {}
    print(f"{'method':<16}{'send':>10}{'aggregate':>10}{'together':>10}   (seconds, {args.clients} clients)")
    for name in args.methods.split(","):
        row = table[name] = measured(name, federation, args)
        print(f"{name:<16}{row['send']:>10.3f}{row['aggregate']:>10.3f}{row['seconds']:>10.3f}", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
