"""Score a model on a client's own samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedtailor.learning.metrics import Metric
from fedtailor.learning.requests import Counted, Scoring
from fedtailor.learning.samples import Samples


@dataclass(frozen=True)
class Score:
    """Correct predictions and summed loss over `total` samples, and the values of further metrics (NaN if undefined).

    `outputs` of the model are kept if a metric over all clients needs them; they never leave a site of a real federation.
    `validation` is the score on the samples held out from training, if there are any.
    """

    correct: int = 0
    total: int = 0
    loss: float = 0.0
    values: Mapping[str, float] = field(default_factory=dict)
    outputs: Tensor | None = field(default=None, compare=False, repr=False)
    validation: Score | None = None

    @property
    def accuracy(self) -> float:
        return self.correct / self.total if self.total else math.nan

    def value(self, name: str) -> float:
        """Return the value of a metric; NaN if it was not computed."""
        return self.accuracy if name == "accuracy" else self.values.get(name, math.nan)


def score(
    model: nn.Module,
    samples: Samples,
    metrics: Sequence[Metric] = (),
    *,
    keep_outputs: bool = False,
    ask: Callable[[Scoring], Counted] = Scoring.alone,
) -> Score:
    """Score a model on samples, with the values of these metrics. `ask` computes the outputs of a net."""
    if not len(samples):
        return Score()
    outputs, correct, loss = ask(Scoring(model, samples))
    further = [metric for metric in metrics if metric.name != "accuracy"]
    values = {metric.name: metric.of(samples.task, samples.y, outputs) for metric in further}
    return Score(correct, len(samples), loss, values, outputs.cpu() if keep_outputs else None)


@torch.inference_mode()
def hits(model: nn.Module, samples: Samples) -> Tensor:
    """Return for each sample 1 if the model predicts its class, else 0."""
    model.eval()
    return torch.cat([(samples.task.predicted(model(x)) == y).float() for x, y in samples.chunks()])
