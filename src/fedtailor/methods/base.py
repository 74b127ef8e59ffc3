"""What a method is: the algorithm of one paper as a handful of short functions that speak of one round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedtailor.data.task import KINDS, Kind
from fedtailor.learning import Client, Payload, Reply, Server, State
from fedtailor.learning.participants import Modules
from fedtailor.registry import Registry, check

NEWCOMER = -1  # the number of a client that the server has not met


@dataclass(frozen=True)
class Method(ABC):
    """Base of all methods. Dataclass fields are the hyper-parameters; the functions below are called in the order they stand here.

    A method holds no state of its own: the server's is `server.state`, a client's private one is `client.state`, and nothing but the
    payloads passes between them. Only the entries named in `up` may leave a client.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    year: ClassVar[int] = 0
    family: ClassVar[str] = ""
    down: ClassVar[tuple[str, ...]] = ()  # what the server may send
    up: ClassVar[tuple[str, ...]] = ()  # what a client may send
    keeps: ClassVar[tuple[str, ...]] = ()  # what never leaves the client
    eval_point: ClassVar[Literal["after_sync", "after_train"]] = "after_sync"
    averages: ClassVar[bool] = False  # whether `aggregate` uses server.average, which a server optimizer needs
    bn_buffers: ClassVar[Literal["local", "average"]] = "local"
    tasks: ClassVar[tuple[Kind, ...]] = KINDS  # what it can learn; a method that needs classes says so
    new_client: ClassVar[str] = "trains as in one round with what the server sends, sending nothing back"

    def __post_init__(self) -> None:
        check(self, "method")

    @property
    def needs_proxy(self) -> bool:
        """Whether the server cannot do without proxy samples."""
        return False

    def hello(self, client: Client) -> Payload:
        """Told to the server once, before the first round (label shares, for example)."""
        return {}

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        """Set up `server.state`."""

    def init(self, client: Client) -> State:
        """The private state of a client when it is first met."""
        return {}

    def send(self, server: Server, client: int) -> Payload:
        """What the server sends to one client; by default what its state has of the entries in `down`."""
        return {name: server.state[name] for name in self.down if name in server.state}

    @abstractmethod
    def fit(self, client: Client, payload: Payload) -> Payload:
        """Local training: may change `client.state`, returns what is sent up."""

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        """Make the new `server.state` of the replies, which come in the order of client numbers; there is at least one."""

    @property
    def syncs_everyone(self) -> bool:
        """Whether `sync` runs at every client after each round, participant or not."""
        return False

    def sync(self, client: Client, payload: Payload) -> None:
        """What a client does with the server's new payload before it is evaluated; see `syncs_everyone`."""

    @abstractmethod
    def personal(self, client: Client, payload: Payload) -> nn.Module:
        """The client's own model. `payload` is what the server would send now or, after local training, that with the client's reply."""

    def saved_module(self, modules: Modules, client: int, weights: Mapping[str, Tensor]) -> nn.Module:
        """The module that saved weights of a client's personal model are loaded into, by default the net.

        A method whose `personal` returns another module than the net builds that here; `modules.lend` has the nets.
        """
        return modules.lend("model")[0]

    @property
    def closing_steps(self) -> int:
        """How many times `finish` runs at every client after the last round (epochs of fine-tuning)."""
        return 0

    def finish(self, client: Client, payload: Payload) -> None:
        """One closing step of a client after the last round."""

    def welcome(self, server: Server, hello: Payload) -> Payload:
        """What a client that joins after training is sent; `hello` is what it told on joining. By default what anyone is sent."""
        return self.send(server, NEWCOMER)

    def onboard(self, client: Client, payload: Payload) -> None:
        """What a client that joins after training does to get its personal model; nothing it makes is sent up.

        By default it takes the payload in where everyone does, trains as in one round, which fits what it keeps to its samples, and takes
        the closing steps.
        """
        if self.syncs_everyone:
            self.sync(client, payload)
        self.fit(client, payload)
        for _ in range(self.closing_steps):
            self.finish(client, payload)


@dataclass(frozen=True)
class GlobalModel(Method):
    """Base of methods in which the server averages whole models by samples, and clients do more with the average than train it."""

    down: ClassVar[tuple[str, ...]] = ("model",)
    up: ClassVar[tuple[str, ...]] = ("model",)
    averages: ClassVar[bool] = True

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["model"] = server.net().all.vector

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "model")


methods: Registry[Method] = Registry("method")
