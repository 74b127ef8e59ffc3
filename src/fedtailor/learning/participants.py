"""The participants a method speaks of: a client with its private samples and state, and the server."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any
from typing import Protocol as Interface

import torch
from torch import Tensor, nn

from fedtailor.data.client_data import ClientData
from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError
from fedtailor.learning.descent import Descent
from fedtailor.learning.kernels import features_suffice, kernel
from fedtailor.learning.losses import Loss
from fedtailor.learning.mixing import State
from fedtailor.learning.modules import Modules
from fedtailor.learning.private_steps import PrivateSteps, is_private, private_batches
from fedtailor.learning.protocol import Protocol
from fedtailor.learning.requests import Batches, Forward, Request, Training
from fedtailor.learning.sample_weights import weights_of
from fedtailor.learning.samples import ENDLESS, Samples
from fedtailor.learning.scoring import Score, score
from fedtailor.nets.architecture import Architecture
from fedtailor.nets.net import Net, Part, Pull
from fedtailor.randomness import Key, derive, torch_stream

log = logging.getLogger("fedtailor")


class Stack(Interface):
    """Computes what several clients ask for together."""

    def ask(self, participant: Participant, request: Request) -> Any: ...


class Participant:
    """Base class of Client and Server: holds samples and trains nets."""

    def __init__(
        self, modules: Modules, samples: Samples, protocol: Protocol, state: State, keys: tuple[Key, ...]
    ) -> None:
        self.modules = modules
        self.samples = samples
        self.protocol = protocol
        self.state = state
        self.keys = keys
        self.lr_factor = 1.0  # of the schedule
        self.logged: dict[str, float] = {}
        self.trouble: Counter[str] = Counter()
        self.losses: list[float] = []
        self.private: PrivateSteps | None = None  # the steps that protect single samples, where the run asks for it
        self.stack: Stack | None = None  # has what clients ask for computed together
        self._streams: dict[str, torch.Generator] = {}
        self.nets: dict[str, Net] = {}
        self._class_weights: tuple[Samples, Tensor] | None = None  # and the samples that they are of

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
            if initial.statistics.numel():
                net.local_buffers.copy_(self.state.get(f"buffers.{role}", initial.statistics))
            if model is not None or body is None or head is None:
                net.all.vector = initial.weights if model is None else model
            if body is not None:
                net.body.vector = body
            if head is not None:
                net.head.vector = head
        self.nets[role] = net
        return net

    def fresh(self, purpose: str, architecture: str | Architecture | None = None) -> Tensor:
        """Initial weights (a vector of the whole net) drawn for this participant and purpose alone, unlike the run's common ones."""
        return self.modules.build(architecture, derive(self.protocol.seed, "fresh", *self.identity, purpose)).all.vector

    @property
    def identity(self) -> tuple[Key, ...]:
        """Who this participant is, whatever the round."""
        return ("server",)

    def rng(self, purpose: str) -> torch.Generator:
        """The random stream of this participant, round and purpose. Phases that draw from their own streams do not disturb each other."""
        if purpose not in self._streams:
            self._streams[purpose] = torch_stream(self.protocol.seed, *self.keys, purpose)
        return self._streams[purpose]

    def role(self, net: Net) -> str:
        """The role in which a net was asked for."""
        return next((role for role, lent in self.nets.items() if lent is net), "model")

    def rate(self, lr: float | None = None) -> float:
        """A learning rate, the protocol's unless one is given, by the schedule of this round."""
        return (self.protocol.lr if lr is None else lr) * self.lr_factor

    def batches(
        self, epochs: int | None = None, *, size: int | None = None, purpose: str = "batches"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled batches of the training samples, for so many epochs or for as long as a round trains; see `steps`."""
        if self.private is not None:
            if size is not None:
                raise FedTailorError("Privacy for samples needs batches of the run's own size.")
            return private_batches(self, epochs)
        return iter(self._shuffled(epochs, size, purpose))

    def _shuffled(self, epochs: int | None, size: int | None, purpose: str) -> Iterable[tuple[Tensor, Tensor]]:
        if self.samples.x is not None and not self.samples.augmented:
            return self._pairs((self.samples.x, self.samples.y), epochs, size, purpose)
        epochs, steps = self._duration(epochs)
        return islice(self.samples.batches(size or self.protocol.batch, epochs, self.rng(purpose)), steps)

    def _duration(self, epochs: int | None) -> tuple[int, int | None]:
        """Return epochs, and after how many batches to stop before their end: the protocol's, unless epochs are given."""
        if epochs is None and self.protocol.steps:
            return ENDLESS, self.protocol.steps
        return self.protocol.epochs if epochs is None else epochs, None

    @property
    def task(self) -> Task:
        return self.modules.task

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The task's loss, the mean over a batch by the weights of its samples, and with the class weights that the protocol asks for."""
        return self.task.loss(outputs, y, self.class_weights, self.sample_weights(y))

    def sample_weights(self, y: Tensor) -> Tensor | None:
        """The weights of a batch's samples, None where samples have none."""
        weights = weights_of(y)
        if weights is None and self.samples.weights is not None:
            raise FedTailorError(
                "Samples have weights, but labels reached the loss without theirs: the method does not support sample weights."
            )
        return weights

    @property
    def class_weights(self) -> Tensor | None:
        asked, samples = self.protocol.class_weights, self.samples
        if asked == "none" or (asked == "balanced" and not len(samples)):
            return None
        if self._class_weights is None or self._class_weights[0] is not samples:
            weights = self.task.class_weights(samples.y) if asked == "balanced" else torch.tensor(asked)
            self._class_weights = samples, weights.to(samples.device, samples.dtype)
        return self._class_weights[1]

    @property
    def plain_cross_entropy(self) -> bool:
        """Whether the task's loss is the one that steps are written out for."""
        return self.task.kind == "multiclass" and self.class_weights is None and self.samples.weights is None

    def train(
        self,
        part: Part,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        loss: Loss | None = None,
        on: tuple[Tensor, Tensor] | None = None,
        samples: Samples | None = None,
        pull: Pull | tuple[Tensor, float] | None = None,
        purpose: str | None = None,
        momentum: float | None = None,
        average: int = 0,
    ) -> None:
        """Train one part of a net while the rest stays frozen, on the task's loss unless another loss is given.

        A head trains on features: those given as `on` = (z, y), else those of the frozen body, embedded once when they cannot vary.
        A loss given together with `on` receives features as its x. `samples` are trained on in place of all, such as those that
        `Client.split` keeps. `pull` = (centre, strength) adds the proximal term strength/2·‖w − centre‖², and
        `Pull(centre, strength, net.body)` that of a part of what trains. `purpose` names the random stream of the batches; by default it is
        the part's name. With `momentum`, steps are those of SGD with that momentum, whatever the protocol's optimizer is. With `average`,
        the part ends as the mean of its weights at the ends of the last so many epochs.
        """
        if on is not None and samples is not None:
            raise TypeError("train: give the features to train on as `on`, or samples as `samples`, not both.")
        private = is_private(self, part)
        if private and (on is not None or samples is not None):
            raise FedTailorError(
                "Privacy for samples needs a method that trains on the client's samples, all of them and as they are."
            )
        net, purpose = part.net, purpose or part.name
        with self.using(self.samples if samples is None else samples):
            if on is None and features_suffice(part, loss, augmented=self.samples.augmented):
                on = self.embed(net)
            descent = Descent(self, (part,), lr, momentum)
            pull = None if pull is None else Pull(*pull)
            step = kernel(descent, part, loss, pull, features=on is not None)
            batches: Iterable[tuple[Tensor, Tensor]]
            if private:
                batches = private_batches(self, epochs, on)
            else:
                batches = (
                    self._shuffled(epochs, None, purpose) if on is None else self._pairs(on, epochs, None, purpose)
                )
            size = max(1, min(self.protocol.batch, len(self.samples)))
            per_epoch = max(1, len(self.samples) // size)
            with self._same_statistics(part):
                self.ask(Training(descent, part, batches, step, loss, on is not None, pull, average, per_epoch))

    def _pairs(self, on: tuple[Tensor, Tensor], epochs: int | None, size: int | None, purpose: str) -> Batches:
        """Shuffled batches of rows and labels, for so many epochs or for as long as a round trains."""
        epochs, steps = self._duration(epochs)
        return Batches(*on, size or self.protocol.batch, epochs, steps, self.rng(purpose))

    def ask(self, request: Request) -> Any:
        """Have something computed: here and now, unless an engine stacks what several clients ask for."""
        return request.alone() if self.stack is None else self.stack.ask(self, request)

    @contextmanager
    def using(self, samples: Samples) -> Iterator[None]:
        """Within this context, these are the participant's samples."""
        whole, self.samples = self.samples, samples
        try:
            yield
        finally:
            self.samples = whole

    @contextmanager
    def _same_statistics(self, part: Part) -> Iterator[None]:
        """Put running statistics of the body back at the end, where only the head or a part of it trains."""
        net = part.net
        in_head = part.entries.keys() <= net.head.entries.keys()
        statistics = net.embedder.state_dict() if in_head and not net.repeatable else {}
        statistics = {name: tensor.clone() for name, tensor in statistics.items()}
        yield
        if statistics:
            net.embedder.load_state_dict(statistics)

    def steps(
        self, batches: Iterable[tuple[Tensor, Tensor]], *parts: Part, lr: float | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Descent]]:
        """A loop of a method's own that trains some parts: batches (x, y), and what takes a step.

            for x, y, step in client.steps(client.batches(), net.all):
                step(client.loss(net(x), y))

        Steps have the optimizer, learning rate and guards of `train`: batches that BatchNorm cannot take are left out, as are steps whose
        loss is not finite, and parts that diverge are put back.
        """
        descent = Descent(self, parts, lr)
        for x, y in descent.over(batches):
            yield x, y, descent

    def embed(self, net: Net) -> tuple[Tensor, Tensor]:
        """Features of the training samples, in order, and their labels; computed anew only when the body has changed."""
        samples = self.samples
        return samples.embedded(net, lambda: self.ask(Forward(net, samples, features=True))), samples.y

    def log(self, **values: float) -> None:
        """Record numbers of this round (a mixing weight, a period) beside the metrics."""
        self.logged.update({name: float(value) for name, value in values.items()})

    def warn(self, message: str) -> None:
        log.warning("%s: %s", " ".join(str(k) for k in self.keys), message)

    def keep_buffers(self) -> None:
        """Store the running statistics that stay with this participant, once its work is done."""
        for role, net in self.nets.items():
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

    def split(self, share: float) -> tuple[Samples, Samples]:
        """The training samples to train on, and a share of them held out for the method's own choices: the same ones in every round.

        Where the share is less than one sample, all of them are both.
        """
        if not 0 <= share < 1:
            raise ValueError(f"split: the share must be at least 0 and below 1, not {share}.")
        n = len(self.samples)
        count = int(share * n)
        if count == 0:
            return self.samples, self.samples
        order = torch.randperm(n, generator=torch_stream(self.protocol.seed, "validation", *self.identity))
        return self.samples.subset(order[count:]), self.samples.subset(order[:count])

    def score(self, net: nn.Module, samples: Samples) -> Score:
        """How a net does on samples, such as those that `split` holds out: correct predictions and summed loss."""
        return score(net, samples, ask=self.ask)
