"""The model card of an exported model: what it is, how good it is, and what left the site to make it."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
import torch

from fedtailor.api.personal import Personal
from fedtailor.data.client_data import Split
from fedtailor.data.federation import Federation
from fedtailor.experiment.config import Config
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.saved_models import SavedModels
from fedtailor.learning.metrics import PYTHON, Metric, selected
from fedtailor.learning.samples import Samples
from fedtailor.learning.scoring import score
from fedtailor.randomness import numpy_stream
from fedtailor.report.sheets import Sheet, as_markdown, escape_markdown

RESAMPLES = 1000
FILES = {
    "predict.py": "predicts from new samples; it needs PyTorch, not FedTailor",
    "model.pt2": 'raw samples in, probabilities out: `torch.export.load("model.pt2").module()`',
    "model.onnx": "the same for ONNX runtimes",
    "model.safetensors": "the weights alone, by the names of the net's parameters",
    "description.json": "columns, categories, scaling, vocabulary and labels",
}


@dataclass(frozen=True)
class Measure:
    """A metric on a client's test samples, and its bootstrap 95 % interval over them (NaN if it is not known)."""

    metric: str
    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def row(self) -> tuple[str, str, str]:
        shown = Headline(self.metric)
        known = math.isfinite(self.low)
        return (
            shown.heading,
            shown.shown(self.value),
            f"{shown.shown(self.low)} to {shown.shown(self.high)}" if known else "—",
        )


def measured(model: Personal, split: Split, federation: Federation, config: Config) -> list[Measure]:
    """Measure a model on test samples, with the metrics of its run."""
    samples = Samples(split, federation, replace(config.settings, device="cpu"), ready=False)
    metrics = _metrics(federation, config)
    outputs = score(model.module, samples, metrics, keep_outputs=True).outputs
    if outputs is None:
        return []
    found = []
    for metric in metrics:
        value = metric.of(federation.task, samples.y, outputs)
        if metric.name == "accuracy":
            found.append(_accuracy(value, len(split), config.settings.seed))
            continue
        rng = numpy_stream(config.settings.seed, "bootstrap", metric.name)
        rows = (torch.from_numpy(rng.integers(len(split), size=len(split))) for _ in range(RESAMPLES))
        values = [metric.of(federation.task, samples.y[some], outputs[some]) for some in rows]
        found.append(Measure(metric.name, value, *_middle(values)))
    return found


def recorded(row: dict[str, str], seed: int) -> list[Measure]:
    """Return what clients.csv has of a client's metrics; of accuracy, the interval follows from the number of samples."""
    others = ("client", "name", "train_samples", "test_samples", "bytes_up", "bytes_down")
    values = {name: float(text) for name, text in row.items() if name not in others and text}
    return [
        _accuracy(value, int(row["test_samples"]), seed) if name == "accuracy" else Measure(name, value)
        for name, value in values.items()
    ]


def _accuracy(value: float, count: int, seed: int) -> Measure:
    """Accuracy and its interval: the right answers among resampled ones are binomial, so that samples need not be drawn."""
    if not math.isfinite(value):
        return Measure("accuracy", value)
    right = numpy_stream(seed, "bootstrap", "accuracy").binomial(count, value, RESAMPLES)
    return Measure("accuracy", value, *_middle(right / count))


def sent(saved: SavedModels) -> dict[int, Counter[str]]:
    """Return the bytes that left each client by the name of what was sent, from the ledger."""
    found: dict[int, Counter[str]] = {}
    if saved.folder.ledger.exists():
        with saved.folder.ledger.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if row["direction"] == "up":
                    found.setdefault(int(row["client"]), Counter())[row["name"]] += int(row["bytes"])
    return found


def card(saved: SavedModels, number: int, model: Personal, data: Federation | None, up: Counter[str] | None) -> str:
    """Return the model card as Markdown, with a line {files} where those of the folder are to be listed.

    The model is measured on `data`, or if that is not at hand, described by what the run measured. `up` is what left the client, if
    that is known.
    """
    row, config = saved.table.get(number, {}), saved.config
    if data is not None and number < len(data.clients):
        measures = measured(model, data.clients[number].test, data, config)
    else:
        data, measures = None, recorded(row, config.settings.seed)
    parts = [
        f"# Personal model of {escape_markdown(model.name)}",
        f"{_what(saved, model)} Exported on {date.today().isoformat()}.",
        "**Intended use:** new samples of this client, collected as its training samples were. The model is fitted to this client: "
        "elsewhere it may be wrong more often than the numbers below say.",
        "## Use\n\n```sh\npython predict.py NEW > predictions.csv\n```\n\n{files}",
        f"## Data\n\n{_data(model, row, len(saved.table))}",
        f"## Quality\n\n{_quality(row, measures, data is not None)}",
        f"## What left the site\n\n{_left(config, up)}",
        f"## Versions\n\n{_versions(saved)}",
    ]
    return "\n\n".join(parts) + "\n"


