"""The learning task: the kind of labels, and with it the outputs of a net, the loss and the default metric."""

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

LARGEST = 3e38  # largest target: beyond it, float32 is infinite
OUTPUT = {
    "multiclass": "one logit per class",
    "binary": "one logit, that of class 1",
    "multilabel": "one logit per label",
    "regression": "one number per target",
}


@dataclass(frozen=True)
class Task:
    """The shape of one sample (channels first for images, tokens for text), its labels, and for text the vocabulary.

    `classes` counts classes, labels of a multi-label task, or targets of a regression. Labels of a batch are class numbers (n,) for
    multi-class and binary tasks, and floats (n, classes) for the others.
    """

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    kind: Kind = "multiclass"

    @property
    def outputs(self) -> int:
        """The number of values that a net returns per sample."""
        return 1 if self.kind == "binary" else self.classes

    @property
    def metric(self) -> str:
        """The metric used to report, select and rank unless another is requested."""
        return {"multilabel": "f1", "regression": "rmse"}.get(self.kind, "accuracy")

    def loss(
        self, outputs: Tensor, y: Tensor, weights: Tensor | None = None, sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return the batch mean of cross-entropy, binary cross-entropy (averaged over labels) or squared error (averaged over targets).

        `weights` has one entry per class and weights the mean; for a multi-label task it weights the positives of each label.
        `sample_weights` has one entry per sample and weights the mean as well; the two multiply.
        """
        if sample_weights is not None:
            return self._weighted_loss(outputs, y, weights, sample_weights)
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

    def _weighted_loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None, sample_weights: Tensor) -> Tensor:
        """Return Σ wℓ / Σ w over the samples of a batch; zero where all weights are zero."""
        w = sample_weights if weights is None or self.kind not in CLASSES else sample_weights * weights[y]
        total = w.sum()
        return (w * self._losses(outputs, y, weights)).sum() / torch.where(total > 0, total, 1.0)

    def losses(
        self, outputs: Tensor, y: Tensor, weights: Tensor | None = None, sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return the loss of each sample, times its weight and that of its class; unlike in `loss`, no other sample has a say in it."""
        each = self._losses(outputs, y, weights)
        each = each if weights is None or self.kind not in CLASSES else weights[y] * each
        return each if sample_weights is None else sample_weights * each

    def _losses(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return the loss of each sample, with weights only of the positives of a multi-label task."""
        match self.kind:
            case "multiclass":
                return F.cross_entropy(outputs, y, reduction="none")
            case "binary":
                return F.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs.dtype), reduction="none")
            case "multilabel":
                return F.binary_cross_entropy_with_logits(outputs, y, pos_weight=weights, reduction="none").mean(1)
            case "regression":
                return F.mse_loss(outputs, y, reduction="none").mean(1)

    def summed_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the unweighted loss summed over samples, which scores accumulate."""
        if self.kind == "multiclass":
            return F.cross_entropy(outputs, y, reduction="sum")
        return self.loss(outputs, y) * len(y)

    def predicted(self, outputs: Tensor) -> Tensor:
        """Return the predictions that outputs stand for, in the form of labels."""
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
        """Count the samples predicted without any mistake; 0 for a regression."""
        return self.right(outputs, y).sum()

    def right(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return for each sample whether it is predicted without any mistake; never in a regression."""
        if self.kind == "regression":
            return torch.zeros(len(y), dtype=torch.bool, device=y.device)
        right = self.predicted(outputs) == y
        return right.all(1) if right.ndim > 1 else right

    def class_weights(self, y: Tensor) -> Tensor:
        """Return weights that balance the classes in `y`: their mean over samples is 1, and an absent class has weight 1.

        For a multi-label task, return the weight of each label's positives: its negatives divided by its positives.
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
        elif not bool((abs(y) <= LARGEST).all()):  # also refuses NaN
            raise FedTailorError(f"Targets must be finite, but {where} has NaN or infinite ones.")
