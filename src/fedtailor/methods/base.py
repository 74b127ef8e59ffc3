"""Base classes of methods: the algorithm of one paper as a few short functions, each for one step of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedtailor.data.task import KINDS, Kind
from fedtailor.learning import Client, Payload, Protocol, Reply, Server, State
from fedtailor.learning.modules import Modules
from fedtailor.registry import Registry, check

NEWCOMER = -1  # in place of the number of a client that the server does not know


@dataclass(frozen=True)
class Method(ABC):
    """Base class of all methods. Its dataclass fields are the hyper-parameters; its functions are called in the order defined here.

    A method holds no state: the server's state is `server.state`, a client's private state is `client.state`, and only payloads pass
    between them. Only the entries named in `up` may leave a client.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    year: ClassVar[int] = 0
    family: ClassVar[str] = ""
    down: ClassVar[tuple[str, ...]] = ()  # what the server may send
    up: ClassVar[tuple[str, ...]] = ()  # what a client may send
    keeps: ClassVar[tuple[str, ...]] = ()  # what never leaves the client
    eval_point: ClassVar[Literal["after_sync", "after_train"]] = "after_sync"
    averaged: ClassVar[
        tuple[str, ...]
    ] = ()  # entries of `up` that become means (server.average): for a server optimizer and privacy
    # Whether private steps (DP-SGD) protect all that its clients send, or why they do not. A class that overrides what a client does
    # (hello, init, fit, sync) says it anew.
    sample_dp: ClassVar[bool | str] = False
    home: ClassVar[
        tuple[str, ...]
    ] = ()  # roles of nets that influence nothing a client sends: these need no private steps
    mean_by: ClassVar[Literal["samples", "clients", "own weights"]] = "samples"  # the weights of these means
    bn_buffers: ClassVar[Literal["local", "average"]] = "local"
    tasks: ClassVar[tuple[Kind, ...]] = KINDS  # what it can learn; a method that needs classes declares it
    new_client: ClassVar[str] = "trains as in one round with what the server sends, sending nothing back"

    def __post_init__(self) -> None:
        check(self, "method")

    @property
    def needs_proxy(self) -> bool:
        """Whether the server needs proxy samples."""
        return False

    @property
    def individually(self) -> tuple[str, ...]:
        """Entries in `averaged` that the server also uses reply by reply, so that no rule for means can protect them."""
        return ()

    def hello(self, client: Client) -> Payload:
        """Return what a client sends once, before the first round (label proportions, for example)."""
        return {}

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        """Set up `server.state`; `hellos` maps clients to what they sent in `hello`."""

    def init(self, client: Client) -> State:
        """Return the initial private state of a client."""
        return {}

    def send(self, server: Server, client: int) -> Payload:
        """Return what the server sends to one client; by default the entries of its state that `down` names."""
        return {name: server.state[name] for name in self.down if name in server.state}

    @abstractmethod
    def fit(self, client: Client, payload: Payload) -> Payload:
        """Train locally, update `client.state`, and return what is sent to the server."""

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        """Update `server.state` from the replies: at least one, ordered by client number."""

    @property
    def syncs_everyone(self) -> bool:
        """Whether `sync` runs at every client after each round, participant or not."""
        return False

    def sync(self, client: Client, payload: Payload) -> None:
        """Take in the server's new payload before evaluation; see `syncs_everyone`."""

    @abstractmethod
    def personal(self, client: Client, payload: Payload) -> nn.Module:
        """Return the client's model for prediction.

        `payload` is what the server would send now; right after local training, it is what was received, updated by the client's reply.
        """

    def saved_module(self, modules: Modules, client: int, weights: Mapping[str, Tensor]) -> nn.Module:
        """The module that saved weights of a client's personal model are loaded into, by default the net.

        A method whose `personal` returns another module than the net builds that here; `modules.lend` has the nets.
        """
        return modules.lend("model")[0]

    def scored_after_training(self, protocol: Protocol) -> bool:
        """Whether participants are scored right after local training; else everyone is after the server's answer."""
        return (self.eval_point if protocol.eval_point == "method" else protocol.eval_point) == "after_train"

    @property
    def closing_steps(self) -> int:
        """How often `finish` runs at every client after the last round (epochs of fine-tuning)."""
        return 0

    def finish(self, client: Client, payload: Payload) -> None:
        """Take one closing step at a client after the last round."""

    def welcome(self, server: Server, hello: Payload) -> Payload:
        """Return what is sent to a client that joins after training and sent this `hello`; by default, what any client is sent."""
        return self.send(server, NEWCOMER)

    def onboard(self, client: Client, payload: Payload) -> None:
        """Fit the state of a client that joins after training, for its personal model; nothing is sent back.

        By default the client syncs if every client does, trains as in one round, and takes the closing steps.
        """
        if self.syncs_everyone:
            self.sync(client, payload)
        self.fit(client, payload)
        for _ in range(self.closing_steps):
            self.finish(client, payload)


@dataclass(frozen=True)
class GlobalModel(Method):
    """Base class of methods whose server averages whole models by samples, and whose clients do more than train the average."""

    down: ClassVar[tuple[str, ...]] = ("model",)
    up: ClassVar[tuple[str, ...]] = ("model",)
    averaged: ClassVar[tuple[str, ...]] = ("model",)

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["model"] = server.net().all.vector

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "model")


methods: Registry[Method] = Registry("method")
