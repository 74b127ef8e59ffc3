from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fedtailor.errors import FedTailorError
from fedtailor.learning import Client, Payload, Reply, Server, State
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net, Part
from fedtailor.registry import option

KEEP = "parts that clients keep: body, head, norm (normalisation layers), or patterns of parameter names such as *.bias"


@methods.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
    """Train one model for all: each client trains it on its own samples, the server averages by samples (McMahan et al., 2017).

    The whole model travels. With `keep`, clients keep some parts of the net in their states; the rest travels under the first name in
    `up`.
    """

    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data"
    year = 2017
    family = "baseline"
    sample_dp: ClassVar[bool | str] = True
    down: ClassVar[tuple[str, ...]] = ("model",)
    up: ClassVar[tuple[str, ...]] = ("model",)
    averaged: ClassVar[tuple[str, ...]] = ("model",)

    _: KW_ONLY
    keep: tuple[str, ...] = option((), KEEP)

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        net = server.net()
        self._check(server, net)
        server.state[self.up[0]] = self.shared(net).vector

    def init(self, client: Client) -> State:
        return self._kept_state(client.net()) if self.keep else {}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.received(client, payload)
        client.train(net.all)
        return self.reply(client, net)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, self.up[0], part=self.shared)

    def personal(self, client: Client, payload: Payload) -> Net:
        return self.received(client, payload)

    def shared(self, net: Net) -> Part:
        return net.rest(*self.keep)

    def kept(self, net: Net) -> Part:
        return net.part(*self.keep)

    def received(self, client: Client, payload: Payload) -> Net:
        """Return a net with the parts that the server sent and those that the client keeps."""
        net = client.net()
        self.shared(net).vector = payload[self.up[0]]
        if self.keep:
            self.kept(net).vector = client.state[",".join(self.keep)]
        return net

    def reply(self, client: Client, net: Net) -> Payload:
        """Store the parts of a trained net that are kept; return what is sent to the server."""
        client.state.update(self._kept_state(net))
        return {self.up[0]: self.shared(net).vector}

    def _kept_state(self, net: Net) -> State:
        return {",".join(self.keep): self.kept(net).vector} if self.keep else {}

    def _check(self, server: Server, net: Net) -> None:
        entry = self.up[0]
        declared = {"body": net.body, "head": net.head}.get(entry, net.all)
        beyond = [name for name in self.shared(net).entries if name not in declared.entries]
        if beyond:
            raise FedTailorError(
                f"{self.name} shares nothing but the {entry}: keep has to include {', '.join(beyond[:5])} as well (fedavg shares anything)."
            )
        if self.keep and not self.kept(net).entries:
            server.warn(f"the net has no part '{', '.join(self.keep)}' to keep, so all of the {entry} is shared")
