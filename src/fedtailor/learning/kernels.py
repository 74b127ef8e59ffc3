"""Which kernel computes a step. Only this file knows that there are several.

- Plain SGD adds the gradients that autograd finds to the parameters; wide layers (`nets/fast`) add the factors of theirs.
- Plain SGD of a linear head on features, on plain cross-entropy, is written out: two matrix products without autograd.
- Every other optimizer gets the gradient of the part as one vector.
- Where single samples are protected, that vector is a noisy sum of clipped gradients (`private_steps`).

With `fast = off` there are no wide layers, and nothing is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from fedtailor.learning.losses import Loss
from fedtailor.learning.optimizer import Optimizer
from fedtailor.learning.private_steps import is_private, private_kernel
from fedtailor.nets.fast.linear_head import is_linear_head, linear_step
from fedtailor.nets.net import Part, Pull

if TYPE_CHECKING:
    from fedtailor.learning.descent import Descent

Kernel = Callable[[Tensor, Tensor], object]  # takes one step on a batch (x, y)


def features_suffice(part: Part, loss: Loss | None, *, augmented: bool) -> bool:
    """Whether what trains can do so on features embedded once: a head, on the default loss, under a body that does not vary."""
    return part is part.net.head and loss is None and part.net.repeatable and not augmented


def kernel(descent: Descent, part: Part, loss: Loss | None, pull: Pull | None, *, features: bool) -> Kernel:
    """The step of `train`: on a loss of (x, y), or of features and y."""
    participant = descent.participant
    if is_private(participant, part):
        return private_kernel(descent, part, loss, pull, features=features)
    if loss is not None:
        return _by_autograd(descent, part, loss, pull)
    written_out = participant.plain_cross_entropy and is_linear_head(part)
    if features and pull is None and descent.plain and descent.fast and written_out:
        return lambda z, y: descent.count(linear_step(part, z, y, descent.lr))
    if features:
        return _by_autograd(descent, part, lambda net, z, y: participant.loss(net.classify(z), y), pull)
    return _by_autograd(descent, part, lambda net, x, y: participant.loss(net(x), y), pull)


def _by_autograd(descent: Descent, part: Part, loss: Loss, pull: Pull | None) -> Kernel:
    net = part.net

    def step(x: Tensor, y: Tensor) -> bool:
        net.in_loss = True
        try:
            value = loss(net, x, y)
        finally:
            net.in_loss = False
        return descent(value, part, pull=pull)

    return step


def move(
    part: Part,
    optimizer: Optimizer | None,
    loss: Tensor | None,
    lr: float,
    *,
    gradient: Tensor | None = None,
    pull: Pull | None = None,
) -> None:
    """Move a part down a loss, or along a gradient that is given, and down a pull; no optimizer is plain SGD."""
    if optimizer is None:
        part.step(loss, lr, pull, gradient=gradient)
    elif part.parameters:  # not a frozen body, nor that of a net that is all head
        optimizer.step(part.gradient(loss) if gradient is None and loss is not None else gradient, lr, pull)
