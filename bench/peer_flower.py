"""The job of `bench.peers` in Flower's simulation on Ray, run in an environment that holds it.

    python -m bench.peer_flower job.npz

Set up as Flower's guide to simulations says for one machine: one Ray actor per core, with one thread, kept for the whole run. An actor
reads samples and makes its net once, so that no round pays for it. The server scores the average itself (`evaluate_fn`) with as many
threads as there are cores, which saves a second round of messages to all clients.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy

from bench.peer_job import CORES, TEST_BATCH, Job, Timing, job_at


def client_app(path: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        job = job_at(path)
        x, y, _, _ = job.clients[int(context.node_config["partition-id"])]
        job.net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(job.net.parameters(), lr=job.lr)
        for _ in range(job.epochs):
            for rows, labels in job.batches(x, y):
                optimizer.zero_grad()
                cross_entropy(job.net(rows), labels).backward()
                optimizer.step()
        trained, size = ArrayRecord(job.net.state_dict()), MetricRecord({"num-examples": len(y)})
        return Message(content=RecordDict({"arrays": trained, "metrics": size}), reply_to=message)

    return app


class Server:
    """Run the rounds, and record the time and the accuracy at the end of each."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.times: list[float] = []
        self.accuracy = 0.0

    def app(self) -> ServerApp:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            torch.set_num_threads(CORES)
            everyone = len(self.job.clients)
            strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=everyone, min_available_nodes=everyone)
            start = ArrayRecord(self.job.net.state_dict())
            strategy.start(grid, start, num_rounds=self.job.rounds, evaluate_fn=self.evaluate)

        return app

    @torch.no_grad()
    def evaluate(self, round: int, arrays: ArrayRecord) -> MetricRecord:
        self.job.net.load_state_dict(arrays.to_torch_state_dict())
        x, y = self.job.test
        guesses = torch.cat([self.job.net(rows).argmax(1) for rows in x.split(TEST_BATCH)])
        self.accuracy = 100 * float((guesses == y).float().mean())
        self.times.append(time.perf_counter())
        return MetricRecord({"accuracy": self.accuracy})

    def timing(self) -> Timing:
        seconds = torch.tensor(self.times, dtype=torch.float64).diff().tolist()
        return Timing(f"flwr {version('flwr')}", seconds, self.accuracy)


if __name__ == "__main__":
    server = Server(job_at(sys.argv[1]))
    run_simulation(
        server.app(),
        client_app(sys.argv[1]),
        num_supernodes=len(server.job.clients),
        backend_config={"init_args": {"num_cpus": CORES}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    print(server.timing().to_line(), flush=True)
