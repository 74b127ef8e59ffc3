"""A worker holds clients: their samples, their private states, and the modules they take turns in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from fedtailor.attacks.backdoor import SUCCESS
from fedtailor.data.client_data import ClientData, Split
from fedtailor.data.federation import Federation
from fedtailor.data.task import Task
from fedtailor.engines.base import Outcome, Send
from fedtailor.engines.readonly import ReadOnlyPayloads, kept_apart
from fedtailor.engines.states import States
from fedtailor.engines.work import Work
from fedtailor.errors import FedTailorError
from fedtailor.learning import Client, Payload, Protocol, State
from fedtailor.learning.metrics import CONFUSION, selected
from fedtailor.learning.modules import Modules
from fedtailor.learning.private_steps import STEPS, Draws, NamedDraws, PrivateSteps, steps_of
from fedtailor.learning.samples import Samples
from fedtailor.learning.schedule import lr_factor
from fedtailor.learning.scoring import Score, score
from fedtailor.methods.base import Method, methods
from fedtailor.nets.architecture import Architecture
from fedtailor.nets.net import Net
from fedtailor.privacy.rules import Rule
from fedtailor.privacy.sample_dp import EPSILON, Budget, Rehearsal
from fedtailor.privacy.secure_sum.entries import taken_inbox
from fedtailor.privacy.secure_sum.ring import OutOfRange
from fedtailor.randomness import Key, seeded

if TYPE_CHECKING:
    from fedtailor.engines.stack import Stack
    from fedtailor.privacy.secure_sum.contributors import Contributors

V = TypeVar("V")

SENT = "sent."  # before the name of an entry in a client's state, which was masked when it was sent
PARTS = ("train", "validation", "test")  # of a client's samples
READY_LIMIT = 2 * 1024**3  # bytes as floats; a larger federation is normalized batch by batch


class Worker:
    """Runs a method's client side, one client at a time."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        net: str | Architecture | nn.Module,
        head: str | None,
        protocol: Protocol,
        first: int = 0,
        rules: Mapping[str, Rule] | None = None,
        sums: Contributors | None = None,
    ) -> None:
        """`first` is the number of the federation's first client: a site's worker has one client, which need not be number 0.

        `rules` are those of the entries that the method sends, if the run has any; `sums` takes part in secure sums of some.
        """
        _check_task(method, federation.task)
        self.federation = federation
        self.clients: dict[int, ClientData] = {first + k: client for k, client in enumerate(federation.clients)}
        self.method = method
        self.protocol = protocol
        self.rules = rules or {}
        self.budgets: Mapping[int, Budget] = {}  # of clients that protect single samples
        self.draws: Draws | None = None
        self.sums = sums
        self.stack: Stack | None = None  # serves clients side by side
        buffers = method.bn_buffers if protocol.bn_buffers == "method" else protocol.bn_buffers
        self.modules = Modules(net, head, federation.task, protocol, carry_buffers=buffers == "average")
        self.metrics = selected(federation.task, protocol.metrics, protocol.select_by)
        self.keep_outputs = CONFUSION in protocol.metrics or not all(metric.power for metric in self.metrics)
        self.states = States()
        values = sum(len(c.train) + len(c.test) for c in federation.clients) * torch.Size(federation.shape).numel()
        self.ready = values * protocol.torch_dtype.itemsize <= READY_LIMIT
        self._samples: dict[tuple[int, str], Samples] = {}
        self._lent = ReadOnlyPayloads()

    def protect(self, budgets: Mapping[int, Budget], draws: Draws | None = None) -> None:
        """Have clients protect single samples, within these budgets. Nets have plain layers then, whose inputs and outputs can be seen.

        `draws` are those of a real site's next piece of work; in a simulation they come from named streams.
        """
        self.budgets, self.draws = budgets, draws
        self.protocol = replace(self.protocol, fast="off")
        self.modules.protocol, self.modules.lent = self.protocol, {}

    def share(self, clients: Iterable[int]) -> Worker:
        """Return a new worker with only these clients' samples, to be sent to another process."""
        some = copy.copy(self)
        some.clients = {i: self.clients[i].apart() for i in clients}
        some.federation = replace(
            self.federation, clients=list(some.clients.values()), server=self.federation.server.apart([])
        )
        some.states = States()
        some.sums = None if self.sums is None else replace(self.sums, held={}, heaviest={})
        some._samples = {}
        some._lent = ReadOnlyPayloads()
        return some

    def samples(self, split: Split, key: tuple[int, str]) -> Samples:
        if key not in self._samples:
            self._samples[key] = Samples(split, self.federation, self.protocol, ready=self.ready)
        return self._samples[key]

    def serve_all(self, work: Work, round: int, clients: Iterable[int], send: Send) -> Iterator[tuple[int, Outcome]]:
        """Do the part of some clients in an engine's call: one after the other, or side by side."""

        def job(id: int) -> Outcome:
            return self.serve(work, id, round, send(id))

        if self.stack is None or not work.computes:
            for id in clients:
                yield id, job(id)
            return
        net, _ = self.modules.lend("model")
        for some in _cut(clients, self.stack.size(net)):
            yield from self.stack.serve((id, partial(job, id)) for id in some)

    def serve(self, work: Work, id: int, round: int, payload: Payload) -> Outcome:
        """Do one client's part of an engine's call."""
        match work:
            case Work.HELLO:
                return Outcome(self.hello(id))
            case Work.FIT | Work.FIT_AND_SCORE:
                return self.fit(id, round, payload, evaluate=work.scores)
            case Work.SCORE:
                return self.score(id, round, payload)
            case Work.SYNC:
                return self.sync(id, round, payload)
            case Work.SYNC_AND_SCORE:
                synced, scored = self.sync(id, round, payload), self.score(id, round, payload)
                return replace(scored, logged=_sum(synced.logged, scored.logged))
            case Work.FINISH:
                return self.finish(id, round, payload)
            case Work.ADVERTISE | Work.SHARE | Work.UNMASK if self.sums is not None:
                return Outcome(self.sums.serve(work, id, round, payload))
            case Work.GET_STATE:
                return Outcome(self.state(id))
            case Work.SET_STATE:
                self.states[id] = payload
            case Work.DROP_STATE:
                self.states.pop(id, None)
            case _:
                raise ValueError(f"a worker does not serve '{work}'")
        return Outcome()

    def hello(self, id: int) -> Payload:
        return self._audited(self.method.hello(self._client(id, 0, "hello")))

    def fit(self, id: int, round: int, payload: Payload, *, evaluate: bool) -> Outcome:
        payload, inbox = taken_inbox(payload) if self.sums is not None else (payload, {})
        client = self._client(id, round, "fit")
        client.lr_factor = lr_factor(self.protocol, round)
        client.private = self._private(client)
        up = self._audited(self._call(self.method.fit, client, payload))
        up = kept_apart(up, (payload, client.state))
        if self.sums is not None and self.scored_with_reply:
            client.state |= {f"{SENT}{name}": up[name].clone() for name in self.sums.entries.names}
        self._keep(client, payload)
        loss = sum(client.losses) / len(client.losses) if client.losses else float("nan")
        logged: dict[str, float] = {**client.logged, **client.trouble}
        if client.private is not None:  # these come from samples without noise
            loss, logged = float("nan"), {EPSILON: self.budgets[id].spent(steps_of(client.state))}
        result = None
        if evaluate:
            model = self._call(self.method.personal, client, {**payload, **up}, "personal")
            result = self._scored(model, client)
        if self.sums is not None:
            up = self._masked(client, inbox, up, payload)
        return Outcome(up, len(client.samples), loss, result, logged)

    def sync(self, id: int, round: int, payload: Payload) -> Outcome:
        client = self._client(id, round, "sync")
        self._call(self.method.sync, client, payload)
        self._keep(client, payload)
        return Outcome(logged=dict(client.trouble))

    def finish(self, id: int, step: int, payload: Payload) -> Outcome:
        client = self._client(id, step, "finish")
        self._call(self.method.finish, client, payload)
        self._keep(client, payload)
        return Outcome(logged={**client.logged, **client.trouble})

    def onboard(self, id: int, payload: Payload) -> None:
        client = self._client(id, 0, "onboard")
        self._call(self.method.onboard, client, payload)
        self._keep(client, payload)

    def score(self, id: int, round: int, payload: Payload) -> Outcome:
        if not len(self.clients[id].test) and not self.clients[id].validation:
            return Outcome(score=Score())
        client = self._client(id, round, "evaluate")
        result = self._scored(self._call(self.method.personal, client, payload), client)
        return Outcome(score=result, logged=dict(client.trouble))

    def evaluate(self, id: int, round: int, payload: Payload) -> Score:
        return self.score(id, round, payload).score or Score()

    def personal(self, id: int, round: int, payload: Payload, state: State | None = None) -> nn.Module:
        """Return the model that `score` evaluates, as an independent plain module; `state` is given where it is kept elsewhere."""
        model = self._call(self.method.personal, self._client(id, round, "evaluate", state), payload)
        return model.plain() if isinstance(model, Net) else copy.deepcopy(model)

    def features(self, id: int, round: int, payload: Payload, state: State | None, part: str) -> tuple[Tensor, Tensor]:
        """Return what the head of the model that `score` evaluates sees of a part of the client's samples, and the labels, on the CPU."""
        split = self._part(id, part)
        model = self._call(self.method.personal, self._client(id, round, "evaluate", state), payload)
        if not isinstance(model, Net):
            raise FedTailorError(
                f"The personal model of '{self.method.name}' is a {type(model).__name__}, which is not cut into body and head: it has no "
                "features. simulation.personal(client) returns the model itself."
            )
        return self.samples(split, (id, part)).embedded(model).cpu().clone(), split.y.cpu().clone()

    def _part(self, id: int, part: str) -> Split:
        """A part of a client's samples by its name, if it has any there."""
        if part not in PARTS:
            raise FedTailorError(f"There is no part {part!r} of a client's samples. Parts: {', '.join(PARTS)}.")
        data = self.clients[id]
        split: Split | None = getattr(data, part)
        if split is None or not len(split):
            advice = " Hold some out, such as validation=0.2." if part == "validation" else ""
            raise FedTailorError(f"The client '{data.name}' has no {part} samples.{advice}")
        return split

    def state(self, id: int) -> State:
        """Return the client's private state, which is its initial one before its first work; that is not stored."""
        return self.states[id] if id in self.states else self._client(id, 0, "state").state

    def _masked(self, client: Client, inbox: Payload, up: Payload, sent: Payload) -> Payload:
        """Mask what is summed in secret; leave it out if it does not fit, so that the others' sum is not spoilt."""
        assert self.sums is not None
        try:
            return self.sums.masked(client.id, client.round, inbox, up, sent, len(client.samples))
        except OutOfRange as problem:
            client.warn(f"nothing is added to the secure sum: {problem}")
            return {name: tensor for name, tensor in up.items() if name not in self.sums.entries.names}

    @property
    def scored_with_reply(self) -> bool:
        """Whether a personal model is that of the last training, scored before the server's answer."""
        return self.method.scored_after_training(self.protocol) and not self.method.closing_steps

    def unmasked(self, payload: Payload, state: State) -> Payload:
        """Return the payload that such a model is made of, with what the client sent as it was before it was masked."""
        sent = () if self.sums is None else self.sums.entries.names
        return {**taken_inbox(payload)[0], **{name: state[f"{SENT}{name}"] for name in sent}}

    def _client(self, id: int, round: int, purpose: str, state: State | None = None) -> Client:
        keys: tuple[Key, ...] = (purpose, round, id)
        data = self.clients[id]
        samples = self.samples(data.train, (id, "train"))
        held = self.states.get(id) if state is None else state
        client = Client(
            self.modules, samples, self.protocol, {} if held is None else held, keys, id=id, round=round, data=data
        )
        client.stack = self.stack
        if held is None:
            client.state.update(self.method.init(client))
        return client

    def _scored(self, model: nn.Module, client: Client) -> Score:
        """The score on a client's test samples and, if it has any, on its validation samples and those with an attack's trigger."""
        data = client.data
        test = self._score_on(model, data.test, client, "test")
        if data.triggered is not None:
            success = self._score_on(model, data.triggered, client, "triggered").accuracy
            test = replace(test, values={**test.values, SUCCESS: success})
        if data.validation is None:
            return test
        return replace(test, validation=self._score_on(model, data.validation, client, "validation"))

    def _score_on(self, model: nn.Module, split: Split, client: Client, part: str) -> Score:
        samples = self.samples(split, (client.id, part))
        return score(model, samples, self.metrics, keep_outputs=self.keep_outputs, ask=client.ask)

    def _private(self, client: Client) -> PrivateSteps | None:
        """The private steps of a piece of work after which something may leave the client; None where samples are not protected."""
        if client.id not in self.budgets:
            return None
        draws = self.draws or NamedDraws(client.rng("private steps"))
        return self.budgets[client.id].steps_after(steps_of(client.state), draws, self.method.home)

    def rehearsed_steps(self, id: int, payload: Payload) -> int:
        """Return how many private steps a client takes in one round, found by its work on a single sample, of which nothing is kept."""
        client = self._client(id, 1, "rehearsal")
        counting = Rehearsal.of(len(client.samples), self.protocol.batch, self.method.home)
        client.private, client.samples = counting, client.samples.subset(torch.arange(1))
        with seeded(self.protocol.seed, *client.keys):
            self.method.fit(client, payload)
        return counting.taken

    def _keep(self, client: Client, payload: Payload) -> None:
        client.keep_buffers()
        if client.private is not None:
            client.state[STEPS] = torch.tensor(steps_of(client.state) + client.private.taken)
        for name, value in client.state.items():
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"{self.method.name}: client.state[{name!r}] must be a tensor, not {type(value).__name__}"
                )
        client.state.update(kept_apart(client.state, (payload,)))
        self.states[client.id] = client.state

    def _call(self, function: Callable[[Client, Payload], V], client: Client, payload: Payload, *purpose: Key) -> V:
        """Call one of the method's functions with the client's own randomness and a payload that it must not write into."""
        name, keys = function.__name__, (*client.keys, *purpose)
        lent = self._lent.lend((name, client.round), payload)
        with seeded(self.protocol.seed, *keys):
            result = function(client, dict(payload))
        for place, tensor in lent.items():
            if tensor.written:
                entry = f"payload[{place!r}]"
                raise TypeError(
                    f"{self.method.name} writes into {entry} in {name}(). The server and other clients read the same tensor: "
                    f"change a copy instead, {entry}.clone()."
                )
        return result

    def _audited(self, up: Payload) -> Payload:
        """Refuse to send what the method does not declare."""
        undeclared = set(up) - set(self.method.up)
        if undeclared:
            raise TypeError(
                f"{self.method.name} tries to send {sorted(undeclared)}, but declares only up = {self.method.up}"
            )
        for name, value in up.items():
            if name in self.rules and self.rules[name].refused:
                raise FedTailorError(
                    f"{self.method.name} sends {name}, which privacy.{name} = refuse forbids. Leave it out by an option of the method "
                    f"(`fedtailor methods {self.method.name}`), or give it another rule."
                )
            if not isinstance(value, Tensor):
                raise TypeError(f"{self.method.name} sends {name!r}: it must be a tensor, not {type(value).__name__}")
        return up


def _check_task(method: Method, task: Task) -> None:
    if task.kind not in method.tasks:
        able = sorted(name for name, cls in methods.classes.items() if task.kind in cls.tasks)
        raise FedTailorError(
            f"The method '{method.name}' needs a {' or '.join(method.tasks)} task, but this one is {task.kind}. Methods that can do it: "
            f"{', '.join(able)}."
        )


def _cut(clients: Iterable[int], size: int) -> Iterator[list[int]]:
    """Clients in lists of limited size."""
    rest = iter(clients)
    while some := list(islice(rest, size)):
        yield some


def _sum(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in (*first, *second)}
