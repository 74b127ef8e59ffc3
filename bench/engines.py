"""Time one job on every engine: seconds per round, speed-up over one worker, and a check that the numbers are equal to the bit.

python -m bench.engines --method fedrep --engines processes,ray --workers 1,2 --repeats 3 --json engines.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from bench.rounds import J_SMALL, federation_of, in_turns
from fedtailor import Config, Simulation
from fedtailor.experiment.config import method_overrides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument(
        "--engines", default="processes", help="processes, ray, or both with a comma; inline always runs"
    )
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="write the numbers to this file")
    parser.add_argument("words", nargs="*", help="key=value words of the protocol, as for `fedtailor run`")
    args = parser.parse_args()
    torch.set_num_threads(1)
    words = [*(args.words or J_SMALL), *method_overrides(args.method), f"rounds={args.repeats + 1}"]
    config = Config.load(words=words)
    federation = federation_of(config, args.words)

    def simulation(engine: str, workers: int) -> Simulation:
        return Simulation(
            federation,
            config.method,
            config.net,
            engine=engine,
            workers=workers,
            ray_address=config.settings.ray_address if engine == "ray" else "",
            protocol=config.settings,
        )

    counts = [int(n) for n in args.workers.split(",")]
    names = args.engines.split(",")
    runs = {"inline": simulation("inline", 0)} | {f"{e} {n}": simulation(e, n) for n in counts for e in names}
    times = in_turns({name: run.step for name, run in runs.items()}, args.repeats)
    reference = numbers(runs["inline"])
    one = times.get("processes 1", times["inline"])
    table = {
        name: {"seconds": seconds, "speedup": one / seconds, "identical": numbers(runs[name]) == reference}
        for name, seconds in times.items()
    }
    print(f"{config.method.name}\n{'engine':<14}{'seconds':>10}{'speed-up':>10}   equal to the bit")
    for name, row in table.items():
        print(f"{name:<14}{row['seconds']:>10.3f}{row['speedup']:>10.2f}   {row['identical']}")
    if args.json:
        Path(args.json).write_text(json.dumps(table, indent=1))


def numbers(run: Simulation) -> list[dict[str, object]]:
    return [{k: v for k, v in record.items() if not k.startswith("seconds")} for record in run.metrics]


if __name__ == "__main__":
    main()
