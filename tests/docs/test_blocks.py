"""Every command and every block of Python in README, pages, cards of methods, help and docstrings is run as it is written."""

from __future__ import annotations

import doctest
import importlib
import re
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import nn

import fedtailor as ft
from fedtailor.methods import methods
from tests.docs.blocks import RUN, Reader, blocks, shortened
from tests.docs.checked import check
from tools.pages import cards, commands

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "examples/three_sites/README.md"))
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
SLOW = {
    "README.md",
    "choosing.md",
    "cluster.md",
    "command-line.md",
    "index.md",
    "python.md",
    "report.md",
    "write-a-method.md",
}
OWN_TEST = {"your-data.md", "your-model.md"}
NOT_RUN = {  # blocks with a reason beside them; the rest is run
    "README.md": 1,
    "examples/three_sites/README.md": 4,
    "docs/cluster.md": 2,
    "docs/coming-from.md": 1,
    "docs/command-line.md": 6,
    "docs/deployment.md": 8,
    "docs/index.md": 1,
    "docs/performance.md": 5,
    "docs/privacy.md": 1,
    "docs/report.md": 1,
    "docs/reproducing.md": 2,
    "docs/results/evidence.md": 1,
    "docs/results/fashion-mnist-all.md": 1,
    "docs/results/fashion-mnist-first.md": 1,
    "docs/results/five-systems.md": 1,
    "docs/scale.md": 1,
    "docs/write-a-method.md": 1,
}
HELP_NOT_RUN = {
    "watch": "serves a page until Ctrl-C",
    "audit": "attacks for five minutes",
    "pretrain": "trains a ResNet on a data set that is not in the package",
    **dict.fromkeys(("reproduce", "claims"), "needs data sets that are not in the package"),
    "data get": "downloads",
    **dict.fromkeys(("tune", "recommend"), "docs/choosing.md has the same command"),
    **dict.fromkeys(
        ("deploy serve", "deploy site", "deploy up", "deploy join"), "over the network; tests/deploy does it"
    ),
    **dict.fromkeys(("deploy describe", "deploy welcome", "deploy admit"), "needs a federation over the network"),
}
QUICK = {"run": "rounds=1", "compare": "rounds=1 clients=4"}
MODULES = [p for p in sorted((ROOT / "src").rglob("*.py")) if ">>> " in p.read_text()]

pytestmark = pytest.mark.usefixtures("registries")


def path_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def reader(fedtailor, caplog, tmp_path, monkeypatch) -> Reader:
    monkeypatch.chdir(tmp_path)

    def log() -> str:
        text = caplog.text
        caplog.clear()
        return text

    return Reader(fedtailor, log)


def marked(page: Path):
    return pytest.param(page, id=path_of(page), marks=[pytest.mark.slow] if page.name in SLOW else [])


@pytest.mark.parametrize("page", [marked(p) for p in PAGES if p.name not in OWN_TEST and blocks(p.read_text())])
def test_a_page_is_followed_to_the_letter(page, reader):
    reader.follow(blocks(page.read_text()))


def test_what_is_not_run_is_counted():
    found = Counter(path_of(page) for page in PAGES for block in blocks(page.read_text()) if block.not_run)
    assert found == NOT_RUN
    kinds = Counter(kind for page in PAGES for kind in re.findall(r"^ *```(\w+)", page.read_text(), re.MULTILINE))
    assert kinds.keys() <= {*RUN, "text", "toml"}  # no command hides behind another word


@pytest.mark.usefixtures("without_onnx")
def test_your_data(reader):
    reader.follow(blocks((ROOT / "docs/your-data.md").read_text()))
    table = pd.read_csv("runs/first/clients.csv").set_index("name")
    assert table.loc["east"].test_samples == 0
    assert np.isnan(table.loc["east"].accuracy)
    assert min(table.loc["north"].accuracy, table.loc["south"].accuracy) > 0.75
    here, there = pd.read_csv("predictions.csv"), pd.read_csv("elsewhere.csv")
    assert list(here.columns) == ["row", "prediction", "readmitted", "well"]
    assert here.prediction.tolist() == reader.known["labels"].tolist() == there.prediction.tolist()
    assert np.allclose(there[["readmitted", "well"]], reader.known["probabilities"], rtol=0, atol=1e-6)
    card = Path("models/east/README.md").read_text()
    assert "This client has no test samples" in card
    assert "Column 'country' is left out: every row has the same value ('DE')." in card


