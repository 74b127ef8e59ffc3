"""The job of `bench.peers` in Apple's pfl, run in an environment that holds it.

    python -m bench.peer_pfl job.npz
    python -m torch.distributed.run --standalone --nproc-per-node=2 -m bench.peer_pfl job.npz

Set up as pfl's guide to fast simulations says: samples as tensors in memory, users weighted by their samples so that processes are equally
busy, evaluation in large batches and shared among the processes; pfl's own training metrics are switched off (save in the first
round, where they cannot be). A single process has one thread per core; under torchrun, which the guide prefers, there is one process
with one thread per core.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.peer_job import CORES, TEST_BATCH, Job, Timing, job_at


class Learner(nn.Module):
    """The job's net with the two functions that pfl calls."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"accuracy": Weighted(int((self.net(x).argmax(1) == y).sum()), len(y))}


class Batches(PyTorchTensorDataset):
    """A client's training samples, batched as the job asks."""

    def __init__(self, job: Job, client: int) -> None:
        super().__init__(job.clients[client][:2], user_id=str(client))
        self.job = job

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        return self.job.batches(*self.raw_data)


class Stopwatch(TrainingProcessCallback):
    """Record the time and the accuracy at the end of each round; runs after the evaluation."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.accuracy = 0.0

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.times.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.times.append(time.perf_counter())
        self.accuracy = 100 * aggregate_metrics.to_simple_dict().get("Central val | accuracy", 0.0)
        return False, Metrics()


def train(job: Job) -> Timing:
    clients = range(len(job.clients))
    data = FederatedDataset(
        [Batches(job, k) for k in clients].__getitem__,
        get_user_sampler("minimize_reuse", clients),  # so a round has each client once
        {k: len(job.clients[k][1]) for k in clients},
    )
    learner = Learner(job.net)
    scoring = NNEvalHyperParams(local_batch_size=TEST_BATCH)
    watch = Stopwatch()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds,
            train_cohort_size=len(clients),
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=job.batch, local_num_epochs=job.epochs, local_learning_rate=job.lr),
        scoring,
        callbacks=[CentralEvaluationCallback(PyTorchTensorDataset(job.test), scoring), watch],
        send_metrics_to_platform=False,
    )
    return Timing(f"pfl {version('pfl')}", np.diff(watch.times).tolist(), watch.accuracy)


if __name__ == "__main__":
    torch.set_num_threads(CORES // int(os.environ.get("WORLD_SIZE", "1")) or 1)
    np.random.seed(0)  # noqa: NPY002  (pfl's processes agree on who trains whom by numpy's global generator)
    timing = train(job_at(sys.argv[1]))
    if os.environ.get("RANK", "0") == "0":
        print(timing.to_line(), flush=True)
