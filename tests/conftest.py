"""A federation small enough to compute by hand (floats, three classes, clients of different sizes and label skews), and the command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from matplotlib.figure import Figure

from fedtailor import Federation, methods, nets

SIZES = (12, 7, 20, 9)
CLASSES = 3
RENDER, PLOT = Figure.savefig, Federation.plot


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def quick_folders() -> Iterator[None]:
    """Most of a short run's time goes to its pictures and to waiting for the disk.

    Here figures are made but not rendered (that of the labels is not even made), unless a test asks for `rendered`. Files are not flushed:
    that matters when a machine stops, which no test can do.
    """

    def render(self: Figure, path: str | PathLike[str], **options: object) -> None:
        PIL.Image.new("L", (1, 1)).save(path, "png")

    def plot(self: Federation, path: str | PathLike[str] | None = None) -> Figure | None:
        if path is None or Path(path).name != ".draft-labels.png":  # not that of a run's folder
            return PLOT(self, path)
        return render(Figure(), path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", render)
        patch.setattr(Federation, "plot", plot)
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn as a user gets them."""
    monkeypatch.setattr(Figure, "savefig", RENDER)
    monkeypatch.setattr(Federation, "plot", PLOT)


@pytest.fixture
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are exported as where its packages are not installed: to write ONNX takes seconds."""
    monkeypatch.setattr("fedtailor.api.export.find_spec", lambda name: None)


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
