"""LeNet-5, and a variant of a sixth of its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.cnn import SMALLEST, ConvNet
from fedtailor.nets.fitting import require
from fedtailor.registry import option


@nets.register("lenet", "lenet5", "lenet-5")
@dataclass(frozen=True)
class LeNet(Architecture):
    """LeNet-5 with ReLU and max-pooling; images below 16×16 are padded to keep their size."""

    paper: ClassVar[str] = "LeCun et al., 1998"

    conv1: int = option(6, "channels of the first convolution", at_least=1, at_most=2**16)
    conv2: int = option(16, "channels of the second convolution", at_least=1, at_most=2**16)
    hidden: int = option(120, "width of the first linear layer", at_least=2, at_most=2**16)
    linears: Literal[2, 3] = option(
        2, "number of linear layers, with the head; the third, of the classical net, has width 0.7 × hidden (84)"
    )

    def build(self, task: Task) -> nn.Module:
        require(self, task, "images", SMALLEST)
        hidden = [self.hidden, round(0.7 * self.hidden)][: self.linears - 1]
        return ConvNet(task.shape, (self.conv1, self.conv2), hidden, task.outputs)


@nets.register("lenet-small", "lenet-supervisor")
@dataclass(frozen=True)
class SmallLeNet(LeNet):
    """LeNet-5 with about a sixth of its parameters, the size of FedSimSup's supervisor."""

    conv1: int = option(3, "channels of the first convolution", at_least=1, at_most=2**16)
    conv2: int = option(7, "channels of the second convolution", at_least=1, at_most=2**16)
    hidden: int = option(40, "width of the first linear layer", at_least=2, at_most=2**16)
