"""ResNet-18 with a frozen pretrained backbone and small trainable modules between its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fitting import require
from fedtailor.nets.resnet import BasicBlock, ResNet18
from fedtailor.registry import option

# Parameters with one of these in their names train; the norms of shortcuts have none.
TRAINABLE = ("adapter", "bn1", "bn2", "fc.")


class Adapter(nn.Module):
    """x + conv1×1(dropout(norm(x))), initialized close to x so that the pretrained net hardly changes at first."""

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
    """ResNet-18 with two adapters in each block: these, the norms on the main path and the head train; the rest is frozen.

    Only what trains is in the net's vectors and travels, together with the running statistics of all norms if these are averaged.
    """

    paper: ClassVar[str] = "Xie et al., PerAda: Parameter-Efficient FL Personalization, CVPR 2024"

    stem: Literal["imagenet", "small"] = option("imagenet", "imagenet: 7×7 stride 2 and max-pool; small: 3×3 stride 1")
    weights: str = option("", "file of resnet18 weights for the frozen backbone; if empty, the backbone is random")
    load_statistics: bool = option(
        True,
        "load the norms' running statistics from the file too; false: they start at 0 and 1, as in PerAda's code",
    )
    dropout: float = option(0.3, "dropout rate of an adapter's inputs", at_least=0.0, at_most=0.9)

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
