"""Two convolutions and a hidden linear layer: the CNN of the federated learning papers, and LeNet's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, channels_last, nn
from torch.nn.functional import max_pool2d, relu

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fast import Conv2d, WideLinear
from fedtailor.nets.fitting import require
from fedtailor.registry import option

SMALLEST_UNPADDED = 16  # two 5×5 convolutions with pooling leave one pixel of 16
SMALLEST = 4  # with padding, two poolings leave one pixel of 4


class ConvNet(nn.Module):
    """Twice 5×5 convolution, ReLU and max-pooling, then linear layers with ReLU, then the head `fc`.

    Images with a side below 16, such as the 8×8 digits, get padding 2 ("same"); without it the second convolution would not fit.
    """

    memory_format = channels_last  # faster for these layers

    def __init__(self, shape: tuple[int, ...], channels: tuple[int, int], hidden: Sequence[int], classes: int) -> None:
        super().__init__()
        depth, *sides = shape
        padding = 2 if min(sides) < SMALLEST_UNPADDED else 0
        for _ in channels:
            sides = [(side + 2 * padding - 4) // 2 for side in sides]
        self.conv1 = nn.Conv2d(depth, channels[0], 5, padding=padding)
        self.conv2 = Conv2d(channels[0], channels[1], 5, padding)
        widths = [channels[1] * sides[0] * sides[1], *hidden]
        self.hidden = nn.ModuleList(WideLinear(a, b) for a, b in pairwise(widths))
        self.fc = nn.Linear(widths[-1], classes)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of the convolutions (after pooling) and of each hidden layer, the latter as maps of one pixel."""
        first, second = self._convolved(x)
        return [first, second, *(z[:, :, None, None] for z in self._hidden(second))]

    def forward(self, x: Tensor) -> Tensor:
        _, second = self._convolved(x)
        return self.fc(self._hidden(second)[-1])

    def _convolved(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # ReLU after pooling gives the same result on a quarter of the values.
        first = relu(max_pool2d(self.conv1(x.to(memory_format=self.memory_format)), 2))
        return first, relu(max_pool2d(self.conv2(first), 2))

    def _hidden(self, maps: Tensor) -> list[Tensor]:
        outputs = [maps.flatten(1)]
        for layer in self.hidden:
            outputs.append(relu(layer(outputs[-1])))
        return outputs[1:]


@nets.register("cnn", "4-layer-cnn", "fedavg-cnn")
@dataclass(frozen=True)
class CNN(Architecture):
    """The 4-layer CNN of most federated learning papers; images below 16×16 are padded to keep their size."""

    paper: ClassVar[str] = "McMahan et al., 2017"

    conv1: int = option(32, "channels of the first convolution", at_least=1, at_most=2**16)
    conv2: int = option(64, "channels of the second convolution", at_least=1, at_most=2**16)
    hidden: int = option(512, "width of the hidden linear layer, the features", at_least=1, at_most=2**16)

    def build(self, task: Task) -> nn.Module:
        require(self, task, "images", SMALLEST)
        return ConvNet(task.shape, (self.conv1, self.conv2), [self.hidden], task.outputs)
