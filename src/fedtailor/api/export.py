"""Export a personal model to a folder that works without FedTailor."""

from __future__ import annotations

import copy
import logging
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram

from fedtailor.api.card import card, listed, sent
from fedtailor.api.personal import Personal
from fedtailor.api.program import Program
from fedtailor.data.federation import Federation
from fedtailor.data.new_samples import named_columns
from fedtailor.engines.base import save_module
from fedtailor.errors import FedTailorError
from fedtailor.experiment.saved_models import SavedModels
from fedtailor.files import make_folder, replace_text, writing
from fedtailor.nets.fast import with_plain_layers

log = logging.getLogger("fedtailor")

SAFE = re.compile(r"\w[\w.-]{0,99}")  # names of clients that are names of folders too
TOLERANCE = 1e-5  # how far the exported program may be from the model: plain layers round otherwise than fast ones


def export_models(saved: SavedModels, numbers: Sequence[int], to: Path, data: Federation | None) -> list[Path]:
    """Export saved models to one folder each; they are measured on `data`, if it is at hand."""
    if not numbers:
        raise FedTailorError(f"There is no saved model in '{saved.folder.path}' to export. {saved.why_none()}")
    names = {number: folder_name(saved.name(number), number) for number in numbers}
    if len({name.lower() for name in names.values()}) < len(names):
        names = {number: folder_name("", number) for number in numbers}
    for name in names.values():
        refuse_taken(to / name)
    sent_by, lacking = sent(saved), ""
    with writing(to):
        to.mkdir(parents=True, exist_ok=True)
    for number, name in names.items():
        model = Personal(saved.module(number), saved.description, saved.name(number), saved.config.data)
        up = sent_by.get(number, Counter()) if saved.folder.ledger.exists() else None
        reason = export_model(model, to / name, card(saved, number, model, data, up))
        if reason != lacking:  # say it once
            log.warning("%s", reason)
        lacking = reason
    return [to / name for name in names.values()]


def export_model(model: Personal, folder: Path, card: str) -> str:
    """Write model.pt2, model.safetensors, model.onnx if possible, description.json, predict.py and README.md, the card.

    Return why there is no model.onnx; empty if there is one.
    """
    refuse_taken(folder)
    draft = folder.with_name(f".{folder.name}.draft")
    with writing(folder):
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft)
        try:
            lacking = _write(model, draft, card)
            if folder.exists():
                folder.rmdir()
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return lacking


def refuse_taken(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedTailorError(f"'{folder}' is not empty. Choose another folder to export to, or delete it.")


def folder_name(name: str, number: int) -> str:
    """Return the name of a client's folder: its own name if a folder can have it."""
    return name if SAFE.fullmatch(name) else f"client-{number:05d}"


def _write(model: Personal, folder: Path, card: str) -> str:
    program = Program(with_plain_layers(copy.deepcopy(model.module)), model.description)
    exported = exported_program(program)
    torch.export.save(exported, folder / "model.pt2")
    save_module(model.module, folder / "model.safetensors")
    lacking = write_onnx(exported, folder / "model.onnx")
    model.description.write(folder / "description.json")
    replace_text(folder / "predict.py", predict_script(model))
    files = sorted(file.name for file in folder.iterdir())
    replace_text(folder / "README.md", card.replace("{files}", listed(files), 1))
    return lacking


def exported_program(program: Program) -> ExportedProgram:
    """Trace a program for batches of any size, and check that the trace computes the same."""
    example = program.example()
    try:
        with _quiet():
            found = torch.export.export(program, (example,), dynamic_shapes=({0: Dim("batch")},))
    except Exception as error:  # whatever in a net cannot be traced
        reason = _first_line(error)
        raise FedTailorError(
            f"The net {type(program.net).__name__} cannot be exported with torch.export: {reason}"
        ) from None
    with torch.inference_mode():
        for count in (1, len(example)):
            wanted, got = program(example[:count]), found.module()(example[:count])
            if not torch.allclose(wanted, got, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                raise FedTailorError(
                    f"The net {type(program.net).__name__} cannot be exported: what was traced of it computes something else. Does it "
                    "decide by its input what to do?"
                )
    return found


def write_onnx(exported: ExportedProgram, path: Path) -> str:
    """Write the program for ONNX runtimes if the packages are there and the net allows it; else return why not."""
    lacking = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if lacking:
        return f"model.onnx is left out: it needs {' and '.join(lacking)}.  pip install 'fedtailor[onnx]'"
    try:
        with _quiet():
            found = torch.onnx.export(
                exported, dynamo=True, input_names=["raw"], output_names=["answers"], verbose=False
            )
            assert found is not None
            found.save(path)
    except Exception as error:  # an operator that ONNX does not have, and much else
        reason = _first_line(error)
        path.unlink(missing_ok=True)
        return f"model.onnx is left out: this net cannot be converted ({reason})."
    return ""


def predict_script(model: Personal) -> str:
    """Return predict.py: of the readers of all kinds of samples, it has only that of this model's."""
    kind = model.description.source
    if kind == "images" and model.description.shape[0] not in (1, 3):
        kind = "arrays"
    source = Path(__file__).with_name("standalone.py").read_text(encoding="utf-8")
    columns = list(named_columns(model.source)[1:])
    source = source.replace("columns: list[str] = []", f"columns: list[str] = {columns!r}")
    blocks = source.split("\n\n\n")
    kept = [b for b in blocks if not b.startswith("def read_") or b.startswith(f"def read_{kind}(")]
    return "\n\n\n".join(kept).replace("read_table(sys", f"read_{kind}(sys")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what PyTorch's exporters say to their developers."""
    loud = logging.getLogger("torch.onnx"), logging.getLogger("torch.export")
    before = [logger.level for logger in loud]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loud:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loud, before, strict=True):
                logger.setLevel(level)
