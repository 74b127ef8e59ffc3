"""One computation for the same request of many clients: their weights are stacked, and each client has a row.

A step of a small net is all overhead, and many clients step together in little more time than one. No row depends on the others, and
batches are those that a client draws alone; where it has fewer samples than a batch, rows without a say fill it up. PyTorch computes a
stack of one otherwise than a larger one, so a single client is there twice: its bits are the same in any company.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from fedtailor.data.task import CLASSES
from fedtailor.learning.descent import GROWTH
from fedtailor.learning.optimizer import StackedOptimizer
from fedtailor.learning.requests import Batches, Counted, Forward, Scoring, Training, padded, power_of_two
from fedtailor.nets.chain import Chain, Weights
from fedtailor.nets.net import Part
from fedtailor.nets.stackable import Layers

BLOCK = 2**20  # row numbers that are drawn ahead
VALUES = 2**22  # of samples in one forward pass

Some = slice | list[int]  # of the clients of a stack
Batch = tuple[Tensor, Tensor, Some]  # samples, labels, and whose they are


class Piece(NamedTuple):
    """Samples of the client of one request, in one forward pass."""

    request: int
    x: Tensor
    y: Tensor


@torch.no_grad()
def forward(requests: Sequence[Forward], layers: Layers, flats: Tensor) -> list[Any]:
    """Answer requests for outputs, scores or features of one net, whose memory at each client is a row of `flats`."""
    stacks: dict[int, list[Piece]] = defaultdict(list)  # by the rows to which samples are filled up
    for k, request in enumerate(requests):
        for x, y in request.samples.chunks():
            stacks[power_of_two(len(x))].append(Piece(k, x, y))
    call = layers.features if requests[0].features else layers.outputs
    tally = Tally(requests) if isinstance(requests[0], Scoring) else None
    found: list[list[Tensor]] = [[] for _ in requests]
    for length, pieces in sorted(stacks.items(), reverse=True):  # a client's last piece is its smallest
        most = max(2, VALUES // (length * max(1, pieces[0].x[0].numel())))
        for start in range(0, len(pieces), most):
            some = pieces[start : start + most]
            twice = some if len(some) > 1 else some * 2
            x = _filled([piece.x for piece in twice], length)
            outputs = call(layers.weights(flats[[piece.request for piece in twice]]), x)
            for piece, row in zip(some, outputs, strict=False):
                found[piece.request].append(row[: piece.x.shape[0]])
            if tally is not None:
                tally.add(twice, len(some), outputs)
    whole = [torch.cat(pieces) for pieces in found]
    return whole if tally is None else tally.of(whole)


def _filled(tensors: list[Tensor], length: int) -> Tensor:
    """Tensors as one, each with so many rows."""
    stacked = pad_sequence(tensors, batch_first=True)
    missing = length - stacked.shape[1]
    return stacked if not missing else F.pad(stacked, (0, 0) * (stacked.ndim - 2) + (0, missing))


class Tally:
    """How many outputs of each client are right, and their summed loss."""

    def __init__(self, requests: Sequence[Forward]) -> None:
        self.task = requests[0].samples.task
        self.correct = [0] * len(requests)
        self.loss = [0.0] * len(requests)

    def add(self, pieces: Sequence[Piece], count: int, outputs: Tensor) -> None:
        """Count the outputs of the first so many pieces."""
        y = _filled([piece.y for piece in pieces], outputs.shape[1])
        says = torch.arange(y.shape[1]) < torch.tensor([piece.y.shape[0] for piece in pieces])[:, None]
        says = says.to(outputs.device)
        flat, labels = outputs.flatten(0, 1), y.flatten(0, 1)
        losses = (self.task.losses(flat, labels).view(says.shape).double() * says).sum(1).tolist()
        right = (self.task.right(flat, labels).view(says.shape) & says).sum(1).tolist()
        for piece, correct, loss in zip(pieces[:count], right, losses, strict=False):
            self.correct[piece.request] += correct
            self.loss[piece.request] += loss

    def of(self, outputs: Sequence[Tensor]) -> list[Counted]:
        return [Counted(*found) for found in zip(outputs, self.correct, self.loss, strict=True)]


def train(requests: Sequence[Training], layers: Layers, flats: Tensor) -> list[bool]:
    """Take the steps of requests on the same part of one net, and return for each client whether its losses and weights are sound.

    `flats` has the net's memory at each client, and is changed. A client that is not sound has to train alone, as if nothing had been
    done: with the guards of a `Descent`, which leave out steps and put weights back.
    """
    generators = [request.batches.generator for request in requests if isinstance(request.batches, Batches)]
    before = [generator.get_state() for generator in generators]
    order = sorted(range(len(requests)), key=lambda k: -_batches(requests[k]).count)
    rows = flats[order]
    steps = Steps([requests[k] for k in order], layers, rows)
    steps.take()
    sound = dict(zip(order, steps.sound(), strict=True))
    kept = [place for place, k in enumerate(order) if sound[k]]
    flats[[order[place] for place in kept]] = rows[kept]
    for k in order:
        if not sound[k]:
            generators[k].set_state(before[k])
    return [sound[k] for k in range(len(requests))]


class Steps:
    """The steps of some clients on the same part of one net. Those who take most come first."""

    def __init__(self, requests: Sequence[Training], layers: Layers, flats: Tensor) -> None:
        """`flats` has the net's memory at each client, and is changed."""
        first = requests[0]
        self.requests, self.layers, self.flats = requests, layers, flats
        self.descent, self.part = first.descent, first.part
        self.chain = layers.chain(features=first.features) if self.descent.plain else None
        self.batches = [_batches(request) for request in requests]
        self.counts = [batches.count for batches in self.batches]
        self.weights = layers.weights(flats)
        self.trained = {name: self.weights[name] for name in _parameters(first.part)}
        self.before = _norms(self.trained.values())
        self.losses = flats.new_zeros(self.counts[0], len(requests))
        self.x = torch.cat([*(b.x for b in self.batches), torch.zeros_like(self.batches[0].x[:1])])
        self.y = torch.cat([*(b.y for b in self.batches), torch.zeros_like(self.batches[0].y[:1])])
        self.width = padded(self.batches[0])
        sizes = torch.tensor([b.rows for b in self.batches])
        self.says = (torch.arange(self.width) < sizes[:, None]).to(flats)  # 1 for a sample, 0 for what fills a batch up
        of_each = [request.descent.participant.class_weights for request in requests]
        self.class_weights = torch.stack([w for w in of_each if w is not None]) if of_each[0] is not None else None
        self.centres = self._centres()
        self.near = _stacked_prototypes(requests, flats)
        self.ends = Ends(requests, self.trained) if first.average else None

    def take(self) -> None:
        """Take all steps; clients that have no more leave the stack."""
        numbers, optimizer, done = self._row_numbers(), None, 0
        for until in sorted(set(self.counts)):
            active = sum(count >= until for count in self.counts)
            some: Some = slice(0, active) if active > 1 else [0, 0]
            weights = {name: tensor[some] for name, tensor in self.weights.items()}
            trained = {name: weights[name] for name in self.trained}
            if not self.descent.plain:
                optimizer = StackedOptimizer(trained, self.descent.protocol, self.descent.lr, optimizer, some)
            for step in range(done, until):
                rows = next(numbers)[some]
                batch = self.x[rows], self.y[rows], some
                if self.chain is not None:
                    loss = self._written_out(self.chain, weights, trained, batch)
                else:
                    loss = self._by_autograd(weights, trained, batch, optimizer)
                self.losses[step, :active] = loss.detach()[:active]
                if self.ends is not None:
                    self.ends.reached(step, trained)
            if active == 1:
                for name, tensor in trained.items():
                    self.weights[name][0] = tensor.detach()[0]
            done = until
        if self.ends is not None:
            self.ends.average(self.trained)
        for name, tensor in self.trained.items():
            self.flats[:, self.layers.places[name][0]] = tensor.detach().flatten(1)

    def sound(self) -> list[bool]:
        """Record the losses of clients whose losses and weights are sound, and return which are."""
        after = _norms(self.trained.values())
        exploded = (after > GROWTH) & (after > GROWTH * self.before)
        sound = (after.isfinite() & ~exploded & self.losses.isfinite().all(0)).tolist()
        for k, losses in enumerate(self.losses.T.tolist()):
            if sound[k]:
                self.requests[k].descent.participant.losses.extend(losses[: self.counts[k]])
        return sound

    def _written_out(self, chain: Chain, weights: Weights, trained: Weights, batch: Batch) -> Tensor:
        """Take one step of plain SGD on a batch, and return the loss of each client."""
        x, y, some = batch
        passed = chain.passed(weights, x)
        leaves = {len(chain.layers): passed[-1].detach().requires_grad_()}
        if self.near is not None:
            leaves[self.layers.depth] = passed[self.layers.depth].detach().requires_grad_()
        loss = self._losses(*leaves.values(), y=y, some=some)
        gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
        factors = chain.back(weights, trained, passed, dict(zip(leaves, gradients, strict=True)))
        self._pull(trained, some)
        for factor in factors:
            factor.descend(weights, trained, self.descent.lr)
        return loss

    def _by_autograd(
        self, weights: Weights, trained: Weights, batch: Batch, optimizer: StackedOptimizer | None
    ) -> Tensor:
        """Take one step on a batch, and return the loss of each client."""
        x, y, some = batch
        for tensor in trained.values():
            tensor.requires_grad_()
        z = x if self.requests[0].features else self.layers.features(weights, x)
        loss = self._losses(self.layers.classify(weights, z), z, y=y, some=some)
        gradients = torch.autograd.grad(loss.sum(), list(trained.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            if optimizer is None:
                self._pull(trained, some)
                torch._foreach_add_(list(trained.values()), list(gradients), alpha=-self.descent.lr)
            else:
                of = dict(zip(trained, gradients, strict=True))
                for name, centre in self.centres.items():
                    of[name] = of[name] + self.strength * (trained[name] - centre[some])
                optimizer.step(list(of.values()))
        return loss

    def _losses(self, outputs: Tensor, z: Tensor | None = None, *, y: Tensor, some: Some) -> Tensor:
        """The loss of each client on its batch, from outputs and features."""
        task = self.descent.participant.task
        each = task.losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])
        counts = says = self.says[some]
        if self.class_weights is not None and task.kind in CLASSES:
            says = says * self.class_weights[some].gather(1, y)
        loss = (says * each).sum(1) / says.sum(1)
        if self.near is None:
            return loss
        assert z is not None
        prototypes, known, weight = self.near
        rows = torch.arange(len(y), device=y.device)[:, None]
        distances = (z - prototypes[some][rows, y]).square().mean(2) * known[some].gather(1, y)
        return loss + weight * (counts * distances).sum(1) / counts.sum(1)

    @property
    def strength(self) -> float:
        """Of the pulls."""
        return 0.0 if self.requests[0].pull is None else self.requests[0].pull.strength

    def _pull(self, trained: Weights, some: Some) -> None:
        for name, centre in self.centres.items():
            trained[name].lerp_(centre[some], self.descent.lr * self.strength)

    def _centres(self) -> dict[str, Tensor]:
        """The centres of the clients' pulls, by parameter."""
        pulls = [request.pull for request in self.requests if request.pull is not None]
        if not pulls:
            return {}
        part = pulls[0].on or self.part
        centres = torch.stack([part.trainable(pull.centre) for pull in pulls])
        names = _parameters(part)
        shapes = [self.layers.places[name][1] for name in names]
        cut = centres.split([shape.numel() for shape in shapes], dim=1)
        return {name: c.reshape(-1, *shape) for name, c, shape in zip(names, cut, shapes, strict=True)}

    def _row_numbers(self) -> Iterator[Tensor]:
        """For each step, the samples of each client's batch, as row numbers of x and y."""
        nothing = len(self.y) - 1
        starts = torch.tensor([0, *(len(b.y) for b in self.batches)]).cumsum(0)[:-1, None]
        orders = [Order(batches) for batches in self.batches]
        length = min(self.counts[0], max(1, BLOCK // (len(orders) * self.width)))
        for done in range(0, self.counts[0], length):
            left = [count - done for count in self.counts if count > done]
            drawn = [order.next(min(length, steps)) for order, steps in zip(orders, left, strict=False)]
            drawn = [
                F.pad(d, (0, self.width - d.shape[1]), value=nothing) if d.shape[1] < self.width else d for d in drawn
            ]
            block = pad_sequence(drawn, padding_value=nothing)  # (steps, clients, rows of a batch)
            yield from (block + starts[: len(drawn)]).clamp_(max=nothing).to(self.x.device)


class Order:
    """The order in which one client takes its samples."""

    def __init__(self, batches: Batches) -> None:
        self.epochs, self.per_epoch = batches.order(), batches.per_epoch
        self.left = torch.empty(0, batches.rows, dtype=torch.long)

    def next(self, steps: int) -> Tensor:
        """The sample numbers of the next steps, (steps, rows of a batch)."""
        missing = max(0, steps - self.left.shape[0])
        epochs = islice(self.epochs, -(-missing // self.per_epoch))
        numbers = torch.cat([self.left, *epochs])
        self.left = numbers[steps:]
        return numbers[:steps]


class Ends:
    """The mean of each client's weights at the ends of its last epochs."""

    def __init__(self, requests: Sequence[Training], trained: dict[str, Tensor]) -> None:
        self.due: dict[int, list[int]] = defaultdict(list)  # step -> clients whose weights count then
        self.counts = [0] * len(requests)
        for k, request in enumerate(requests):
            ends = range(request.per_epoch, _batches(request).count + 1, request.per_epoch)[-request.average :]
            self.counts[k] = len(ends)
            for end in ends:
                self.due[end - 1].append(k)
        self.sums = {name: torch.zeros_like(tensor) for name, tensor in trained.items()}

    @torch.no_grad()
    def reached(self, step: int, trained: dict[str, Tensor]) -> None:
        clients = self.due.get(step)
        if clients:
            for name, tensor in trained.items():
                self.sums[name][clients] += tensor[clients]

    @torch.no_grad()
    def average(self, trained: dict[str, Tensor]) -> None:
        for k, count in enumerate(self.counts):
            if count:
                for name, tensor in trained.items():
                    tensor[k] = self.sums[name][k] / count


def _batches(request: Training) -> Batches:
    assert isinstance(request.batches, Batches)
    return request.batches


def _stacked_prototypes(requests: Sequence[Training], like: Tensor) -> tuple[Tensor, Tensor, float] | None:
    """The prototypes to which the clients' features are pulled, which of them are known, and how strongly; None if they are not."""
    near = [request.near for request in requests if request.near is not None]
    if not near:
        return None
    return torch.stack([n.prototypes for n in near]), torch.stack([n.known for n in near]).to(like), near[0].weight


def _parameters(part: Part) -> list[str]:
    """The names of what trains, in the order of the part's vector."""
    return [name for name, tensor in part.entries.items() if tensor.requires_grad]


def _norms(stacked: Iterable[Tensor]) -> Tensor:
    return torch.stack([t.detach().flatten(1).norm(dim=1) for t in stacked]).norm(dim=0)