def listed(files: Sequence[str]) -> str:
    return "\n".join(f"- `{name}`: {meaning}" for name, meaning in FILES.items() if name in files)


def _what(saved: SavedModels, model: Personal) -> str:
    config, method, said = saved.config, saved.config.method, model.description
    label = f" {escape_markdown(said.label)}" if said.label else ""
    source = {"table": "tables", "text": "texts"}.get(said.source, said.source)
    paper = f" ({escape_markdown(method.paper)}, {method.year})" if method.paper else ""
    count = sum(parameter.numel() for parameter in model.module.parameters())
    records = saved.folder.records()
    rounds = records[-1]["round"] if records else config.settings.rounds
    return (
        f"A {said.kind} model that predicts{label} from {source}: the net {escape_markdown(config.net.name)} with {count:,} parameters, "
        f"trained with the method {escape_markdown(method.name)}{paper} in {rounds} rounds of personalized federated learning "
        f"(seed {config.settings.seed})."
    )


def _data(model: Personal, row: dict[str, str], clients: int) -> str:
    said = model.description
    lines = [f"- {clients} clients took part."] if clients else []
    if row:
        lines.append(f"- This client: {row['train_samples']} training and {row['test_samples']} test samples.")
    if said.columns:
        names = ", ".join(f"{column.name} ({column.kind})" for column in said.columns)
        lines.append(f"- Columns: {escape_markdown(names)}.")
    elif said.tokens:
        lines.append(f"- Texts of up to {said.shape[0]} tokens, of which {len(said.tokens):,} are known.")
    else:
        lines.append(f"- Samples: {said.dtype} of shape {said.shape}.")
    if said.kind != "regression":
        lines.append(f"- Labels: {escape_markdown(', '.join(model.labels))}.")
    return "\n".join([*lines, *(f"- {escape_markdown(note)}" for note in said.notes)])


def _quality(row: dict[str, str], measures: Sequence[Measure], own: bool) -> str:
    if not measures:
        return "This client has no test samples: how good the model is was not measured."
    table = as_markdown(Sheet("", ["metric", "value", "95 % interval"], [m.row for m in measures]))
    count = row.get("test_samples", "")
    source = "Measured when the model was exported" if own else "As the run measured it"
    return (
        f"{table}\n{source}, on this client's own {count} test samples, which were not trained on. Intervals are over {RESAMPLES:,} "
        "bootstrap resamples of these samples."
    )


def _left(config: Config, up: Counter[str] | None) -> str:
    if up is None:
        return "The ledger of the run is not in this folder."
    if not up:
        return "Nothing: no payload of this client was sent to the server."
    rows = [[name, f"{count:,}"] for name, count in up.items()]
    table = as_markdown(Sheet("", ["sent to the server", "bytes"], rows))
    keeps = f" Never sent: {escape_markdown(', '.join(config.method.keeps))}." if config.method.keeps else ""
    return f"{table}\nThese are all payloads of this client, counted by the run's ledger over all rounds.{keeps}"


def _versions(saved: SavedModels) -> str:
    try:
        known = json.loads(saved.folder.versions.read_bytes())
    except (OSError, ValueError):
        known = {}
    names = ("fedtailor", "torch", "numpy", "safetensors", "python", "platform")
    trained = ", ".join(f"{name} {known[name]}" for name in names if name in known) or "not known"
    return f"Trained with {escape_markdown(trained)}. Exported with torch {escape_markdown(torch.__version__)}."


def _metrics(federation: Federation, config: Config) -> tuple[Metric, ...]:
    """The metrics of the run, without functions in Python, which a folder does not hold."""
    named = [m for m in config.settings.metrics if isinstance(m, str) and not m.startswith(PYTHON)]
    chosen = config.settings.select_by
    known = not chosen or chosen in named or not any(str(m) == PYTHON + chosen for m in config.settings.metrics)
    return selected(federation.task, named, chosen if known else "")


def _middle(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The middle 95 % of values; NaN if fewer than half of them are defined."""
    known = np.asarray(values)[np.isfinite(values)]
    if len(known) < len(values) / 2:
        return math.nan, math.nan
    low, high = np.percentile(known, (2.5, 97.5))
    return float(low), float(high)
