"""A federation small enough to compute by hand (floats, three classes, clients of different sizes and label skews), and the command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from fedtailor import Federation, methods, nets

SIZES = (12, 7, 20, 9)
CLASSES = 3


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def pictures_of_labels_once() -> Iterator[None]:
    """Runs with the same labels have the same labels.png, which takes half the time of a short run: it is drawn once."""
    draw, drawn = Federation.plot, {}

    def plot(self: Federation, path: str | PathLike[str] | None = None) -> Figure | None:
        if path is None or Path(path).name != ".draft-labels.png":  # not that of a run's folder
            return draw(self, path)
        counts, names = self.label_counts, tuple(client.name for client in self.clients)
        key = (counts.shape, counts.tobytes(), tuple(self.labels), names)
        if key not in drawn:
            draw(self, path)
            drawn[key] = Path(path).read_bytes()
        Path(path).write_bytes(drawn[key])
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "plot", plot)
        yield


@pytest.fixture
def federation() -> Federation:
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(CLASSES, 5)) * 2
    parts = []
    for k, size in enumerate(SIZES):
        y = rng.choice(CLASSES, size=size + 4, p=np.roll([0.6, 0.3, 0.1], k))
        x = (centres[y] + rng.normal(size=(size + 4, 5))).astype(np.float32)
        parts.append((x[:size], y[:size], x[size:], y[size:]))
    return Federation.from_clients(parts)


@pytest.fixture
def fedtailor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command in this process, which has PyTorch already: asserts the exit code, returns the output."""
    from fedtailor.cli.app import console, main

    def run(*words: str | Path, code: int = 0, cwd: Path | None = None) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["fedtailor", *map(str, words)])
            patch.setattr(console, "_width", 160)
            if cwd is not None:
                patch.chdir(cwd)
            with pytest.raises(SystemExit) as ended:
                main()
        output = "".join(capsys.readouterr())
        assert (ended.value.code or 0) == code, output
        return output

    return run


@pytest.fixture
def registries() -> Iterator[None]:
    """Forget afterwards what a test registered: other tests look at all entries."""
    before = [(part, dict(part)) for r in (methods.methods, nets.nets) for part in (r.classes, r.aliases)]
    yield
    for part, entries in before:
        part.clear()
        part.update(entries)
