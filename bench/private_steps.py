"""Time private steps beside plain ones, in turns, on the nets for tables and images.

    python -m bench.private_steps --repeats 30

A plain step is as fast as FedTailor can make it (`fast = auto`), a private step has plain layers and its noise. CPU time of this thread
counts, the median of the repeats, so that other processes do not matter; the ratio is what to compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from fedtailor.data.task import Task
from fedtailor.learning.per_sample import fast_clipped_sum, layers_of
from fedtailor.nets.build import build_net

NETS = {
    "mlp, 13 features": ("mlp", Task((13,), 2)),
    "mlp, 28×28 images": ("mlp", Task((1, 28, 28), 10)),
    "cnn, 8×8 images": ("cnn", Task((1, 8, 8), 10)),
    "cnn, 28×28 images": ("cnn", Task((1, 28, 28), 10)),
    "cnn, 32×32 colour images": ("cnn", Task((3, 32, 32), 10)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--batches", default="10,32", help="batch sizes")
    parser.add_argument("--json", help="write the numbers to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, (architecture, task) in NETS.items():
        for batch in map(int, args.batches.split(",")):
            plain, private = in_turns(*steps(architecture, task, batch), args.repeats)
            found[f"{name}, batch {batch}"] = private / plain
            print(
                f"{name}, batch {batch}: {1e3 * plain:.2f} ms plain, {1e3 * private:.2f} ms private, {private / plain:.2f} times"
            )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


def steps(architecture: str, task: Task, batch: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a plain and a private step on random samples."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(batch, *task.shape, generator=rng), torch.randint(task.classes, (batch,), generator=rng)
    fast, net = build_net(architecture, task), build_net(architecture, task, fast=False)
    layers = layers_of(net.all)
    assert layers is not None

    def plain() -> None:
        fast.all.step(task.loss(fast(x), y), 1e-6)

    def private() -> None:
        total = fast_clipped_sum(net.all, layers, lambda net, x, y: task.losses(net(x), y), x, y, 1.0)
        total.add_(torch.randn(len(total), generator=rng)).div_(batch)
        net.all.step(None, 1e-6, gradient=total)

    return plain, private


def in_turns(plain: Callable[[], None], private: Callable[[], None], repeats: int) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for k in range(repeats + 3):
        for step, taken in zip((plain, private), times, strict=True):
            begin = time.thread_time()
            step()
            if k >= 3:  # the first ones warm up
                taken.append(time.thread_time() - begin)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
