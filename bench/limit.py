"""Measure where a round's time goes, and how far one SGD step is from what the machine can do.

    python -m bench.limit --net cnn --method fedavg --json limit.json

Counts the floating-point operations of one step, times it on one thread, and compares its rate with that of a large matrix product and its
time with that of the same step in plain PyTorch. Does the same for a step of the head on features. Then profiles one round of the method
in one process by kind of operation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from bench.rounds import J_SMALL, federation_of, in_turns
from fedtailor import Config, Simulation
from fedtailor.data.task import Task
from fedtailor.engines.allocator import keep_freed_memory
from fedtailor.nets import Net, nets
from fedtailor.nets.build import build_net
from fedtailor.nets.fast import wide_linear, winograd
from fedtailor.nets.fast.linear_head import linear_step

KINDS = {
    "convolution": "convolutions",
    "mkldnn": "convolutions",
    "mm": "matrix products",
    "max_pool": "pooling",
    "threshold": "ReLU",
    "clamp": "ReLU",
    "relu": "ReLU",
    "foreach": "updates",
    "add_": "updates",
    "copy_": "copies",
    "index": "copies",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="cnn")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--json", help="write the numbers to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    steps, heads = step_rates(args.net), head_milliseconds(args.net)
    table = {**steps, "head": heads, "matrix_product": product_rate(), "round": round_profile(args.method)}
    step, limit = table["step"], table["matrix_product"]
    print(f"{args.net}, batch 10, 1×28×28: {step['milliseconds']:.2f} ms a step, {step['gflops']:.1f} GFLOP/s,")
    print(f"which is {step['gflops'] / limit['gflops']:.0%} of a large matrix product's {limit['gflops']:.1f} GFLOP/s")
    for kind, rate in steps.items():
        print(f"  {kind}: {rate['milliseconds']:.2f} ms for {rate['gflop']:.3f} GFLOP")
    print(f"a step of the head on features: {heads['written out']:.3f} ms, by autograd {heads['autograd']:.3f} ms")
    print(f"a round of {args.method} in one process:")
    for kind, share in table["round"].items():
        print(f"  {kind:<18}{share:>7.1%}")
    if args.json:
        Path(args.json).write_text(json.dumps(table, indent=1))


def step_rates(name: str, count: int = 20) -> dict[str, dict[str, float]]:
    """Time a step as it is, and without each of its optimizations, in turns."""
    net, x, y = example(name)

    def steps() -> None:
        for _ in range(count):
            net.all.step(F.cross_entropy(net(x), y), 0.005)

    def without(module: object, threshold: str) -> Callable[[], None]:
        return patch.object(module, threshold, sys.maxsize)(steps)

    kinds: dict[str, Callable[[], object]] = {
        "step": steps,
        "by PyTorch's own convolutions": without(winograd, "FEWEST_CHANNELS"),
        "with wide layers' gradients written down": without(wide_linear, "WIDE"),
    }

    def in_place(_: Sequence[int], a: Sequence[int], b: Sequence[int], **__: object) -> int:
        return 2 * a[0] * a[1] * b[1]

    times = in_turns(kinds, 60)
    rates = {}
    for kind, work in kinds.items():
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place}) as counter:
            work()
        seconds, gflop = times[kind] / count, counter.get_total_flops() / count / 1e9
        rates[kind] = {"milliseconds": seconds * 1000, "gflop": gflop, "gflops": gflop / seconds}
    return rates


def head_milliseconds(name: str, count: int = 1000) -> dict[str, float]:
    net, x, y = example(name)
    z = net.features(x).detach()

    def written_out() -> None:
        for _ in range(count):
            linear_step(net.head, z, y, 0.005)

    def autograd() -> None:
        for _ in range(count):
            net.head.step(F.cross_entropy(net.classify(z), y), 0.005)

    times = in_turns({"written out": written_out, "autograd": autograd}, 5)
    return {kind: seconds / count * 1000 for kind, seconds in times.items()}


def example(name: str) -> tuple[Net, Tensor, Tensor]:
    """Return a net for 28×28 images and a batch for it."""
    task = Task((1, 28, 28), 10)
    return build_net(nets.build(name, {}), task), torch.randn(10, *task.shape), torch.randint(10, (10,))


def product_rate(size: int = 1024) -> dict[str, float]:
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = shortest(lambda: a @ b, 5)
    return {"gflops": 2 * size**3 / seconds / 1e9}


def round_profile(method: str) -> dict[str, float]:
    """Return the fractions of one round's time by kind of operation; time outside operations counts as Python."""
    config = Config.load(words=[*J_SMALL, f"method={method}", "rounds=2"])
    federation = federation_of(config, [])
    run = Simulation(federation, config.method, config.net, engine="inline", protocol=config.settings)
    run.step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        begin = time.perf_counter()
        run.step()
        whole = time.perf_counter() - begin
    shares: Counter[str] = Counter()
    for event in profiled.key_averages():
        kind = next((kind for text, kind in KINDS.items() if text in event.key), "other operations")
        shares[kind] += event.self_cpu_time_total / 1e6 / whole
    return {**dict(shares.most_common()), "Python and the rest": max(0.0, 1 - sum(shares.values()))}


def shortest(work: Callable[[], object], repeats: int) -> float:
    work()
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        best = min(best, (time.perf_counter() - begin) / repeats)
    return best


if __name__ == "__main__":
    main()
