"""An exported model works where FedTailor is not installed, and says what FedTailor's own says."""

from __future__ import annotations

import copy
import json
import logging
import math
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import fedtailor as ft
from fedtailor.api import export
from fedtailor.api.card import measured, recorded
from fedtailor.api.personal import Personal
from fedtailor.api.program import Program
from fedtailor.data.description import Description
from fedtailor.nets import nets
from fedtailor.nets.build import build_net
from fedtailor.nets.fast import with_plain_layers

QUICK = ["rounds=2", "engine=inline", "lr=0.3"]

# Runs each predict.py with the packages of this environment but FedTailor, which it checks to be out of reach.
ALONE = """
import contextlib, io, json, runpy, sys
sys.path.append(sys.argv[1])
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "fedtailor":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without())
try:
    import fedtailor
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("FedTailor can be imported here")
found = []
for folder, data in json.loads(sys.argv[2]):
    sys.argv = ["predict.py", data]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(f"{folder}/predict.py", run_name="__main__")
    found.append(said.getvalue())
print(json.dumps(found))
"""


def alone(*pairs: tuple[Path, Path]) -> list[str]:
    """Return what each folder's predict.py prints, in one process that cannot import FedTailor."""
    words = json.dumps([list(map(str, pair)) for pair in pairs])
    site = sysconfig.get_paths()["purelib"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE, site, words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def patients(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"age": rng.integers(20, 90, rows).astype(float), "grade": rng.integers(1, 4, rows)})
    frame["sex"] = rng.choice(["f", "m", None], rows)
    frame["smoker"] = rng.choice([True, False], rows)
    frame.loc[::7, "age"] = np.nan
    frame["ill"] = np.where(frame.age.fillna(50) + 5 * frame.grade > 60, "yes", "no")
    frame["site"] = rng.choice(["north", "south"], rows)
    return frame


def exported(tmp_path: Path, name: str, *words: str) -> tuple[Personal, Path]:
    run = ft.run(ft.Config.load(words=[*words, *QUICK]), out=tmp_path / name, callbacks=[])
    (folder,) = run.export(tmp_path / f"{name}-models", [0])
    return ft.load(tmp_path / name).personal(0), folder


def a_table(tmp_path: Path, ending: str) -> tuple[Personal, Path, Path]:
    file, new = tmp_path / f"patients.{ending}", tmp_path / f"new-{ending}.csv"
    patients().to_csv(file, index=False) if ending == "csv" else patients().to_parquet(file)
    rows = patients(20).astype(object)
    rows.loc[3, ["sex", "grade"]] = ["x", 9]  # values that training did not have
    rows[["smoker", "grade", "sex", "age"]].to_csv(new, index=False)
    words = ("data.client=site", "data.label=ill", "data.categories=grade")
    return *exported(tmp_path, ending, "data=table", f"data.path={file}", *words), new


def images(tmp_path: Path) -> tuple[Personal, Path, Path]:
    rng = np.random.default_rng(3)
    for k, label in enumerate(("cat", "dog")):
        (tmp_path / "scans" / label).mkdir(parents=True)
        for i in range(8):
            grid = rng.integers(0, 100, (12, 12, 3)) + 120 * k
            Image.fromarray(grid.astype(np.uint8)).save(tmp_path / "scans" / label / f"{i}.png")
    place = (f"data.path={tmp_path / 'scans'}", f"data.root={tmp_path}", "data.size=8", "clients=2", "partition=iid")
    return *exported(tmp_path, "images", "data=folder", "net=cnn", *place), tmp_path / "scans"


def texts(tmp_path: Path) -> tuple[Personal, Path, Path]:
    rows = ["label,text", *(["good,a lovely (great) film!", "bad,dull; slow and don't"] * 10)]
    (tmp_path / "texts.csv").write_text("\n".join(rows))
    (tmp_path / "new-texts.csv").write_text('text,id\n"Great, LOVELY film.",1\nslow <br />and unheard of,2\n')
    words = (f"data.path={tmp_path / 'texts.csv'}", "data.label=label", "data.text=text", "data.length=6")
    model, folder = exported(tmp_path, "texts", "data=text-csv", *words, "clients=2", "partition=iid")
    return model, folder, tmp_path / "new-texts.csv"


def arrays(tmp_path: Path) -> tuple[Personal, Path, Path]:
    x = np.random.default_rng(1).normal(size=(40, 3, 12)).astype(np.float32)
    np.savez(tmp_path / "series.npz", x=x, y=x[:, 0, :2].astype(np.float64))
    np.savez(tmp_path / "new.npz", x=x[:7])
    words = ("data=arrays", f"data.path={tmp_path / 'series.npz'}", "net=cnn1d", "clients=2", "partition=iid")
    return *exported(tmp_path, "arrays", *words), tmp_path / "new.npz"


