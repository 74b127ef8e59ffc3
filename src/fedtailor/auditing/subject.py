"""The run under audit: what its clients would send next, and the nets and samples that an attacker has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.auditing.views import OTHERS, SERVER, Exchange, View
from fedtailor.data.client_data import Split
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.experiment.simulation import Simulation
from fedtailor.learning.modules import Initial, Modules
from fedtailor.learning.samples import Samples
from fedtailor.methods import Method
from fedtailor.nets.net import Net, Part
from fedtailor.privacy.client_dp import ClientDP, SummedDP
from fedtailor.privacy.noise import NamedNoise
from fedtailor.randomness import torch_stream

MOST_CLIENTS = 50  # that are attacked, drawn at random from more
MOST_SAMPLES = 2000  # that the attacker has, and that membership is asked about


class Subject:
    """A finished run, restored in this process, with the attacker's means.

    The attacker knows the method, the net, all that the server sends, and samples like those of the clients: half of their test
    samples, which nobody trained on.
    """

    def __init__(self, simulation: Simulation, personal: Callable[[int], nn.Module] | None = None) -> None:
        """`personal` returns a client's personal model; None if those are not at hand."""
        if not simulation.federation.at_hand:
            raise FedTailorError(
                "An audit needs the samples of all clients on this machine, as in a simulation; those of a deployment are at its sites."
            )
        self.simulation = simulation
        self.method: Method = simulation.method
        self.federation = simulation.federation
        self.task = self.federation.task
        self.protocol = simulation.protocol
        self.seed = self.protocol.seed
        self.personal = personal

    def rng(self, *purpose: int | str) -> torch.Generator:
        return torch_stream(self.seed, "audit", *purpose)

    @cached_property
    def clients(self) -> list[int]:
        """The clients that are attacked."""
        able = self.simulation.candidates
        if len(able) <= MOST_CLIENTS:
            return able
        chosen = torch.randperm(len(able), generator=self.rng("clients"))[:MOST_CLIENTS]
        return sorted(able[i] for i in chosen.tolist())

    # -- what travels -----------------------------------------------------------------------------------------------------------

    def exchange(self, client: int, rows: Sequence[int] | None = None, **protocol: Any) -> Exchange:
        """Have a client train as in the next round, on these rows of its training samples if given, and return what it would send.

        `protocol` replaces options of the run's protocol. The run's own state does not change.
        """
        data = self.federation.clients[client]
        if rows is not None:
            data = replace(data, train=data.train.apart(rows))
        alone = replace(self.federation, clients=[data])
        modules = self.simulation.worker.modules
        worker = Worker(
            alone,
            self.method,
            modules.architecture,
            modules.head,
            replace(self.protocol, **protocol),
            first=client,
            rules=self.simulation.worker.rules,
        )
        state = {name: tensor.clone() for name, tensor in self.simulation.state(client).items()}
        worker.states[client] = dict(state)
        sent = self.method.send(self.simulation.server, client)
        reply = worker.hello(client) | worker.fit(client, self.simulation.round + 1, sent, evaluate=False).up
        # What is not sent down, such as a head of its own, the server knows from the client's last reply.
        before = {name: sent.get(name, state.get(name)) for name in reply}
        known = {name: t for name, t in before.items() if t is not None and t.shape == reply[name].shape}
        return Exchange(client, sent, known, reply)

    @cached_property
    def exchanges(self) -> list[Exchange]:
        """What every attacked client would send in the next round, trained as the run trains."""
        return [self.exchange(client) for client in self.clients]

    @cached_property
    def dp(self) -> ClientDP | None:
        """The run's differential privacy. That inside a secure sum is attacked with the least noise that such a sum can have."""
        dp = self.simulation.dp
        if not isinstance(dp, SummedDP):
            return dp
        assert self.simulation.privacy is not None
        return ClientDP(dp.names, self.simulation.privacy.dp, dp.amount, NamedNoise(self.protocol.seed))

    @cached_property
    def views(self) -> list[View]:
        """Who sees which entries how, by the run's rules."""
        rules, dp = self.simulation.worker.rules, self.dp
        summed = [name for name in self.method.up if name in rules and rules[name].secure_sum]
        refused = [name for name in self.method.up if name in rules and rules[name].refused]
        noised = () if dp is None else dp.names
        views = [
            View(SERVER, tuple(name for name in self.method.up if name not in (*summed, *refused))),
            View(OTHERS, tuple(name for name in summed if name not in noised)),
        ]
        if dp is not None:
            views.append(View(OTHERS, noised, dp.clip(self.simulation.server), dp.sum_noise))
        return [view for view in views if view.entries]

    def seen(self, view: View, exchange: Exchange) -> Exchange:
        return view.seen(exchange, self.rng("noise", view.who, exchange.client))

    # -- the attacker's means ---------------------------------------------------------------------------------------------------

    @cached_property
    def net(self) -> Net:
        """The run's net with PyTorch's own layers, through which gradients of gradients flow."""
        return self._lent[0]

    @cached_property
    def _lent(self) -> tuple[Net, Initial]:
        own = self.simulation.worker.modules
        plain = replace(self.protocol, fast="off")
        return Modules(own.architecture, own.head, self.task, plain, own.carry_buffers).lend("audit")

    def part(self, entry: str, vector: Tensor) -> Part | None:
        """Return the part of the net that an entry holds the weights of; None if it is something else."""
        shared = getattr(
            self.method, "shared", None
        )  # of FedAvg and what is built on it: the first entry, without what is kept
        known = {"model": self.net.all, "body": self.net.body, "head": self.net.head}
        part = shared(self.net) if shared is not None and entry == self.method.up[0] else known.get(entry)
        return part if part is not None and vector.shape == (len(part),) else None

    def load(self, client: int, entry: str, vector: Tensor) -> Part | None:
        """Load an entry into the net, with the running statistics of the client and otherwise its initial weights.

        Return the part that the entry is, None if it is no weights.
        """
        part = self.part(entry, vector)
        if part is not None:
            statistics, weights = self._lent[1]
            own = self.simulation.state(client).get("buffers.model", statistics)
            self.net.local_buffers.copy_(own if own.shape == statistics.shape else statistics)
            self.net.all.vector = weights
            part.vector = vector
        return part

    def samples(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return samples as a net reads them, and their labels."""
        samples = Samples(split, self.federation, self.protocol, ready=False)
        return samples.take(torch.arange(len(split))), split.y.to(samples.device)

    def strangers(self, client: int) -> tuple[Split, Split]:
        """Return a client's test samples in two halves: those that the attacker has, and those whose membership is in question."""
        test = self.federation.clients[client].test
        order = torch.randperm(len(test), generator=self.rng("strangers", client))
        return test.subset(order[: len(order) // 2]), test.subset(order[len(order) // 2 :])

    @cached_property
    def auxiliary(self) -> tuple[Tensor, Tensor]:
        """The samples that the attacker has, of all clients."""
        halves = [self.strangers(client)[0] for client in range(len(self.federation.clients))]
        pairs = [self.samples(half) for half in halves if len(half)]
        if not pairs:
            raise FedTailorError("The clients have too few test samples, which the attacks compare with.")
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        chosen = torch.randperm(len(y), generator=self.rng("auxiliary"))[:MOST_SAMPLES].sort().values
        return x[chosen], y[chosen]
