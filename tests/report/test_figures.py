"""The papers' figures, drawn from runs of two rounds."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fedtailor.papers import landscape
from fedtailor.papers.comparison import comparison_of
from fedtailor.papers.grid import RunGrid, carry_on
from fedtailor.papers.presets import find
from fedtailor.papers.scale import Scale
from fedtailor.report.figures import draw_figures

pytestmark = pytest.mark.usefixtures("rendered")

DIGITS = "rounds=2,clients=3,epochs=1,seeds=1,data=digits,data.fraction=0.15,batch=32"
MLP = f"{DIGITS},net=mlp,net.hidden=[8],partition=iid"
STAGED = f"{DIGITS},net=cnn,net.conv1=2,net.conv2=2,net.hidden=4,augment=none,partition.reserve=0,method.akt=false"


@pytest.mark.parametrize(
    ("name", "scale", "figures"),
    [
        ("pgfedsplit/fig2", f"{MLP},methods=α-0+α-1,method.fixed_tau=1", ["curves-and-end"]),
        ("pgfedsplit/fig4", MLP, ["by-label"]),
        ("pgfedsplit/fig5", f"{MLP},methods=wo-apa,method.tau=1", ["curves", "schedule"]),
        ("fedsimsup/fig3", f"{MLP},join=0.5,methods=by-similar-labels", ["curves", "similarity"]),
        ("heart/fig4", f"{STAGED},methods=0-stages+2-stages", ["stages"]),
        ("heart/fig5", f"{STAGED},methods=clean-one-way", ["ablation"]),
        ("heart/fig6", f"{STAGED},methods=clean-one-way", ["surface"]),
    ],
)
def test_each_figure_of_a_preset_is_drawn_in_both_formats(name, scale, figures, tmp_path, monkeypatch):
    monkeypatch.setattr(landscape, "POINTS", 3)
    small = Scale.parse(scale, find(name)).shrunk(find(name))
    grid = RunGrid(small, tmp_path)
    for job in grid.jobs:
        carry_on(job)
    drawn = draw_figures(comparison_of(grid, "2 rounds <only>", {}), tmp_path)
    assert [p.name for p in drawn] == [f"{f}.{suffix}" for f in figures for suffix in ("png", "svg")]
    for path in drawn:
        assert path.stat().st_size > 5000
    for path in drawn[1::2]:
        ElementTree.parse(path)


def test_a_figure_without_runs_is_left_out(tmp_path):
    preset = find("pgfedsplit/fig5")
    assert draw_figures(comparison_of(RunGrid(preset, tmp_path), "", {}), tmp_path) == []
