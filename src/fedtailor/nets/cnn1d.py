"""A 1-D CNN for sensor windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import max_pool1d, relu

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fitting import require
from fedtailor.registry import option


class SeriesNet(nn.Module):
    """Twice convolution along time, ReLU and max-pooling, then a hidden linear layer, then the head `fc`."""

    def __init__(self, channels: int, length: int, width: int, kernel: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, width, kernel, padding="same")
        self.conv2 = nn.Conv1d(width, 2 * width, kernel, padding="same")
        self.fc1 = nn.Linear(2 * width * (length // 2 // 2), hidden)
        self.fc = nn.Linear(hidden, classes)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of the convolutions (after pooling) and of the hidden layer, the latter as a series of one step."""
        first = max_pool1d(relu(self.conv1(x)), 2)
        second = max_pool1d(relu(self.conv2(first)), 2)
        return [first, second, relu(self.fc1(second.flatten(1)))[:, :, None]]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(x)[-1].flatten(1))


@nets.register("cnn1d", "cnn-1d", "har-cnn")
@dataclass(frozen=True)
class CNN1D(Architecture):
    """Two convolutions along time and a hidden layer, for windows of sensor channels such as UCI HAR's 9×128."""

    paper: ClassVar[str] = "Ronao and Cho, 2016"

    width: int = option(
        32, "channels of the first convolution; the second has twice as many", at_least=1, at_most=2**16
    )
    kernel: int = option(9, "kernel size of the convolutions, in time steps", at_least=1, at_most=2**10)
    hidden: int = option(128, "width of the hidden linear layer, the features", at_least=1, at_most=2**16)

    def build(self, task: Task) -> nn.Module:
        require(self, task, "series", smallest=4)
        channels, length = task.shape
        return SeriesNet(channels, length, self.width, self.kernel, self.hidden, task.outputs)
