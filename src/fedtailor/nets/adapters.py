"""ResNet-18 whose pretrained backbone is frozen and adapted by small modules between its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fitting import require
from fedtailor.nets.resnet import BasicBlock, ResNet18
from fedtailor.registry import option

# a parameter whose name has one of these trains; the norm of a shortcut has none of them
TRAINABLE = ("adapter", "bn1", "bn2", "fc.")


class Adapter(nn.Module):
    """x + conv1×1(dropout(norm(x))), so close to x at first that the pretrained net is hardly disturbed."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.drop = nn.Dropout(dropout)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        nn.init.normal_(self.conv.weight, std=1e-4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.drop(self.bn(x)))


@nets.register("resnet18-adapters", "resnet-18-adapters", "adapters")
@dataclass(frozen=True)
class ResNet18Adapters(Architecture):
    """ResNet-18 with two adapters in each block: these, the norms on the main path and the head train, all else is frozen.

    Only what trains is in the net's vectors and travels, and the statistics of all its norms do where they are averaged.
    """

    paper: ClassVar[str] = "Xie et al., PerAda: Parameter-Efficient FL Personalization, CVPR 2024"

    stem: Literal["imagenet", "small"] = option("imagenet", "imagenet: 7×7 stride 2 and max-pool; small: 3×3 stride 1")
    weights: str = option("", "a file of resnet18 weights for the frozen backbone; without one the backbone is random")
    load_statistics: bool = option(
        True,
        "take the norms' running statistics from the file too; false starts them at 0 and 1, as PerAda's code does",
    )
    dropout: float = option(0.3, "share of an adapter's inputs dropped while training", at_least=0.0, at_most=0.9)

    def build(self, task: Task) -> nn.Module:
        require(self, task, "images")
        module = ResNet18(stem=self.stem, norm="batch", weights=self.weights).build(task)
        for layer in list(module.modules()):
            if isinstance(layer, nn.BatchNorm2d) and not self.load_statistics:
                layer.reset_running_stats()
            elif isinstance(layer, BasicBlock):
                channels = layer.conv2.out_channels
                layer.adapter1, layer.adapter2 = Adapter(channels, self.dropout), Adapter(channels, self.dropout)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(any(part in name for part in TRAINABLE))
        return module
