"""The parties a method speaks of: a client with its private samples and state, and the server."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.data.client_data import ClientData
from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError
from fedtailor.learning.compiled import CompiledSteps
from fedtailor.learning.linear_head import is_linear_head, linear_step
from fedtailor.learning.losses import Loss
from fedtailor.learning.mixing import State
from fedtailor.learning.protocol import Protocol
from fedtailor.learning.samples import Samples, shuffled_pairs
from fedtailor.nets.architecture import Architecture
from fedtailor.nets.build import build_net
from fedtailor.nets.net import Net, Part
from fedtailor.randomness import Key, derive, torch_stream

log = logging.getLogger("fedtailor")

Pull = tuple[Tensor, float]  # (centre, strength): the proximal term strength/2·‖w − centre‖²

# What can go wrong in training, as it is counted: a party's `trouble`, and beside the numbers that a client logs.
SKIPPED = "skipped_steps"  # left out: their loss was not finite
UNDONE = "undone_phases"  # put back: they ended with weights that were not finite
EXPLODED = "exploded_phases"  # kept, though their weights grew beyond GROWTH
TROUBLES = (SKIPPED, UNDONE, EXPLODED)
GROWTH = (
    1e3  # times as large as before the phase (or as 1): sound training stays below 3, lr=10 on digits reaches 8,000
)


class Modules:
    """The modules of one worker, one for each role, lent to whichever party is at work. Vectors belong to parties, modules do not."""

    def __init__(
        self,
        architecture: str | Architecture | nn.Module,
        head: str | None,
        task: Task,
        protocol: Protocol,
        carry_buffers: bool,
    ):
        self.architecture = architecture
        self.head = head
        self.task = task
        self.protocol = protocol
        self.carry_buffers = carry_buffers
        _check_weights(protocol, task)
        self.lent: dict[tuple[str, str], tuple[Net, Tensor]] = {}
        self.steps: CompiledSteps | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For a new process, which builds nets of its own: those sent to it would share this one's memory."""
        return {**self.__dict__, "lent": {}}

    def lend(self, role: str, architecture: str | Architecture | None = None) -> tuple[Net, Tensor]:
        """The net of a role, and the vector of its initial weights and statistics."""
        key = (role, "" if architecture is None else repr(architecture))
        if key not in self.lent:
            net = self.build(architecture, self.protocol.seed)
            self.lent[key] = (net, torch.cat([net.local_buffers, net.all.live]).clone())
        return self.lent[key]

    def build(self, architecture: str | Architecture | None, seed: int) -> Net:
        return build_net(
            self.architecture if architecture is None else architecture,
            self.task,
            head=self.head if architecture is None else None,
            seed=seed,
            carry_buffers=self.carry_buffers,
            dtype=self.protocol.torch_dtype,
            device=torch.device(self.protocol.device),
        )


