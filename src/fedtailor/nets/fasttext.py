"""fastText: the mean of word vectors, then a linear classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import log_softmax

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fitting import require
from fedtailor.registry import option


class MeanOfWords(nn.Module):
    """Average word vectors over all positions, including padding (id 0, the zero vector), then two linear layers."""

    def __init__(self, vocabulary: int, width: int, classes: int, *, log_features: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.fc1 = nn.Linear(width, width)
        self.fc = nn.Linear(width, classes)
        self.log_features = log_features

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc1(self.embedding(x).mean(1))
        return self.fc(log_softmax(z, 1) if self.log_features else z)


@nets.register("fasttext")
@dataclass(frozen=True)
class FastText(Architecture):
    """The mean of a text's word vectors, then two linear layers; for rows of token ids with 0 as padding."""

    paper: ClassVar[str] = "Joulin et al., 2017"

    width: int = option(32, "length of a word vector and of the features", at_least=1, at_most=2**16)
    split_quirk: bool = option(
        False, "apply log-softmax to the features before the head, as in the code published with FedAH"
    )

    def build(self, task: Task) -> nn.Module:
        require(self, task, "text")
        return MeanOfWords(task.vocabulary, self.width, task.outputs, log_features=self.split_quirk)