@pytest.mark.slow
@pytest.mark.usefixtures("without_onnx")
def test_exported_folders_of_all_kinds_of_data_predict_without_fedtailor(tmp_path):
    cases = {
        "csv": a_table(tmp_path, "csv"),
        "parquet": a_table(tmp_path, "parquet"),
        "images": images(tmp_path),
        "texts": texts(tmp_path),
        "arrays": arrays(tmp_path),
    }
    printed = alone(*((folder, new) for _, folder, new in cases.values()))
    for (name, (model, _, new)), text in zip(cases.items(), printed, strict=True):
        (tmp_path / "alone.csv").write_text(text)
        (tmp_path / "ours.csv").write_text(model.predictions(new).csv())
        found, ours = (pd.read_csv(tmp_path / f"{who}.csv") for who in ("alone", "ours"))
        assert list(found.columns) == list(ours.columns), name
        answers = len(ours.columns) - model.description.classes
        assert np.allclose(found.iloc[:, answers:], model.predict_proba(new), rtol=0, atol=1e-6), name
        if name != "arrays":
            assert found.prediction.tolist() == ours.prediction.tolist(), name


@pytest.mark.parametrize(
    ("kind", "description"),
    [("arrays", Description((4,), 2)), ("images", Description((3, 4, 4), 2, dtype="uint8"))],
)
def test_the_script_has_only_the_reader_it_needs_and_nothing_of_fedtailor(kind, description):
    script = export.predict_script(Personal(nn.Linear(4, 2), description))
    assert re.findall(r"def read_(\w+)\(", script) == [kind]
    assert f"read_{kind}(sys" in script
    assert "fedtailor" not in re.findall(r"^\s*(?:import|from) (\w+)", script, re.MULTILINE)


def every_net() -> list[Any]:
    """Deep nets take seconds to trace."""
    deep = {"resnet18", "resnet18-adapters"}
    names = sorted(nets.classes.keys() - {"python"})
    return [pytest.param(name, marks=[pytest.mark.slow] if name in deep else []) for name in names]


@pytest.mark.parametrize("name", every_net())
def test_every_net_is_exported_for_batches_of_any_size(name, tmp_path):
    if name == "fasttext":
        description = Description((9,), 3, dtype="int64", vocabulary=20)
        raw = torch.randint(20, (5, 9))
    elif name == "cnn1d":
        description = Description((3, 16), 3)
        raw = torch.randn(5, 3, 16)
    else:
        description = Description((3, 16, 16), 3, dtype="uint8", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
        raw = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8)
    model = Personal(build_net(name, description.task, seed=1).plain(), description)
    program = Program(with_plain_layers(copy.deepcopy(model.module)), description)
    found = export.exported_program(program).module()
    for count in (1, 2, 5):
        wanted = model.predict_proba(raw[:count])
        assert np.allclose(found(raw[:count]).detach(), wanted, rtol=0, atol=1e-6)
    assert wanted.std() > 0


