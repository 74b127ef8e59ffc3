"""What is to be learned: the kind of labels, and with it the outputs of a net, the loss and the default metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.errors import FedTailorError

Kind = Literal["multiclass", "binary", "multilabel", "regression"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CLASSES: tuple[Kind, ...] = ("multiclass", "binary")  # a sample has exactly one class
LABELS: tuple[Kind, ...] = (*CLASSES, "multilabel")

LARGEST = 3e38  # of a target: beyond it, float32 is infinite
OUTPUT = {
    "multiclass": "one logit per class",
    "binary": "one logit, that of class 1",
    "multilabel": "one logit per label",
    "regression": "one number per target",
}


@dataclass(frozen=True)
class Task:
    """The shape of one sample (channels first for images, tokens for text), its labels, and for text the vocabulary.

    `classes` counts classes, labels of a multi-label task, or targets of a regression. Labels of a batch are class numbers (n,) of
    multi-class and binary tasks, and floats (n, classes) of the others.
    """

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    kind: Kind = "multiclass"

    @property
    def outputs(self) -> int:
        """Numbers that a net returns per sample."""
        return 1 if self.kind == "binary" else self.classes

    @property
    def metric(self) -> str:
        """The metric that is reported, selects and ranks unless another is asked for."""
        return {"multilabel": "f1", "regression": "rmse"}.get(self.kind, "accuracy")

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean over a batch of cross-entropy, of binary cross-entropy (labels alike), or of squared errors (targets alike).

        `weights` has one entry per class, and the mean is weighted by them; for a multi-label task it weights the positives of each label.
        """
        match self.kind:
            case "multiclass":
                return F.cross_entropy(outputs, y, weight=weights)
            case "binary" if weights is not None:
                each = F.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs.dtype), reduction="none")
                return (weights[y] * each).sum() / weights[y].sum()
            case "binary":
                return F.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs.dtype))
            case "multilabel":
                return F.binary_cross_entropy_with_logits(outputs, y, pos_weight=weights)
            case "regression":
                return F.mse_loss(outputs, y)

    def summed_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The unweighted loss summed over samples, as scores add it up."""
        if self.kind == "multiclass":
            return F.cross_entropy(outputs, y, reduction="sum")
        return self.loss(outputs, y) * len(y)

    def predicted(self, outputs: Tensor) -> Tensor:
        """The answer that outputs stand for, in the form of labels."""
        match self.kind:
            case "multiclass":
                return outputs.argmax(1)
            case "binary":
                return (outputs[:, 0] > 0).long()
            case "multilabel":
                return (outputs > 0).to(outputs.dtype)
            case "regression":
                return outputs

    def correct(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How many samples are answered without any mistake; none where answers are measurements."""
        if self.kind == "regression":
            return torch.zeros((), dtype=torch.long, device=y.device)
        right = self.predicted(outputs) == y
        return right.all(1).sum() if right.ndim > 1 else right.sum()

    def class_weights(self, y: Tensor) -> Tensor:
        """Weights that balance the classes in `y`: the mean over samples is 1, and a class that is not there has weight 1.

        Of a multi-label task, the weight of a label's positives: its negatives over its positives.
        """
        if self.kind == "multilabel":
            positives = y.double().sum(0)
            return torch.where(positives > 0, (len(y) - positives) / positives.clamp(min=1), 1.0)
        counts = torch.bincount(y, minlength=self.classes).double()
        present = (counts > 0).sum()
        return torch.where(counts > 0, len(y) / (present * counts.clamp(min=1)), 1.0)

    def check(self, y: Any, where: str) -> None:
        """Refuse labels (an array or a tensor, not empty) that are not of this task; `where` names them."""
        if self.kind in CLASSES:
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= self.classes:
                raise FedTailorError(f"Labels must lie in 0..{self.classes - 1}, but {where} has {low} to {high}.")
        elif y.ndim != 2 or y.shape[1] != self.classes:
            raise FedTailorError(
                f"A {self.kind} task has {self.classes} labels per sample, but those of {where} have shape {tuple(y.shape)}."
            )
        elif self.kind == "multilabel" and not bool(((y == 0) | (y == 1)).all()):
            raise FedTailorError(f"Labels of a multi-label task are 0 or 1, but {where} has others.")
        elif not bool((abs(y) <= LARGEST).all()):  # NaN is not
            raise FedTailorError(f"Targets must be finite, but {where} has NaN or infinite ones.")
