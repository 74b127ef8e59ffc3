"""The steps of a training loop: optimizer, learning rate and guards are the same in `train` and in a method's own loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.learning.kernels import Kernel, kernel, move
from fedtailor.learning.optimizer import Optimizer
from fedtailor.learning.private_steps import is_private
from fedtailor.nets.net import Part, Pull

if TYPE_CHECKING:
    from fedtailor.learning.participants import Participant

# What can go wrong in training, as it is counted: a participant's `trouble`, and beside the numbers that a client logs.
SKIPPED = "skipped_steps"  # left out: their loss was not finite
UNDONE = "undone_phases"  # put back: they ended with weights that were not finite
EXPLODED = "exploded_phases"  # kept, though their weights grew beyond GROWTH
TROUBLES = (SKIPPED, UNDONE, EXPLODED)
# Times as large as before the phase (or as 1): sound training stays below 3, lr=10 on digits reaches 8,000.
GROWTH = 1e3


class Descent:
    """Take the steps of one loop on the parts that it trains.

    Each part has an optimizer of its own, made at its first step: a new one for each loop, or, with `optimizer_state = kept`, one that goes
    on with the state that the participant kept, under names such as `optimizer.model.all.exp_avg`.
    """

    def __init__(
        self, participant: Participant, parts: tuple[Part, ...], lr: float | None, momentum: float | None = None
    ) -> None:
        """With `momentum`, steps are those of SGD with that momentum, whatever the protocol's optimizer is."""
        protocol = participant.protocol
        if momentum is not None:
            protocol = replace(protocol, optimizer="sgd", momentum=momentum, optimizer_state="fresh")
        self.protocol = protocol
        self.participant = participant
        self.parts = parts
        self.lr = participant.rate(lr)
        self.plain = protocol.plain_sgd
        self.fast = protocol.fast == "auto"
        self.keeps = protocol.optimizer_state == "kept"
        self._optimizers: dict[Part, Optimizer] = {}
        self._kernels: dict[Part, Kernel] = {}
        self._empty = False  # whether the batch has no sample, as private ones may

    def __call__(
        self,
        loss: Tensor | None,
        part: Part | None = None,
        *,
        gradient: Tensor | None = None,
        pull: Pull | tuple[Tensor, float] | None = None,
        lr: float | None = None,
    ) -> bool:
        """Take one step on a part (the loop's, if it has only one) down a loss. Return False if the loss is not finite: nothing moves then.

        `gradient`, a vector over the part's trainable entries, takes the place of the loss's own. `pull` adds a proximal term. Without a
        loss, the step is along the gradient and down the pull that are given. `lr` is another learning rate than the loop's.
        """
        if part is None and len(self.parts) > 1:
            raise ValueError("a loop that trains several parts has to name the one that steps: step(loss, part)")
        part = self.parts[0] if part is None else part
        if part not in self.parts:
            raise ValueError(f"the loop does not train the {part.name}: name it in client.steps(batches, …)")
        if is_private(self.participant, part) and not (loss is None and gradient is None):
            raise FedTailorError(
                "Privacy for samples needs the gradient of each sample, but the method's own loop steps down a mean over the batch "
                "(step.on(x, y, part) takes a private step)."
            )
        if loss is not None and not self.count(loss):
            return False
        self.along(gradient, part, None if pull is None else Pull(*pull), loss=loss, lr=lr)
        return True

    def on(self, x: Tensor, y: Tensor, part: Part) -> None:
        """Take one step on a part down the task's loss of a batch: a private one where single samples are protected."""
        if part not in self._kernels:
            self._kernels[part] = kernel(self, part, None, None, features=False)
        self._kernels[part](x, y)

    def along(
        self,
        gradient: Tensor | None,
        part: Part,
        pull: Pull | None,
        *,
        loss: Tensor | None = None,
        lr: float | None = None,
    ) -> None:
        """Take one step along a gradient (that of the loss, if none is given) and down a pull."""
        rate = self.lr if lr is None else self.participant.rate(lr)
        move(part, self._optimizer(part), loss, rate, gradient=gradient, pull=pull)

    def count(self, loss: Tensor) -> bool:
        """Record the loss of a step; False if it is not finite: the step is left out, and counted as such."""
        if self._empty:
            return False
        number = loss.item()
        if not math.isfinite(number):
            self.participant.trouble[SKIPPED] += 1
            return False
        self.participant.losses.append(number)
        return True

    def over(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches that the nets can train on; when the loop ends, parts that diverged are put back."""
        before = [part.vector for part in self.parts]
        for part in self.parts:
            part.net.train()
        smallest = 2 if any(part.net.has_batchnorm for part in self.parts) else 1  # one sample has no batch statistics
        if any(is_private(self.participant, part) for part in self.parts):
            smallest = 0  # a step without samples takes its noise: to leave it out would reveal that none was drawn
        try:
            for x, y in batches:
                if len(y) >= smallest:
                    self._empty = not len(y)
                    yield x, y
        finally:
            for part, vector in zip(self.parts, before, strict=True):
                self._close(part, vector)

    def _close(self, part: Part, before: Tensor) -> None:
        if not part.finite:
            part.vector = before
            self.participant.trouble[UNDONE] += 1
            return
        length = part.length  # infinite where squares overflow
        if length > GROWTH and length > GROWTH * part.trainable(before).norm().item():
            self.participant.trouble[EXPLODED] += 1
        if self.keeps and part in self._optimizers:
            prefix = self._prefix(part)
            self.participant.state.update({prefix + name: t for name, t in self._optimizers[part].state.items()})

    def _optimizer(self, part: Part) -> Optimizer | None:
        if self.plain:
            return None
        if part not in self._optimizers:
            prefix = self._prefix(part)
            kept = self.participant.state if self.keeps else {}
            state = {name.removeprefix(prefix): t for name, t in kept.items() if name.startswith(prefix)}
            self._optimizers[part] = Optimizer(part, self.protocol, state)
        return self._optimizers[part]

    def _prefix(self, part: Part) -> str:
        return f"optimizer.{self.participant.role(part.net)}.{part.name}."
