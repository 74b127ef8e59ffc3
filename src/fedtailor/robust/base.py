"""Base class of robust means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.learning import Reply, Server
from fedtailor.learning.mixing import Weights, reply_weights
from fedtailor.registry import Registry, check
from fedtailor.robust.changes import Changes


@dataclass(frozen=True)
class RobustMean(ABC):
    """Base class of robust means. Subclasses are frozen dataclasses; their fields are the options `robust.*`.

    Every reply counts alike: how many samples a client trained on is known only from what it says itself.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    year: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check(self, "robust")

    @abstractmethod
    def __call__(self, changes: Changes) -> Tensor:
        """Return the change that the server applies to an entry, from the changes in the clients' replies."""

    def mean(self, server: Server, replies: Sequence[Reply], name: str, by: Weights) -> Tensor:
        """Return what takes the place of the mean of an entry (a `Mean` of the server).

        Weights only say which replies count: a reply with weight 0 in the plain mean is left out here too.
        """
        counted = [reply[name] for reply, weight in zip(replies, reply_weights(replies, by), strict=True) if weight > 0]
        entries = counted or [reply[name] for reply in replies]
        sent = server.state.get(name)
        if sent is None or sent.shape != entries[0].shape:
            sent = torch.zeros_like(entries[0])
        server.log(tolerated=self.tolerates(len(entries)))
        return sent + self(Changes(entries, sent))

    def check_replies(self, replies: int) -> None:
        """Refuse rounds with so few replies that this rule could not do without one of them."""
        if self.tolerates(replies) == 0:
            needed = next(n for n in range(1, 10**7) if self.tolerates(n))
            raise FedTailorError(
                f"robust = {self.name} needs at least {needed} replies per round to do without a hostile one, but only {replies} "
                "take part. Raise join or clients, or take another rule."
            )

    @abstractmethod
    def tolerates(self, replies: int) -> int:
        """Return how many of so many replies may be hostile, whatever they are, before the result is no longer bounded by the others."""


robust_means: Registry[RobustMean] = Registry("robust")
