"""ResNet-18, with the parameter names that published weights use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fitting import require
from fedtailor.nets.weights import load_weights
from fedtailor.registry import option

Norm = Callable[[int], nn.Module]
NORMS: dict[str, Norm] = {"batch": nn.BatchNorm2d, "group": lambda channels: nn.GroupNorm(32, channels)}


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution if the size changes.

    `adapter1` and `adapter2` do nothing here; a frozen net can have small trainable modules in their place.
    """

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.adapter1: nn.Module = nn.Identity()
        self.bn1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.adapter2: nn.Module = nn.Identity()
        self.bn2 = norm(after)
        same = stride == 1 and before == after
        self.downsample = None if same else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        z = relu(self.bn1(self.adapter1(self.conv1(x))))
        return relu(self.bn2(self.adapter2(self.conv2(z))) + shortcut)


class ResNet(nn.Module):
    """A stem, four stages of two blocks, the mean over pixels, then the head `fc`."""

    def __init__(self, channels: int, classes: int, *, small_stem: bool, norm: Norm) -> None:
        super().__init__()
        self.conv1 = (
            nn.Conv2d(channels, 64, 3, padding=1, bias=False)
            if small_stem
            else nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
        )
        self.bn1 = norm(64)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = _stage(64, 64, 1, norm)
        self.layer2 = _stage(64, 128, 2, norm)
        self.layer3 = _stage(128, 256, 2, norm)
        self.layer4 = _stage(256, 512, 2, norm)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the maps after each of the four stages."""
        z = self.maxpool(relu(self.bn1(self.conv1(x))))
        maps = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            z = stage(z)
            maps.append(z)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(x)[-1].mean((2, 3)))


def _stage(before: int, after: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(BasicBlock(before, after, stride, norm), BasicBlock(after, after, 1, norm))


@nets.register("resnet18", "resnet-18", "resnet")
@dataclass(frozen=True)
class ResNet18(Architecture):
    """ResNet-18 for images with any number of channels, with random initial weights or weights from a file."""

    paper: ClassVar[str] = "He et al., 2016"

    stem: Literal["imagenet", "small"] = option("imagenet", "imagenet: 7×7 stride 2 and max-pool; small: 3×3 stride 1")
    norm: Literal["batch", "group"] = option(
        "batch", "batch: BatchNorm; group: GroupNorm with 32 groups, which has no running statistics"
    )
    weights: str = option("", ".safetensors or .pth file of initial weights, for the same stem, norm and channels")

    def build(self, task: Task) -> nn.Module:
        require(self, task, "images")
        module = ResNet(task.shape[0], task.outputs, small_stem=self.stem == "small", norm=NORMS[self.norm])
        if self.weights:
            load_weights(module, self.weights)
        return module