def test_your_model(reader, fedtailor):
    reader.follow(blocks((ROOT / "docs/your-model.md").read_text()))
    config = Path("runs/mine/config.toml")
    assert tomllib.loads(config.read_text())["net"] == {"name": str(Path("mynet.py").resolve()), "width": 8}
    again = fedtailor("run", config, "--out", "b")
    assert (config.parent / "clients.csv").read_text() == Path("b/clients.csv").read_text(), again
    assert "net.width = 0 is not allowed" in fedtailor("run", "net=mynet.py", "net.width=0", code=2)


@pytest.fixture(scope="module")
def method_cards() -> dict[str, str]:
    return cards.pages()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(methods.classes))
def test_the_example_of_a_card(name, reader, method_cards):
    page = method_cards[f"methods/{name}.md"]
    assert [block.kind for block in blocks(page)] == ["sh", "python"]
    reader.follow(blocks(page))
    assert reader.known["run"].state == "finished"


@pytest.fixture
def patients(tmp_path, monkeypatch, fedtailor):
    """What the examples of help and docstrings take for granted: a run on a table, new rows, and a newcomer's rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age = rng.integers(20, 90, 120)
    rows = pd.DataFrame(
        {"age": age, "weight": rng.integers(50, 100, 120), "outcome": np.where(age > 55, "ill", "healthy")}
    )
    rows.assign(hospital=np.where(np.arange(120) % 2, "north", "south")).to_csv("patients.csv", index=False)
    rows[:40].to_csv("newcomer.csv", index=False)
    pd.DataFrame({"age": [21, 89], "weight": [70, 71]}).to_csv("new.csv", index=False)
    words = (
        "data=table",
        "data.path=patients.csv",
        "data.client=hospital",
        "data.label=outcome",
        "rounds=20",
        "lr=0.2",
    )
    fedtailor("run", *words, "-o", "runs/a")


HELP = {name: command for name, command in commands.every_command().items() if "Example: `" in (command.help or "")}


@pytest.mark.parametrize("name", HELP)
@pytest.mark.slow
@pytest.mark.usefixtures("patients")
def test_the_example_of_a_command(name, reader, fedtailor, monkeypatch):
    (line,) = re.findall(r"Example: `(.*?)`", HELP[name].help, re.DOTALL)
    check(line)
    if name in HELP_NOT_RUN:
        return
    if name == "report":
        fedtailor("compare", "local", "fedavg", "data=heart", "rounds=1", "-o", "runs/comparison")
    if name == "run":
        Path("empty").mkdir()
        monkeypatch.chdir("empty")
    reader.command(line, QUICK.get(name, ""), 0)


def test_every_command_has_an_example():
    assert HELP.keys() == commands.every_command().keys()
    assert HELP_NOT_RUN.keys() < HELP.keys()


class MyModule(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.slow
@pytest.mark.usefixtures("patients")
@pytest.mark.parametrize("path", MODULES, ids=path_of)
def test_the_examples_in_docstrings(path, federation):
    module = importlib.import_module(
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    )
    digits = np.random.default_rng(0)
    known = {"ft": ft, "federation": federation, "MyModule": MyModule}
    known |= {"x": digits.normal(size=(2000, 5)).astype(np.float32), "y": digits.integers(0, 10, 2000)}
    found = [test for test in doctest.DocTestFinder().find(module, extraglobs=known) if test.examples]
    assert found
    for test in found:
        for example in test.examples:
            assert doctest.SKIP not in example.options
            example.source = shortened(example.source, "rounds=2 budget=1 minutes=0.02")
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize(
    "line",
    [
        "fedtailor rum method=fedrep",
        "fedtailor run method=fedrap",
        "fedtailor run method=fedrep --colour",
        "fedtailor run method=fedrep head_epochs=5",
        "fedtailor run method=fedrep method.head_epochs=-1",
        "fedtailor compare local fedrap rounds=5",
        "fedtailor compare local fedrep:heads=5 rounds=5",
    ],
)
def test_a_mistake_is_found(line):
    with pytest.raises(Exception, match=r"no command|There is no method|No such option|Unknown key|not allowed"):
        check(line)


def test_a_page_that_is_wrong_is_found(reader):
    page = "```sh\nfedtailor methods fedrep\n```\n\n```text\nnever said\n```\n"
    with pytest.raises(AssertionError):
        reader.follow(blocks(page))
    with pytest.raises(AssertionError, match="say why this is not run: curl"):
        reader.follow(blocks("```sh\ncurl example.org\n```\n"))
    with pytest.raises(NameError):
        reader.follow(blocks("```python\nrun = nothing\n```\n"))
