"""The server of a round: its state, and the means that become it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedtailor.learning.mixing import Reply, Weights, reply_weights, weighted_mean
from fedtailor.learning.modules import Modules
from fedtailor.learning.participants import Participant
from fedtailor.learning.protocol import Protocol
from fedtailor.learning.running_statistics import keep_variances
from fedtailor.learning.samples import Samples
from fedtailor.learning.schedule import lr_factor
from fedtailor.learning.server_optimizer import server_step
from fedtailor.nets.net import Net, Part

Mean = Callable[["Server", Sequence[Reply], str, Weights], Tensor]  # the mean of an entry over replies


class Server(Participant):
    """The server: its state, its proxy samples (if the partition gives it any), and what it knows of the clients."""

    def __init__(self, modules: Modules, proxy: Samples, protocol: Protocol, sizes: list[int]) -> None:
        super().__init__(modules, proxy, protocol, {}, ("server", 0))
        self.sizes = sizes
        self.round = 0
        self.means: dict[str, Mean] = {}  # of entries that the run has a rule for; those of the others are plain
        self.expected: float | None = None  # share of clients in a round, where it must not depend on who replied

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {tuple(entry.shape)}" for name, entry in self.state.items())
        return f"Server: round {self.round}, {len(self.sizes):,} clients; state: {held or 'empty'}"

    def begin(self, round: int) -> None:
        """Enter a round: new random streams, an empty log."""
        self.round = round
        self.keys = ("server", round)
        self.lr_factor = lr_factor(self.protocol, round)
        self.logged, self.losses, self._streams = {}, [], {}
        self.trouble = Counter()

    def average(
        self,
        replies: Sequence[Reply],
        name: str,
        by: Weights = "samples",
        *,
        part: Callable[[Net], Part] | None = None,
        momentum: float = 0.0,
        share: float = 1.0,
    ) -> None:
        """Set `state[name]` to the mean of this entry over the replies, or let the server optimizer take a step towards it.

        The mean is by samples, by clients (all alike), or by the weights given. `part` says which part of a net the entry is where its
        name does not (model, body), so that running statistics in it are not taken for weights. `momentum` is that of a method which
        has one of its own; the run's server optimizer takes its place. With a `share` below 1, the mean is that of the replies and
        of as many others who sent back what the state has that the replies are this share of all.
        """
        protocol = self.protocol
        if share < 1 and protocol.server_optimizer == "none":
            mean = self._shared_mean(replies, name, by, share)
        else:
            mean = self.mean(replies, name, by)
        if name in self.means:
            keep_variances(self._part(name, part), mean, self.state.get(name))
        if momentum and protocol.server_optimizer == "none":
            protocol = replace(protocol, server_optimizer="momentum", server_momentum=momentum, server_lr=1.0)
        if protocol.server_optimizer != "none":
            mean = self._stepped(name, mean, part, protocol)
        self.state[name] = mean

    def mean(self, replies: Sequence[Reply], name: str, by: Weights = "samples") -> Tensor:
        """Return the mean of an entry over the replies, by the run's rule for it if there is one (privacy, a robust mean)."""
        found = self.means.get(name)
        return weighted_mean(replies, name, by) if found is None else found(self, replies, name, by)

    def share(self, replies: Sequence[Reply]) -> float:
        """Return the share of all samples that replies stand for, or that is expected where who replied is private."""
        if self.expected is not None:
            return self.expected
        return sum(float(reply.samples) for reply in replies) / max(1, sum(self.sizes))

    def _shared_mean(self, replies: Sequence[Reply], name: str, by: Weights, share: float) -> Tensor:
        state = self.state[name]
        if name in self.means:
            return torch.lerp(state, self.mean(replies, name, by), share)
        weights = reply_weights(replies, by)
        others = Reply(-1, 0, {name: state})
        return weighted_mean([*replies, others], name, [*weights, sum(weights) * (1 / share - 1)])

    def _part(self, name: str, of: Callable[[Net], Part] | None) -> Part | None:
        net, _ = self.modules.lend("model")
        return {"model": net.all, "body": net.body}.get(name) if of is None else of(net)

    def _stepped(self, name: str, mean: Tensor, of: Callable[[Net], Part] | None, protocol: Protocol) -> Tensor:
        """The step from `state[name]` towards a mean. Running statistics, which are no weights, become their mean."""
        part = self._part(name, of)
        start = 0 if part is None else len(part) - len(part.trainable(mean))
        prefix = f"server_optimizer.{name}."
        state = {key.removeprefix(prefix): t for key, t in self.state.items() if key.startswith(prefix)}
        weights, state = server_step(protocol, self.state[name][start:], mean[start:], state)
        self.state.update({prefix + key: tensor for key, tensor in state.items()})
        return torch.cat([mean[:start], weights])
