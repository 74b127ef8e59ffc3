"""The command `fedtailor export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.predict import RunWithModels
from fedtailor.cli.starting import importing


def export(
    run: RunWithModels,
    out: Annotated[
        Path, typer.Option("--out", "-o", "--to", help="folder for the models, in which each client gets its own")
    ],
    clients: Annotated[
        list[str] | None, typer.Option("--client", help="name or number of a client; may be repeated (default: all)")
    ] = None,
) -> None:
    """Export personal models to folders that work without FedTailor.

    Example: `fedtailor export runs/a --client north -o models`

    Each folder has the model as model.pt2 for PyTorch and model.onnx for ONNX runtimes (extra 'onnx'), both from raw samples to
    probabilities, its weights, a model card (README.md), and a predict.py that needs PyTorch only.
    """
    with importing():
        from fedtailor.api.run import Run
    opened = Run.open(run)
    chosen = None if not clients else [opened.saved.typed_number(client) for client in clients]
    folders = opened.export(out, chosen)
    shown = "\n".join(f"  {folder}" for folder in folders)
    console.print(f"Exported, with a model card and a predict.py each:\n{shown}", soft_wrap=True)
