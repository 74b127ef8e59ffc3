"""A bare PyTorch loop: FedAvg's SGD steps, mean and evaluation in worker processes, with no framework around them.

The least that any library has to do, as one would write it by hand: the reference of all benchmarks.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:  # the net and the loop also run where FedTailor is not installed
    from fedtailor import Federation

Client = tuple[Tensor, Tensor, Tensor, Tensor]  # train x, y, test x, y


class BareLoop:
    """FedAvg in worker processes; `round()` trains and evaluates every client once. Clients are spread so that samples are balanced."""

    def __init__(
        self, net: nn.Module, clients: list[Client], *, batch: int, lr: float, epochs: int, processes: int
    ) -> None:
        self.net = net
        self.start = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).share_memory_()
        self.sums = torch.zeros(processes, len(self.start)).share_memory_()
        self.batch, self.lr, self.epochs = batch, lr, epochs
        shares: list[list[Client]] = [[] for _ in range(processes)]
        for client in sorted(clients, key=lambda c: -len(c[1])):
            min(shares, key=lambda share: sum(len(c[1]) for c in share)).append(client)
        self.samples = sum(len(c[1]) for c in clients)
        context: Any = multiprocessing.get_context("fork")
        self.pipes: list[Connection] = []
        for number, share in enumerate(shares):
            ours, theirs = context.Pipe()
            context.Process(target=self._serve, args=(theirs, number, share), daemon=True).start()
            self.pipes.append(ours)

    def round(self) -> float:
        """Run one round; return the accuracy of the averaged net."""
        self._ask("train")
        torch.sum(self.sums, 0, out=self.start)
        right, total = map(sum, zip(*self._ask("test"), strict=True))
        return right / max(total, 1)

    def _ask(self, work: str) -> list[Any]:
        for pipe in self.pipes:
            pipe.send(work)
        return [pipe.recv() for pipe in self.pipes]

    def _serve(self, pipe: Connection, number: int, clients: list[Client]) -> None:
        torch.set_num_threads(1)
        while True:
            try:
                work = pipe.recv()
            except EOFError:
                return
            pipe.send(self._train(number, clients) if work == "train" else self._test(clients))

    def _train(self, number: int, clients: list[Client]) -> tuple[int, int]:
        self.sums[number] = 0
        optimizer = torch.optim.SGD(self.net.parameters(), lr=self.lr)
        for x, y, _, _ in clients:
            self._load(self.start)
            size = min(self.batch, len(y))
            for _ in range(self.epochs):
                for index in torch.randperm(len(y)).split(size):
                    if len(index) == size:
                        optimizer.zero_grad()
                        F.cross_entropy(self.net(x[index]), y[index]).backward()
                        optimizer.step()
            trained = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])
            self.sums[number] += trained * (len(y) / self.samples)
        return 0, 0

    @torch.no_grad()
    def _test(self, clients: list[Client]) -> tuple[int, int]:
        self._load(self.start)
        right = total = 0
        for _, _, x, y in clients:
            for rows, labels in zip(x.split(512), y.split(512), strict=True):
                right += int((self.net(rows).argmax(1) == labels).sum())
                total += len(labels)
        return right, total

    @torch.no_grad()
    def _load(self, vector: Tensor) -> None:
        offset = 0
        for p in self.net.parameters():
            p.copy_(vector[offset : offset + p.numel()].view_as(p))
            offset += p.numel()


class PlainMLP(nn.Module):
    """A perceptron with one hidden layer, for tables."""

    def __init__(self, inputs: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.hidden(x)))


class PlainCNN(nn.Sequential):
    """The papers' 4-layer CNN as one writes it by hand."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        depth, height, width = shape
        left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        super().__init__(
            nn.Conv2d(depth, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * left[0] * left[1], 512), nn.ReLU(), nn.Linear(512, classes),
        )  # fmt: skip


def tensors(federation: Federation) -> list[Client]:
    """Return the clients' samples as normalized floats."""
    mean = torch.tensor(federation.mean).view(-1, 1, 1)
    std = torch.tensor(federation.std).view(-1, 1, 1)

    def floats(x: Tensor) -> Tensor:
        return (x.float() / 255 - mean) / std if x.dtype == torch.uint8 else x.float()

    def whole(split: Any) -> tuple[Tensor, Tensor]:
        return floats(split.take(torch.arange(len(split)))), split.y

    return [(*whole(c.train), *whole(c.test)) for c in federation.clients]


def plain_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The net of the benchmarks for images, or for the rows of a table."""
    return PlainCNN(shape, classes) if len(shape) == 3 else PlainMLP(shape[0], classes)
