"""The page of natural federations: numbers as the runs wrote them, means and counts by hand."""

from __future__ import annotations

import json
import math

from bench.natural import _collected, able, page
from fedtailor.experiment.run_folder import RunFolder


def test_means_over_clients_pooled_values_and_who_is_worse_off():
    found = {
        "local": {"mean": [0.5, 0.7], "pooled": [0.5, 0.6], "clients": [0.5, 0.7, math.nan]},
        "fedavg": {"mean": [0.7, 0.9], "pooled": [0.5, 0.5], "clients": [0.4, 0.9, math.nan]},
    }
    text = page({"har": found})
    assert "| fedavg | 80.00 ± 10.00 | 50.00 ± 0.00 | +20.00 | 1 |" in text
    assert "| local | 60.00 ± 10.00 | 55.00 ± 5.00 | +0.00 | 0 |" in text
    assert text.index("| fedavg |") < text.index("| local |")
    assert "2 people of 3 where the metric is defined" in text
    assert "1 of 1 methods are better than training alone in the mean over people; the best is fedavg." in text
    errors = page({"chem97": found})  # lower is better
    assert "| fedavg | 0.8000 ± 0.1000 | 0.5000 ± 0.0000 | -0.2000 | 1 |" in errors
    assert errors.index("| local |") < errors.index("| fedavg |")


def test_numbers_come_from_the_run_folders(tmp_path):
    folders = []
    for seed, values in enumerate(([0.5, math.nan], [1.0, math.nan])):
        folder = tmp_path / str(seed)
        folder.mkdir()
        records = [{"auroc": 0.6 + seed, "auroc_mean": 0.5 + seed}, {"auroc": None}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        (folder / "clients.csv").write_text("client,auroc\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values)))
        folders.append(RunFolder(folder))
    found = _collected("auroc", folders)
    assert (found["mean"], found["pooled"]) == ([0.5, 1.5], [0.6, 1.6])
    assert found["clients"][0] == 0.75
    assert math.isnan(found["clients"][1])


def test_methods_fit_the_task():
    fits = able("regression")
    assert fits[0] == "local"
    assert {"fedavg", "ditto"} <= set(fits)
    assert not {"fedproto", "perada"} & set(fits)
