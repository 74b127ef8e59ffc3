"""The command `fedtailor predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.starting import importing

RunWithModels = Annotated[
    Path, typer.Argument(metavar="RUN", help="folder of a finished run, or of a site with its model")
]


def predict(
    run: RunWithModels,
    data: Annotated[
        str, typer.Option("--data", help="new samples: a .csv, .parquet or .npz file, an image or a folder")
    ],
    client: Annotated[
        str,
        typer.Option("--client", help="name or number of the client whose model predicts; not needed if there is one"),
    ] = "",
    out: Annotated[Path, typer.Option("--out", "-o", help="file for the predictions")] = Path("predictions.csv"),
) -> None:
    """Predict labels of new samples with a client's personal model.

    Example: `fedtailor predict runs/a --client north --data new.csv -o predictions.csv`

    New samples look like those of training, without labels: a table with the same columns, images, texts or arrays.
    The file has one line per sample: its number, the predicted label, and the probability of each label.
    """
    with importing():
        from fedtailor.api.run import Run
        from fedtailor.files import replace_text
    opened = Run.open(run)
    model = opened.personal(opened.saved.typed_number(client))
    found = model.predictions(data)
    replace_text(out, found.csv())
    console.print(f"{len(found.predicted):,} predictions of the model of {model.name}: {out}", soft_wrap=True)
