"""Where a round's time goes, and how far one SGD step is from what the machine can do.

    python -m bench.limit --net cnn --method fedavg --json limit.json

Counts the floating-point operations of one step, times it on one thread, and compares the rate with that of a large matrix product, and the
time with that of the same step by PyTorch's own convolutions. Then profiles one round of the method in one process by kind of operation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from bench.rounds import J_SMALL, federation_of, in_turns
from fedtailor import Config, Simulation
from fedtailor.engines.worker import keep_freed_memory
from fedtailor.nets import nets, winograd
from fedtailor.nets.architecture import Task
from fedtailor.nets.build import build_net

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
    table = {**step_rates(args.net), "matrix_product": product_rate(), "round": round_profile(args.method)}
    step, limit, direct = table["step"], table["matrix_product"], table["direct_step"]
    print(f"{args.net}, batch 10, 1×28×28: {step['milliseconds']:.2f} ms a step, {step['gflops']:.1f} GFLOP/s,")
    print(f"which is {step['gflops'] / limit['gflops']:.0%} of a large matrix product's {limit['gflops']:.1f} GFLOP/s")
    print(
        f"by PyTorch's own convolutions: {direct['milliseconds']:.2f} ms for {direct['gflop'] / step['gflop']:.1f} times the operations"
    )
    print(f"a round of {args.method} in one process:")
    for kind, share in table["round"].items():
        print(f"  {kind:<18}{share:>7.1%}")
    if args.json:
        Path(args.json).write_text(json.dumps(table, indent=1))


def step_rates(name: str, steps: int = 100) -> dict[str, dict[str, float]]:
    """Of a step as it is and of one by PyTorch's own convolutions, in turns."""
    task = Task((1, 28, 28), 10)
    net = build_net(nets.build(name, {}), task)
    x, y = torch.randn(10, *task.shape), torch.randint(10, (10,))

    def as_it_is(count: int = steps) -> None:
        for _ in range(count):
            net.all.step(F.cross_entropy(net(x), y), 0.005)

    def direct(count: int = steps) -> None:
        with patch.object(winograd, "FEWEST_CHANNELS", sys.maxsize):
            as_it_is(count)

    times = in_turns({"step": as_it_is, "direct_step": direct}, 8)
    rates = {}
    for kind, work in (("step", as_it_is), ("direct_step", direct)):
        with FlopCounterMode(display=False) as counter:
            work(1)
        seconds, gflop = times[kind] / steps, counter.get_total_flops() / 1e9
        rates[kind] = {"milliseconds": seconds * 1000, "gflop": gflop, "gflops": gflop / seconds}
    return rates


def product_rate(size: int = 1024) -> dict[str, float]:
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = shortest(lambda: a @ b, 5)
    return {"gflops": 2 * size**3 / seconds / 1e9}


def round_profile(method: str) -> dict[str, float]:
    """Shares of one round by kind of operation; what is in no operation is Python."""
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