class Participant:
    """Whoever holds samples and trains nets: the base of Client and Server."""

    def __init__(
        self, modules: Modules, samples: Samples, protocol: Protocol, state: State, keys: tuple[Key, ...]
    ) -> None:
        self.modules = modules
        self.samples = samples
        self.protocol = protocol
        self.state = state
        self.keys = keys
        self.logged: dict[str, float] = {}
        self.trouble: Counter[str] = Counter()
        self.losses: list[float] = []
        self._streams: dict[str, torch.Generator] = {}
        self._nets: dict[str, Net] = {}

    def net(
        self,
        role: str = "model",
        *,
        body: Tensor | None = None,
        head: Tensor | None = None,
        model: Tensor | None = None,
        architecture: str | Architecture | None = None,
    ) -> Net:
        """A net holding the given vectors; what is not given has the run's common initial weights.

        Two nets needed at the same time must have different roles: a second call with the same role reuses the module.
        """
        net, initial = self.modules.lend(role, architecture)
        with torch.no_grad():
            statistics, weights = initial.split([len(net.local_buffers), len(net.all)])
            net.local_buffers.copy_(self.state.get(f"buffers.{role}", statistics))
            net.all.vector = weights if model is None else model
            if body is not None:
                net.body.vector = body
            if head is not None:
                net.head.vector = head
        self._nets[role] = net
        return net

    def fresh(self, purpose: str, architecture: str | Architecture | None = None) -> Tensor:
        """Initial weights (a vector of the whole net) drawn for this party and purpose alone, unlike the run's common ones."""
        return self.modules.build(architecture, derive(self.protocol.seed, "fresh", *self.identity, purpose)).all.vector

    @property
    def identity(self) -> tuple[Key, ...]:
        """Who this party is, whatever the round."""
        return ("server",)

    def rng(self, purpose: str) -> torch.Generator:
        """The random stream of this party, round and purpose. Phases that draw from their own streams do not disturb each other."""
        if purpose not in self._streams:
            self._streams[purpose] = torch_stream(self.protocol.seed, *self.keys, purpose)
        return self._streams[purpose]

    def batches(
        self, epochs: int | None = None, *, size: int | None = None, purpose: str = "batches"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled batches of the training samples, for a loop of a method's own; see `guarded`."""
        epochs = self.protocol.epochs if epochs is None else epochs
        return self.samples.batches(size or self.protocol.batch, epochs, self.rng(purpose))

    @property
    def task(self) -> Task:
        return self.modules.task

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The task's loss, the mean over a batch, with the class weights that the protocol asks for."""
        return self.task.loss(outputs, y, self.class_weights)

    @cached_property
    def class_weights(self) -> Tensor | None:
        asked = self.protocol.class_weights
        if asked == "none" or (asked == "balanced" and not len(self.samples)):
            return None
        weights = self.task.class_weights(self.samples.y) if asked == "balanced" else torch.tensor(asked)
        return weights.to(self.samples.device, self.samples.dtype)

    @property
    def plain_cross_entropy(self) -> bool:
        """Whether the task's loss is the one that steps are written out for."""
        return self.task.kind == "multiclass" and self.class_weights is None

    def train(
        self,
        part: Part,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        loss: Loss | None = None,
        on: tuple[Tensor, Tensor] | None = None,
        pull: Pull | None = None,
        purpose: str | None = None,
    ) -> None:
        """SGD on one part of a net while the rest stays frozen, on the task's loss or the one given.

        A head trains on features: those given as `on` = (z, y), else those of the frozen body, embedded once when they cannot vary.
        A loss given together with `on` receives features as its x. `pull` adds a proximal term. `purpose` names the random stream of the
        batches; by default it is the part's name.
        """
        net = part.net
        purpose = purpose or part.name
        varies = self.samples.augmented or not net.repeatable
        if part.name == "head" and on is None and loss is None and not varies:
            on = self.embed(net)
        if on is None:
            batches = self.batches(epochs, purpose=purpose)
        else:
            epochs = self.protocol.epochs if epochs is None else epochs
            batches = shuffled_pairs(*on, self.protocol.batch, epochs, self.rng(purpose))
        statistics = net.embedder.state_dict() if part.name == "head" and not net.repeatable else {}
        statistics = {name: tensor.clone() for name, tensor in statistics.items()}
        lr = self.protocol.lr if lr is None else lr
        plain = loss is None and pull is None and self.plain_cross_entropy
        for x, y in self.guarded(batches, part):
            if plain and self._graphless_step(part, x, y, lr, features=on is not None):
                continue
            outputs = net if on is None else net.classify
            value = self.loss(outputs(x), y) if loss is None else loss(net, x, y)
            if self.sound(value):
                part.step(value, lr, pull)
        if statistics:
            net.embedder.load_state_dict(statistics)

    def _graphless_step(self, part: Part, x: Tensor, y: Tensor, lr: float, *, features: bool) -> bool:
        """Take a plain step without autograd: compiled, where the run does so (not for smaller batches, which are too rare to be worth
        it), or that of a linear head, which is written out."""
        value = None
        if self.modules.steps is not None and len(y) == self.protocol.batch and part.parameters:
            value = self.modules.steps.take(part, x, y, lr, features=features)
        if value is None and features and is_linear_head(part):
            value = linear_step(part, x, y, lr)
        if value is not None:
            self.sound(value)
        return value is not None

    def guarded(self, batches: Iterable[tuple[Tensor, Tensor]], *parts: Part) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of a loop that trains `parts`: those a net cannot train on are left out, and parts that diverge are put back."""
        before = [part.vector for part in parts]
        for part in parts:
            part.net.train()
        smallest = 2 if any(part.net.has_batchnorm for part in parts) else 1  # one sample has no batch statistics
        for x, y in batches:
            if len(y) >= smallest:
                yield x, y
        for part, vector in zip(parts, before, strict=True):
            if not math.isfinite(part.live.sum().item()):  # infinite or NaN if any entry is
                part.vector = vector
                self.trouble[UNDONE] += 1
            elif _exploded(part.weights, vector[len(vector) - len(part.weights) :]):
                self.trouble[EXPLODED] += 1

    def sound(self, loss: Tensor) -> bool:
        """Record the loss of a step; False if it is not finite: the step has to be left out, and is counted as such."""
        number = loss.item()
        if not math.isfinite(number):
            self.trouble[SKIPPED] += 1
            return False
        self.losses.append(number)
        return True

    def embed(self, net: Net) -> tuple[Tensor, Tensor]:
        """Features of the training samples, in order, and their labels; computed anew only when the body has changed."""
        return self.samples.embedded(net), self.samples.y

    def log(self, **values: float) -> None:
        """Record numbers of this round (a mixing weight, a period) beside the metrics."""
        self.logged.update({name: float(value) for name, value in values.items()})

    def warn(self, message: str) -> None:
        log.warning("%s: %s", " ".join(str(k) for k in self.keys), message)

    def keep_buffers(self) -> None:
        """Store the running statistics that stay with this party, once its work is done."""
        for role, net in self._nets.items():
            if len(net.local_buffers):
                self.state[f"buffers.{role}"] = net.local_buffers.clone()


class Client(Participant):
    """One client at work in one round."""

    def __init__(
        self,
        modules: Modules,
        samples: Samples,
        protocol: Protocol,
        state: State,
        keys: tuple[Key, ...],
        *,
        id: int,
        round: int,
        data: ClientData,
    ) -> None:
        super().__init__(modules, samples, protocol, state, keys)
        self.id = id
        self.round = round
        self.data = data

    @property
    def identity(self) -> tuple[Key, ...]:
        return ("client", self.id)

    @property
    def name(self) -> str:
        return self.data.name

    @property
    def classes(self) -> int:
        return self.modules.task.classes

    @cached_property
    def label_counts(self) -> Tensor:
        """How many training samples of each class the client has."""
        return torch.bincount(self.samples.y, minlength=self.classes)


class Server(Participant):
    """The server: its state, its proxy samples (if the partition gives it any), and what it knows of the clients."""

    def __init__(self, modules: Modules, proxy: Samples, protocol: Protocol, sizes: list[int]) -> None:
        super().__init__(modules, proxy, protocol, {}, ("server", 0))
        self.sizes = sizes
        self.round = 0

    def begin(self, round: int) -> None:
        """Enter a round: new random streams, an empty log."""
        self.round = round
        self.keys = ("server", round)
        self.logged, self.losses, self._streams = {}, [], {}
        self.trouble = Counter()


def _check_weights(protocol: Protocol, task: Task) -> None:
    """Refuse class weights that do not fit the task."""
    asked = protocol.class_weights
    if asked != "none" and task.kind == "regression":
        raise FedTailorError("class_weights need classes, but this is a regression task. Leave them out.")
    if not isinstance(asked, str) and len(asked) != task.classes:
        raise FedTailorError(f"class_weights has {len(asked)} numbers, but the task has {task.classes} classes.")


def _exploded(now: Tensor, before: Tensor) -> bool:
    length = now.norm().item()  # infinite where squares overflow
    return length > GROWTH and length > GROWTH * before.norm().item()