@pytest.mark.slow
def test_onnx_says_the_same(tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra 'onnx' and onnxruntime)")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (extra 'onnx')")
    for name, description, raw in [
        ("cnn", Description((1, 8, 8), 3, dtype="uint8"), np.arange(256, dtype=np.uint8).reshape(4, 1, 8, 8)),
        ("fasttext", Description((4,), 2, "binary", "int64", vocabulary=9), np.arange(16).reshape(4, 4) % 9),
    ]:
        model = Personal(build_net(name, description.task, seed=1).plain(), description)
        assert export.export_model(model, tmp_path / name, "") == ""
        session = runtime.InferenceSession(tmp_path / name / "model.onnx")
        for count in (1, 4):
            (answers,) = session.run(None, {"raw": raw[:count]})
            assert np.allclose(answers, model.predict_proba(raw[:count]), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("without_onnx")
def test_without_onnx_everything_else_is_there_and_the_reason_is_said_once(federation, tmp_path, caplog):
    run = ft.run(federation, "fedrep", net="mlp", out=tmp_path / "r", rounds=2, engine="inline", callbacks=[])
    with caplog.at_level(logging.WARNING, "fedtailor"):
        folders = ft.load(tmp_path / "r", federation=federation).export(tmp_path / "out", ["client-0", 2])
    assert [folder.name for folder in folders] == ["client-0", "client-2"]
    assert caplog.text.count("pip install 'fedtailor[onnx]'") == 1
    files = {"README.md", "description.json", "model.pt2", "model.safetensors", "predict.py"}
    assert {file.name for file in folders[0].iterdir()} == files
    weights, own = load_file(folders[1] / "model.safetensors"), run.personal(2).module.state_dict()
    assert all(torch.equal(weights[name], own[name]) for name in own)
    with pytest.raises(ft.FedTailorError, match="is not empty"):
        run.export(tmp_path / "out", [0])
    assert not [file for file in (tmp_path / "out").iterdir() if file.name.startswith(".")]


@pytest.mark.usefixtures("without_onnx")
def test_the_card_says_what_the_model_is_and_what_left_the_site(federation, tmp_path):
    run = ft.run(federation, "fedrep", net="mlp", out=tmp_path / "r", rounds=2, engine="inline", callbacks=[])
    (folder,) = run.export(tmp_path / "out", [1])
    card = (folder / "README.md").read_text()
    assert card.startswith("# Personal model of client-1\n")
    body = run.simulation.server.state["body"].nbytes
    assert f"| body | {2 * body:,} |" in card
    assert "Never sent: head." in card
    assert "- This client: 7 training and 4 test samples." in card
    assert f"torch {torch.__version__.replace('_', chr(92) + '_')}" in card
    assert "**Intended use:**" in card
    value = re.search(r"\| Accuracy \| ([\d.]+) % \| [\d.]+ % to [\d.]+ % \|", card)
    assert value is not None
    assert float(value[1]) == 100 * run.simulation.scores[1].accuracy
    local = ft.run(federation, "local", net="mlp", out=tmp_path / "l", rounds=1, engine="inline", callbacks=[])
    (folder,) = local.export(tmp_path / "alone", [1])
    assert "Nothing: no payload of this client was sent" in (folder / "README.md").read_text()


def test_the_interval_is_that_of_the_bootstrap(federation):
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outputs = nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outputs.expand(len(x), 3)

    y = torch.arange(100) % 4 // 3  # three quarters of class 0
    federation = ft.Federation.from_clients([(torch.randn(100, 5), y, torch.randn(100, 5), y)])
    config = ft.Config.load(words=["metrics=log_loss"])
    accuracy, loss = measured(
        Personal(Constant(), federation.description), federation.clients[0].test, federation, config
    )
    assert accuracy.value == 0.75
    width = 1.96 * math.sqrt(0.75 * 0.25 / 100)
    assert accuracy.low == pytest.approx(0.75 - width, abs=0.02)
    assert accuracy.high == pytest.approx(0.75 + width, abs=0.02)
    assert loss.low < loss.value < loss.high
    (known,) = recorded({"test_samples": "100", "accuracy": "0.75", "bytes_up": "3"}, seed=0)
    assert (known.value, known.low) == (0.75, pytest.approx(accuracy.low, abs=0.02))
    assert recorded({"test_samples": "0", "accuracy": ""}, seed=0) == []


def test_a_net_that_cannot_be_traced_is_told_in_words(tmp_path):
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) if x.sum() > 0 else self.fc(-x)

    model = Personal(Deciding(), Description((2,), 2))
    with pytest.raises(ft.FedTailorError, match=r"The net Deciding cannot be exported"):
        export.export_model(model, tmp_path / "a", "")
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_no_folders_name_gives_way_to_the_number():
    assert export.folder_name("north", 3) == "north"
    assert [export.folder_name(name, 3) for name in ("../x", "a/b", ".", "", "a b", "-x")] == ["client-00003"] * 6


@pytest.mark.usefixtures("without_onnx")
def test_the_command_exports_and_refuses(federation, fedtailor, tmp_path):
    ft.run(federation, "fedavg", net="mlp", out=tmp_path / "r", rounds=1, engine="inline", callbacks=[])
    said = fedtailor("export", "r", "--client", "client-3", "--client", "0", "-o", "out", cwd=tmp_path)
    assert "out/client-3" in said
    assert "As the run measured it" in (tmp_path / "out" / "client-0" / "README.md").read_text()
    assert "is not empty" in fedtailor("export", "r", "--client", "0", "--to", "out", code=2, cwd=tmp_path)
    assert "has no client 9" in fedtailor("export", "r", "--client", "9", "--to", "o", code=2, cwd=tmp_path)
    (tmp_path / "r" / "models").rename(tmp_path / "elsewhere")
    assert "There is no saved model" in fedtailor("export", "r", "--to", "o", code=2, cwd=tmp_path)
