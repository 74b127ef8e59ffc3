"""The command `fedtailor pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.arguments import Words, console
from fedtailor.cli.starting import importing


def pretrain(
    out: Annotated[Path, typer.Option("--out", "-o", help="file for the weights, such as backbone.safetensors")],
    words: Words = None,
) -> None:
    """Train a net on a whole data set in one place, for runs to start from.

    Example: `fedtailor pretrain net=resnet18 data=cifar10 epochs=5 --out backbone.safetensors`

    Then `fedtailor run net=resnet18-adapters net.weights=backbone.safetensors …` starts from it, and its versions.json says so.
    """
    with importing():
        from fedtailor.experiment import pretrain
    config = pretrain.plan(words or [])

    def watch(epoch: int, loss: float, accuracy: float) -> None:
        console.print(f"epoch {epoch}/{config.settings.epochs}: loss {loss:.3f}, test accuracy {100 * accuracy:.2f} %")

    pretrain.pretrain(config, out, watch)
    console.print(f"Weights: {out}", soft_wrap=True)
