"""What is shown of the data before the first round."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedtailor import Federation
from fedtailor.report.data_summary import notes_of, values_of

N = 60


def messy() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"site": ["a", "b", "c"] * (N // 3), "age": rng.normal(60, 10, N).round(), "stage": ["I", "II", None] * 20}
    )
    return frame.assign(ward="W", part=["train"] * 30 + ["test", "test", "train"] * 10, y=["ill", "well"] * 30)


def test_the_command_shows_how_each_column_was_read(fedtailor, tmp_path):
    messy().assign(age=lambda f: f.age.where(f.index != 3)).to_csv(tmp_path / "t.csv", index=False)
    words = ["data=table", "data.path=t.csv", "data.client=site", "data.label=y", "data.split=part", "rounds=1"]
    shown = fedtailor("run", *words, "method=fedavg", "-o", "r", cwd=tmp_path)
    assert "predict 'y' from" in shown
    assert "missing values are marked" in shown
    assert "2: I, II" in shown
    assert "Column 'ward' is left out: every row has the same value ('W')." in shown
    assert "1 of 3 clients have no test samples and are not scored: c." in shown
    again = fedtailor("run", *words, "method=fedavg", "-o", "r", cwd=tmp_path)
    assert "predict 'y' from" not in again  # nothing was run


def test_a_comparison_shows_it_once(fedtailor, tmp_path):
    messy().to_csv(tmp_path / "t.csv", index=False)
    words = ["data=table", "data.path=t.csv", "data.client=site", "data.label=y", "data.ignore=part", "rounds=1"]
    shown = fedtailor("compare", "local", "fedavg", *words, "--seeds", "0,1", "-o", "r", cwd=tmp_path)
    assert shown.count("predict 'y' from") == 1


def test_numbers_and_categories_in_words():
    federation = Federation.from_table(messy(), client="site", label="y", ignore=["part"])
    age, stage = federation.description.columns
    assert values_of(age).startswith(f"mean {age.mean:.4g}, std {age.std:.4g}")
    assert values_of(stage) == "2: I, II"
    assert notes_of(federation) == ["Column 'ward' is left out: every row has the same value ('W')."]
