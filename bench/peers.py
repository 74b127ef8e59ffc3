"""Compare seconds per round in FedTailor, in Apple's pfl, in Flower's simulation, in PFLlib and in the bare PyTorch loop.

    FEDTAILOR_DATA=… python -m bench.peers --json peers.json
    FEDTAILOR_DATA=… python -m bench.peers --json peers.json --fraction 0.02 --rounds 2      # a quick check that everything runs
    python -m bench.peers --json table.json --table      # 500 clients of 60 rows and 13 features, batch 10, five epochs, an MLP
    FEDTAILOR_DATA=… python -m bench.peers --json peers.json --pfllib ../PFLlib      # with PFLlib, from a checkout of yours
    FEDTAILOR_DATA=… python -m bench.peers --json pfllib.json --pfllib ../PFLlib --peers pfllib      # of the peers only PFLlib
    FEDTAILOR_DATA=… python -m bench.peers --json fedrep.json --pfllib ../PFLlib --method fedrep      # FedRep: FedTailor and PFLlib only

All do the same job: 20 % of Fashion-MNIST dealt to 20 clients (Dirichlet 0.1), the CNN of `bench.bare` from the same initial weights, one
epoch of SGD per client (batch 10, lr 0.005, no incomplete last batch), the mean weighted by samples, and its accuracy on the test samples
of all clients. Only the order of samples differs, so the accuracies after the last round must agree within 3 points; else the work was not
the same, and the command fails after showing the table. (With few samples all are still at chance, and agreement proves little.)

Each framework has all cores. The bare loop, FedTailor (engine=processes) and Flower have one process with one thread per core. pfl is timed
twice: as one process with one thread per core, and as one process per core under torchrun. So is FedTailor: with the module that the others
train, and with its own `net=cnn`, the same function computed in a faster order. PFLlib, which is no package, has one process with one
thread per core. It is timed as it is, and without the loss of all training samples that each of its evaluations takes. What else was
chosen for a peer is described in `bench/peer_pfl.py`, `bench/peer_flower.py` and `bench/peer_pfllib.py`. Machines are noisy: all run one
after the other, then once more in the opposite order, and the shortest round of each counts, without the first round of either run.

Each peer is installed on first use into an environment of its own below --venv (1 to 2 GB, some minutes); one that cannot be
installed or does not run is listed with the reason.

FedRep is the same job with each client's head kept: one epoch on the head, then one on the body, the mean of the bodies, and each client's
own model scored on its own test samples.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bench.bare import BareLoop, plain_net, tensors
from bench.peer_job import CORES, Job, Timing
from bench.rounds import J_SMALL, simulation
from bench.stacked import small_clients, write_page
from fedtailor import Config, Federation, Simulation
from fedtailor.errors import FedTailorError

J_TABLE = ["lr=0.05", "batch=10", "epochs=5"]
HERE = Path(__file__).parent.parent
TOLERANCE = 3.0  # points of accuracy by which another order of samples may differ
LIMIT = 1200  # seconds; Flower was seen to hang where Ray fails to start
TORCHRUN = ("torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}", "-m")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",
}


@dataclass(frozen=True)
class Peer:
    """A framework to install as `packages` into the environment `name`, and the module that runs the job in it."""

    name: str
    packages: tuple[str, ...]
    words: tuple[str, ...]


PEERS = {
    f"pfl, {CORES} threads": Peer("pfl", ("pfl==0.6.*",), ("bench.peer_pfl",)),
    f"pfl, {CORES} processes": Peer("pfl", ("pfl==0.6.*",), (*TORCHRUN, "bench.peer_pfl")),
    "flower": Peer("flower", ("flwr[simulation]==1.41.*",), ("bench.peer_flower",)),
}
PFLLIB_IMPORTS = ("h5py", "matplotlib", "scikit-learn")  # PFLlib itself comes from a checkout


class NotAvailable(Exception):
    """Why a peer could not be timed."""


def main() -> None:
    args = parsed(sys.argv[1:])
    torch.set_num_threads(1)
    try:
        config = Config.load(words=[*job_words(args), "engine=processes"])
        federation = small_clients(500) if args.table else config.federation()
    except FedTailorError as error:
        raise SystemExit(str(error)) from None
    job = job_of(federation, config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.npz")
        job.save(path)
        found = in_turns(contestants(args, job, path, federation, config))
    rows = compared(found)
    print(f"{sum(len(c[1]) for c in job.clients)} training samples, {len(job.clients)} clients, {CORES} cores")
    print(table(rows))
    settings = {"method": args.method, "cores": CORES, "fraction": args.fraction, "rounds": args.rounds}
    args.json.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")
    if args.page:
        write_page(args.page, "peers on the table", as_markdown(rows))
    apart = [name for name, row in rows.items() if row.get("same_work") is False]
    if apart:
        raise SystemExit(f"Not the same work: the accuracy of {', '.join(apart)} is over {TOLERANCE:g} points apart.")


def job_words(args: argparse.Namespace) -> list[str]:
    job = J_TABLE if args.table else [*J_SMALL, f"data.fraction={args.fraction}"]
    return [*job, f"rounds={args.rounds}", f"method={args.method}"]


def contestants(
    args: argparse.Namespace, job: Job, path: Path, federation: Federation, config: Config
) -> dict[str, Callable[[], Timing]]:
    if args.table:
        name, other, net = "fedtailor, stacked", Config.load(words=[*job_words(args), "engine=stacked"]), job.net
    else:
        name, other, net = "fedtailor, net=cnn", config, with_weights(config.net.build(federation.task), job.start)
    found = {
        "fedtailor": lambda: ours(job, simulation(federation, config, job.net)),
        name: lambda: ours(job, simulation(federation, other, net)),
    }
    if args.method == "fedavg":
        found = {"bare loop": lambda: bare(job), **found}
    return found | {name: partial(theirs, peer, args.venv, path) for name, peer in peers_of(args).items()}


def peers_of(args: argparse.Namespace) -> dict[str, Peer]:
    peers = PEERS if args.method == "fedavg" else {}
    if args.pfllib:
        peers = peers | pfllib(args.pfllib, args.method)
    return {name: peer for name, peer in peers.items() if peer.name in args.peers.split(",")}


def pfllib(checkout: Path, method: str) -> dict[str, Peer]:
    words = ("bench.peer_pfllib", str(checkout.absolute()), {"fedavg": "FedAvg", "fedrep": "FedRep"}[method])
    return {
        "pfllib": Peer("pfllib", PFLLIB_IMPORTS, words),
        "pfllib, no train loss": Peer("pfllib", PFLLIB_IMPORTS, (*words, "--test-only")),
    }


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="write the numbers to this file")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; the first only warms up")
    parser.add_argument("--fraction", type=float, default=0.2, help="share of Fashion-MNIST")
    parser.add_argument("--table", action="store_true", help="500 small clients and an MLP instead of the images")
    parser.add_argument(
        "--page",
        type=Path,
        help="put the numbers of --table into this page, where it has a place called `peers on the table`",
    )
    parser.add_argument("--method", choices=("fedavg", "fedrep"), default="fedavg")
    parser.add_argument("--peers", default="pfl,flower,pfllib", help="only these of the peers")
    parser.add_argument("--pfllib", type=Path, metavar="FOLDER", help="a checkout of PFLlib, to time it too")
    parser.add_argument("--venv", type=Path, default=HERE / ".venv-peers", help="folder of the peers' environments")
    args = parser.parse_args(words)
    if args.rounds < 2:
        parser.error("--rounds must be at least 2: the first round warms up and is not counted")
    if not args.json.absolute().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    if args.pfllib and not (args.pfllib / "system" / "flcore").is_dir():
        parser.error(f"--pfllib {args.pfllib}: this is no checkout of PFLlib")
    return args


def job_of(federation: Federation, config: Config) -> Job:
    torch.manual_seed(0)
    start = parameters_to_vector(plain_net(federation.shape, federation.classes).parameters()).detach()
    settings = config.settings
    return Job(
        tensors(federation), start, federation.classes, settings.rounds, settings.batch, settings.lr, settings.epochs
    )


def in_turns(contestants: Mapping[str, Callable[[], Timing]]) -> dict[str, list[Timing] | str]:
    """Time all, forwards and then backwards so that a slow spell does not hit one alone; return timings, or the reason for none."""
    found: dict[str, list[Timing] | str] = {name: [] for name in contestants}
    for name in [*contestants, *reversed(list(contestants))]:
        timings = found[name]
        if isinstance(timings, str):
            continue
        print(f"{name} …", file=sys.stderr)
        try:
            timings.append(contestants[name]())
        except NotAvailable as error:
            found[name] = str(error)
    return found


def bare(job: Job) -> Timing:
    loop = BareLoop(job.net, job.clients, batch=job.batch, lr=job.lr, epochs=job.epochs, processes=CORES)
    return timed(loop.round, job.rounds, f"torch {version('torch')}")


def with_weights(net: nn.Module, weights: Tensor) -> nn.Module:
    """Give FedTailor's own net the job's initial weights: its parameters have the same order."""
    vector_to_parameters(weights.clone(), net.parameters())
    return net


def ours(job: Job, trial: Simulation) -> Timing:
    accuracies = (record["accuracy"] for record in trial)  # each next() runs a round
    timing = timed(accuracies.__next__, job.rounds, f"fedtailor {version('fedtailor')}")
    trial.close()
    return timing


def timed(work: Callable[[], float], rounds: int, version: str) -> Timing:
    seconds, accuracy = [], 0.0
    for _ in range(rounds):
        begin = time.perf_counter()
        accuracy = work()
        seconds.append(time.perf_counter() - begin)
    return Timing(version, seconds, 100 * accuracy)


def theirs(peer: Peer, folder: Path, job: Path) -> Timing:
    try:
        return run(peer, environment(folder / peer.name, [torch_pin(), *peer.packages]), job)
    except OSError as error:
        raise NotAvailable(str(error)) from None


def run(peer: Peer, python: Path, job: Path) -> Timing:
    outside = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "PYTHONPATH")}
    surroundings = {**outside, **QUIET, "PYTHONPATH": str(HERE), "FLWR_HOME": str(job.parent)}
    command = [str(python), "-m", *peer.words, str(job)]
    process = subprocess.Popen(
        command, env=surroundings, cwd=job.parent, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    )
    try:
        output, log = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"it was not done after {LIMIT // 60} minutes") from None
    finally:
        with suppress(ProcessLookupError):  # usually none is left, but Ray's servers outlive a peer that gave up
            os.killpg(process.pid, signal.SIGTERM)
    timing = Timing.from_output(output)
    if timing is None:
        raise NotAvailable(f"it did not finish: {reason(log)}")
    return timing


def environment(folder: Path, packages: list[str]) -> Path:
    """Return the Python of an environment with these packages, made if missing; a file that lists them marks it as complete."""
    folder = folder.absolute()
    python, note = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(packages)
    if note.exists() and note.read_text() == wanted:
        return python
    print(f"  installing {' '.join(packages)} into {folder}", file=sys.stderr)
    make = [sys.executable, "-m", "venv", "--clear", str(folder)]
    fill = [str(python), "-m", "pip", "install", "--quiet", *packages]
    for command in (make, fill):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotAvailable(f"it cannot be installed: {reason(done.stderr or done.stdout)}")
    note.write_text(wanted)
    return python


def torch_pin() -> str:
    """Pin the tested release, so that pip finds the same build as for FedTailor; a looser range may download gigabytes of CUDA."""
    lines = (HERE / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def reason(log: str) -> str:
    """Return the most informative line of a log: the last that names an error, else the last with letters."""
    lines = [line.strip() for line in log.splitlines() if any(c.isalpha() for c in line)]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it left no message"])[-1]


def compared(found: Mapping[str, list[Timing] | str]) -> dict[str, dict[str, Any]]:
    """Return each one's shortest round after the first, in seconds and relative to the first row, and whether it did the same work."""
    rows: dict[str, dict[str, Any]] = {}
    for name, timings in found.items():
        if isinstance(timings, str):
            rows[name] = {"not_available": timings}
            continue
        seconds = min(second for timing in timings for second in timing.seconds[1:])
        reference = next(iter(rows.values()), {"seconds": seconds, "accuracy": timings[0].accuracy})
        rows[name] = {
            "version": timings[0].version,
            "seconds": seconds,
            "ratio": seconds / reference["seconds"],
            "accuracy": timings[0].accuracy,
            "same_work": all(abs(t.accuracy - reference["accuracy"]) <= TOLERANCE for t in timings),
            "runs": [{"rounds": t.seconds, "accuracy": t.accuracy} for t in timings],
        }
    return rows


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"{'':<22}{'seconds':>10}{'ratio':>8}{'accuracy':>10}"]
    for name, row in rows.items():
        if "not_available" in row:
            lines.append(f"{name:<22}  not available: {row['not_available']}")
            continue
        remark = "" if row["same_work"] else "  not the same work"
        lines.append(f"{name:<22}{row['seconds']:>10.2f}{row['ratio']:>8.2f}{row['accuracy']:>10.2f}{remark}")
    return "\n".join(lines)


def as_markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| | version | seconds per round | ratio to the bare loop | accuracy |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        if "not_available" in row:
            lines.append(f"| {name} | not available: {row['not_available']} | | | |")
            continue
        numbers = f"{row['seconds']:.2f} | {row['ratio']:.2f} | {row['accuracy']:.2f}"
        lines.append(f"| {name} | {row['version']} | {numbers} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
