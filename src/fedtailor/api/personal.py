"""A client's own model: raw samples in, names of labels and probabilities out."""

from __future__ import annotations

import csv
import io
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.api.program import Program
from fedtailor.data.client_data import shape_words
from fedtailor.data.description import Description
from fedtailor.data.new_samples import new_samples
from fedtailor.learning.samples import CHUNK
from fedtailor.printable import cell, printable

log = logging.getLogger("fedtailor")


@dataclass(frozen=True)
class Predictions:
    """What a model says of new samples."""

    predicted: np.ndarray  # names of labels, class numbers, rows of 0 and 1, or numbers
    answers: np.ndarray  # (n, classes): probabilities, or the numbers of a regression
    labels: tuple[str, ...]  # of the columns of the answers
    files: tuple[str, ...] = ()  # of images
    regression: bool = False

    def csv(self) -> str:
        """One line per sample: its number from 1, its file if it has one, the prediction, and the probability of each class."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        single = self.predicted.ndim == 1
        named = ["prediction"] if single or not self.regression else [f"prediction {name}" for name in self.labels]
        classes = [] if self.regression else [cell(name) for name in self.labels]
        lines.writerow(["row", *(["file"] if self.files else []), *named, *classes])
        for i, (said, answers) in enumerate(zip(self.predicted, self.answers, strict=True)):
            row = [str(i + 1), *([cell(self.files[i])] if self.files else [])]
            if self.regression:
                row += map(str, answers)
            else:
                row += [cell(said) if single else " ".join(map(str, said)), *map(str, answers)]
            lines.writerow(row)
        return text.getvalue()


class Personal:
    """The personal model of a client, with the description of what it reads.

    It predicts from raw samples: a data frame, CSV or Parquet file for a model of tables; a list of texts or a CSV file for one of texts;
    a folder of images, image files or an array of pixels for one of images; else an array, an .npz or an .npy file. Called with what the
    net itself reads, it returns the net's outputs, as `module` does.

    >>> model = ft.load("runs/a").personal("north")
    >>> model.predict("new.csv")
    array(['healthy', 'ill'], dtype='<U7')
    """

    def __init__(self, module: nn.Module, description: Description, name: str = "", source: object = None) -> None:
        """`source` is the data source of the run, if its options are to hold for new samples too."""
        self.module = module.cpu().eval()
        self.description = description
        self.name = name
        self.source = source
        self._program = Program(module, description)

    def __call__(self, x: Tensor) -> Tensor:
        return self.module(x)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the columns of `predict_proba`: the classes' names, or their numbers if they have none."""
        return self.description.labels or tuple(map(str, range(self.description.classes)))

    def predict(self, data: Any) -> np.ndarray:
        """Predict the label of each sample: its name, or class number without names.

        A multi-label task gives a row of 0 and 1 per sample, a regression its number, or a row of them if there are several.
        """
        return self.predictions(data).predicted

    def predict_proba(self, data: Any) -> np.ndarray:
        """Return the probabilities (n, classes) of each sample, with columns in the order of `labels`.

        For a multi-label task, these are of each label being there; for a regression, the predicted numbers.
        """
        return self.predictions(data).answers

    def predictions(self, data: Any) -> Predictions:
        """Return predictions and probabilities; what is unusual about the samples is logged as a warning."""
        samples = new_samples(data, self.description, self.source)
        for warning in samples.warnings:
            log.warning("%s", warning)
        outputs = self._outputs(samples.x)
        answers = self._program.answers(outputs).numpy()
        regression = self.description.kind == "regression"
        return Predictions(self._predicted(outputs), answers, self.labels, samples.files, regression)

    @torch.inference_mode()
    def _outputs(self, raw: np.ndarray) -> Tensor:
        pieces = (torch.tensor(raw[start : start + CHUNK]) for start in range(0, len(raw), CHUNK))
        return torch.cat([self._program.outputs(piece) for piece in pieces])

    def _predicted(self, outputs: Tensor) -> np.ndarray:
        found = self.description.task.predicted(outputs).numpy()
        match self.description.kind:
            case "multilabel":
                return found.astype(np.int64)
            case "regression":
                return found[:, 0] if found.shape[1] == 1 else found
        return np.array(self.description.labels)[found] if self.description.labels else found

    def __repr__(self) -> str:
        said = self.description
        reads = {
            "table": f"columns {printable(', '.join(column.name for column in said.columns[:6]))}"
            + (f" and {len(said.columns) - 6} more" if len(said.columns) > 6 else ""),
            "text": f"texts of up to {said.shape[0]} tokens",
        }.get(said.source, f"{said.source} of {shape_words(said.shape)} {said.dtype}")
        answers = {
            "regression": "a number" if said.classes == 1 else f"{said.classes} numbers",
            "multilabel": f"the labels {_some(self.labels)}",
        }.get(said.kind, f"one of {_some(self.labels)}")
        count = sum(parameter.numel() for parameter in self.module.parameters())
        return (
            f"Personal model of {printable(self.name or 'a client')}: {type(self.module).__name__}, {count:,} parameters\n"
            f"  reads {reads}\n  predicts {answers}"
        )


def _some(names: tuple[str, ...]) -> str:
    return printable(", ".join(names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
