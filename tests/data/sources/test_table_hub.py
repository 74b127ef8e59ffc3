"""Tables, and data sets of the hub (a stand-in of it)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedtailor.data.sources  # noqa: F401
from fedtailor.data.encode import described, encoded_samples
from fedtailor.data.pool import Pool, sources
from fedtailor.data.sources.table import Table, table_pool
from fedtailor.errors import FedTailorError
from fedtailor.registry import build

FRAME = pd.DataFrame(
    {
        "age": [20, 30, 40, 70],
        "weight": [50.5, 60.0, 70.0, 80.0],
        "sex": ["f", "m", "f", "m"],
        "site": ["Rome", "Bonn", "Rome", "Oslo"],
        "ill": ["yes", "no", "no", "yes"],
        "part": ["train", "Test", "train", "train"],
        "constant": [3, 3, 3, 3],
    }
)


def read(root: Path, source: str = "table", **options: Any) -> Pool:
    return sources.build(source, options).read(root)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_table(tmp_path: Path, kind: str) -> None:
    if kind == "csv":
        FRAME.to_csv(tmp_path / "t.csv", index=False)
    else:
        pytest.importorskip("pyarrow")
        FRAME.to_parquet(tmp_path / "t.parquet")
    pool = read(tmp_path, path=f"t.{kind}", label="ill", client="site", split="part")
    assert [(c.name, c.kind) for c in pool.columns] == [("age", "number"), ("weight", "number"), ("sex", "category")]
    assert pool.x.tolist() == [[20, 50.5, 0], [30, 60, 1], [40, 70, 0], [70, 80, 1]]
    assert pool.notes == ("Column 'constant' is left out: every row has the same value ('3').",)
    assert pool.keep_split
    assert (pool.labels, pool.y.tolist()) == (("no", "yes"), [1, 0, 0, 1])
    assert pool.owners == ("Bonn", "Oslo", "Rome")
    assert pool.owner is not None
    assert pool.owner.tolist() == [2, 0, 2, 1]
    assert pool.test is not None
    assert pool.test.tolist() == [False, True, False, False]


def test_table_options() -> None:
    pool = table_pool(FRAME, Table(label="ill", features=("sex", "age"), standardize=False))
    description = described(pool, np.arange(4))
    plain = [[1, 0, 0, 0, 20], [0, 1, 0, 0, 30], [1, 0, 0, 0, 40], [0, 1, 0, 0, 70]]  # f, m, missing, unseen; age
    assert encoded_samples(pool, description).tolist() == plain
    assert (pool.owner, pool.owners, pool.test) == (None, (), None)
    numeric = table_pool(FRAME.assign(grade=[10, 9, 2, 10]), Table(label="grade", features=("age",)))
    assert (numeric.labels, numeric.y.tolist()) == (("2", "9", "10"), [2, 1, 0, 2])


@pytest.mark.parametrize(
    ("frame", "options", "says"),
    [
        (FRAME, {"label": "il"}, "no column 'il'. Did you mean 'ill'"),
        (FRAME, {"client": "town"}, "no column 'town'"),
        (FRAME, {"features": ["hight"]}, "no column 'hight'"),
        (FRAME, {"features": ["ill"]}, "cannot be a feature"),
        (FRAME, {"split": "sex"}, "column 'sex' must say train or test"),
        (FRAME.iloc[:0], {}, "no rows"),
        (FRAME[["ill", "constant"]], {}, "no column to learn from. Column 'constant' is left out"),
        (FRAME, {"ignore": ["hight"]}, "no column 'hight'"),
        (FRAME, {"weight": "sex"}, "column 'sex' must hold the weights"),
        (FRAME, {"time": "sex"}, "column 'sex' holds no numbers and no dates"),
        (FRAME.assign(ill=["a", None, "b", None]), {}, "column 'ill' has 2 missing"),
        (FRAME.assign(site=["a", None, "b", "c"]), {"client": "site"}, "column 'site' has 1 missing"),
        (FRAME.assign(age=[1, np.inf, 3, 4]), {}, "column 'age' has infinite"),
    ],
)
def test_bad_tables(frame: pd.DataFrame, options: dict[str, Any], says: str) -> None:
    with pytest.raises(FedTailorError, match=rf"(?s){says}"):
        table_pool(frame, build(Table, {"label": "ill", **options}), "t.csv")


DAMAGED = [("t.csv", b""), ("t.csv", b"a,b\n1,2\n1,2,3\n"), ("t.csv", b"\xff\xfe\x00\x01"), ("t.parquet", b"PAR1")]


@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_damaged_tables(tmp_path: Path, name: str, content: bytes) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FedTailorError, match=rf"{name} cannot be read as a table"):
        read(tmp_path, path=name)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FedTailorError, match=r"pip install 'fedtailor\[parquet\]'"):
        read(tmp_path, path="t.parquet")


class Part:
    """As much of datasets.Dataset as is used."""

    def __init__(self, columns: dict[str, list], names: list[str] | None = None) -> None:
        self.columns = columns
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace(names=names if name == "label" else None) for name in columns}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> list:
        return self.columns[name]

    def __iter__(self) -> Any:
        return (dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    state = SimpleNamespace(parts={}, asked=[])

    def load_dataset(name: str, subset: str | None = None, **_: Any) -> dict[str, Part]:
        state.asked.append((name, subset))
        if name == "gone":
            raise ConnectionError("no network")
        return state.parts

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return state


def picture(value: int, size: int = 4) -> Image.Image:
    return Image.fromarray(np.full((size, size, 3), value, np.uint8))


def test_hub_images(hub: SimpleNamespace, tmp_path: Path) -> None:
    hub.parts = {
        "train": Part({"img": [picture(1), picture(2)], "label": [1, 0], "writer": ["b", "a"]}, ["zero", "one"]),
        "test": Part({"img": [picture(3)], "label": [1], "writer": ["b"]}, ["zero", "one"]),
    }
    pool = read(tmp_path, "hub", dataset="some/set", subset="small", image="img", client="writer")
    assert hub.asked == [("some/set", "small")]
    assert pool.x.shape == (3, 3, 4, 4)
    assert pool.x[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert (pool.y.tolist(), pool.labels, pool.owners) == ([1, 0, 1], ("zero", "one"), ("a", "b"))
    assert pool.owner is not None
    assert pool.owner.tolist() == [1, 0, 1]
    assert pool.test is not None
    assert pool.test.tolist() == [False, False, True]
    grey = read(tmp_path, "hub", dataset="some/set", image="img", channels=1, size=2)
    assert grey.x.shape == (3, 1, 2, 2)


def test_hub_texts(hub: SimpleNamespace, tmp_path: Path) -> None:
    hub.parts = {
        "train": Part({"text": ["b b a", "a b"], "label": ["x", "y"]}),
        "validation": Part({"text": ["c a"], "label": ["x"]}),
    }
    pool = read(tmp_path, "hub", dataset="some/texts", text="text", length=3)
    description = described(pool, np.array([0, 1]))
    assert encoded_samples(pool, description).tolist() == [[2, 2, 3], [3, 2, 0], [1, 3, 0]]
    assert (pool.y.tolist(), pool.labels, description.vocabulary) == ([0, 1, 0], ("x", "y"), 4)
    assert pool.test is not None
    assert pool.test.tolist() == [False, False, True]


def test_hub_mistakes(hub: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.parts = {"train": Part({"image": [picture(1), picture(2, 5)], "label": [0, -1]}, ["zero"])}
    for options, says in (
        ({}, r"needs data\.dataset"),
        ({"dataset": "a"}, r"one of data\.image and data\.text"),
        ({"dataset": "a", "image": "imag"}, "no column 'imag'. Did you mean 'image'"),
        ({"dataset": "a", "image": "image", "client": "who"}, "no column 'who'"),
        ({"dataset": "a", "image": "image"}, "label -1"),
        ({"dataset": "gone", "image": "image"}, "'gone' could not be had .*no network"),
    ):
        with pytest.raises(FedTailorError, match=says):
            read(tmp_path, "hub", **options)
    hub.parts["train"].columns["label"] = [0, 0]
    with pytest.raises(FedTailorError, match=r"differ in size.*data\.size"):
        read(tmp_path, "hub", dataset="a", image="image")
    hub.parts = {"train": Part({"image": [], "label": []})}
    with pytest.raises(FedTailorError, match="empty"):
        read(tmp_path, "hub", dataset="a", image="image")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedTailorError, match=r"pip install 'fedtailor\[hub\]'"):
        read(tmp_path, "hub", dataset="a", image="image")
