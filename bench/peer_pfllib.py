"""The job of `bench.peers` in PFLlib, run with a checkout of it in an environment that holds what it imports.

    python -m bench.peer_pfllib CHECKOUT FedAvg job.npz
    python -m bench.peer_pfllib CHECKOUT FedRep --test-only job.npz

PFLlib's own server and clients run, as its `main.py` sets them up, on samples written as its generators write them; the net and its
initial weights are the job's. It has one process, with one thread per core. Each evaluation scores all clients on their test samples in the
batches of training, and takes the loss of all training samples as well; `--test-only` leaves the latter out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.peer_job import CORES, Job, Timing, job_at

MODULES = {"FedAvg": "serveravg", "FedRep": "serverrep"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("algorithm", choices=MODULES)
    parser.add_argument("job", type=Path)
    parser.add_argument("--test-only", action="store_true", help="no loss of the training samples")
    args = parser.parse_args()
    sys.path.insert(0, str(args.checkout.absolute() / "system"))
    torch.set_num_threads(CORES)
    job = job_at(str(args.job))
    with tempfile.TemporaryDirectory() as folder:
        system = Path(folder, "system")  # PFLlib reads ../dataset
        system.mkdir()
        os.chdir(system)
        write(job, Path(folder, "dataset", "job"))
        server = server_of(job, args.algorithm)
        if args.test_only:
            server.train_metrics = lambda: ([0], [1], [0.0])
        server.train()
    print(timing(job, server).to_line(), flush=True)


def write(job: Job, folder: Path) -> None:
    for number, (train_x, train_y, test_x, test_y) in enumerate(job.clients):
        for split, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
            path = folder / split / f"{number}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            data: Any = {"x": x.numpy(), "y": y.numpy()}
            np.savez_compressed(path, data=data)


def server_of(job: Job, algorithm: str) -> Any:
    """Return PFLlib's server with its clients; every option that the job does not name has the default of PFLlib's `main.py`."""
    options = SimpleNamespace(
        algorithm=algorithm,
        model=job.net if algorithm == "FedAvg" else split(job.net),
        dataset="job",
        device="cpu",
        num_classes=job.classes,
        num_clients=len(job.clients),
        global_rounds=job.rounds,
        local_epochs=job.epochs,
        plocal_epochs=1,
        batch_size=job.batch,
        local_learning_rate=job.lr,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        join_ratio=1.0,
        random_join_ratio=False,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        time_select=False,
        time_threthold=10000,
        eval_gap=1,
        auto_break=False,
        top_cnt=100,
        goal="test",
        save_folder_name="items",
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
        few_shot=0,
        privacy=False,
        dp_sigma=0.0,
    )
    module = importlib.import_module(f"flcore.servers.{MODULES[algorithm]}")
    return getattr(module, algorithm)(options, 0)


def split(net: nn.Module) -> Any:
    """Cut a net before its last layer, as PFLlib does for methods with a head."""
    name, head = list(net.named_children())[-1]
    setattr(net, name, nn.Identity())
    return importlib.import_module("flcore.trainmodel.models").BaseHeadSplit(net, head)


def timing(job: Job, server: Any) -> Timing:
    """PFLlib evaluates at the start of a round, so its loop has one round more than asked: that evaluates the last, and is not timed."""
    return Timing("PFLlib", server.Budget[: job.rounds], 100 * server.rs_test_acc[job.rounds])


if __name__ == "__main__":
    main()
