"""Who holds which labels: the same chart as a picture and on the page."""

import numpy as np
import pytest
from matplotlib import _pylab_helpers
from PIL import Image

from fedtailor.data.federation import Federation
from fedtailor.report.charts import MOST_COLUMNS, MOST_NAMES, label_chart
from fedtailor.report.interactive import plotly_chart
from fedtailor.report.pictures import label_figure

pytestmark = pytest.mark.usefixtures("rendered")


def skewed(clients, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.multinomial(300, rng.dirichlet(np.full(classes, 0.1), size=clients))


def names(count):
    return [f"n{i}" for i in range(count)]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (2, 2), (20, 10), (50, 30), (100, 100)])
def test_cells_are_the_counts_and_empty_ones_stay_blank(clients, classes, tmp_path):
    counts = skewed(clients, classes)
    figure = label_figure(counts, [], names(clients))
    axes = figure.axes[0]
    (image,) = axes.images
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), 0), counts.T)
    assert (np.ma.getmaskarray(image.get_array()) == (counts.T == 0)).all()
    lightness = image.cmap(np.linspace(0, 1, 256))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(lightness) < 0).all()  # the order of shades survives printing in grey
    for suffix in ("png", "pdf"):
        figure.savefig(tmp_path / f"labels.{suffix}")
        assert (tmp_path / f"labels.{suffix}").stat().st_size > 1000
    assert np.array(Image.open(tmp_path / "labels.png").convert("L")).std() > 5
    assert max(figure.get_size_inches()) < 15  # many classes do not make it tall


def test_the_page_has_the_same_cells_and_names():
    counts = skewed(MOST_COLUMNS + 1, 3)
    few, many = (plotly_chart(label_chart(c, ["cat", "dog", "hen"], names(len(c)))) for c in (counts[:4], counts))
    for k, row in enumerate(few["data"][0]["z"]):
        assert [value or 0 for value in row] == counts[:4, k].tolist()
    assert few["layout"]["yaxis"]["ticktext"] == ["cat", "dog", "hen"]
    assert few["layout"]["xaxis"]["ticktext"][1] == "n1 (300)"
    assert len(many["data"][0]["z"][0]) == MOST_COLUMNS // 2 + 1  # every other client
    assert many["layout"]["xaxis"]["ticktext"][-1] == f"n{MOST_COLUMNS} (300)"


def test_texts():
    counts = skewed(4, 3)
    figure = label_figure(counts, ("cat", "dog", "hen"), ("Ulm", "Bonn", "Köln", "$x$"))
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.texts] == [str(count) for count in counts.T.ravel() if count]
    assert [t.get_text() for t in axes.get_xticklabels()] == [
        f"{name} (300)" for name in ("Ulm", "Bonn", "Köln", r"\$x\$")
    ]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client (its training samples)", "class")
    assert [t.get_text() for t in axes.get_yticklabels()] == ["cat", "dog", "hen"]
    assert figure.get_suptitle()


def test_many_clients_and_classes_are_numbered_instead_of_named():
    many = MOST_NAMES + 1
    axes = label_figure(skewed(many, many), names(many), names(many)).axes[0]
    axes.figure.canvas.draw()
    assert not any(t.get_text().startswith("n") for t in (*axes.get_xticklabels(), *axes.get_yticklabels()))


def test_plot_saves_and_leaves_pyplot_alone(tmp_path):
    x, y = np.zeros((60, 2), np.float32), np.arange(60) % 3
    figure = Federation.from_arrays(x, y, clients=3, partition="iid").plot(tmp_path / "p.png")
    assert Image.open(tmp_path / "p.png").width > 400
    assert figure.axes
    assert not _pylab_helpers.Gcf.figs


@pytest.mark.parametrize("name", ["$\\foo{$", "\ud800", "\x1b[2J", "a\x00b", "", "x" * 5000])
def test_any_name_can_be_drawn(name, tmp_path):
    figure = label_figure(np.array([[1, 2], [3, 4]]), (name, name), (name, "b"))
    figure.savefig(tmp_path / "p.png")
    assert figure.axes[0].get_window_extent().width > 100  # it leaves room for the map
