import numpy as np
import pytest
from matplotlib import _pylab_helpers
from PIL import Image

from fedtailor.data.federation import Federation
from fedtailor.report.labels import label_figure, round_count

pytestmark = pytest.mark.usefixtures("rendered")


def skewed(clients, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.multinomial(300, rng.dirichlet(np.full(classes, 0.1), size=clients))


def shapes(figure):
    top, _, main, side = figure.axes
    return top, main, side


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (2, 2), (20, 10), (50, 30)])
def test_bubble_areas_are_the_counts(clients, classes, tmp_path):
    counts = skewed(clients, classes)
    figure = label_figure(counts)
    top, main, _ = shapes(figure)
    (dots,) = main.collections
    seen = np.zeros_like(counts, float)
    for (x, y), area in zip(dots.get_offsets(), dots.get_sizes(), strict=True):
        seen[int(x), int(y)] = area
    np.testing.assert_allclose(seen / seen.max(), counts / counts.max())
    assert [bar.get_height() for bar in top.patches] == counts.sum(axis=1).tolist()
    figure.savefig(tmp_path / "labels.png")
    assert np.array(Image.open(tmp_path / "labels.png").convert("L")).std() > 5


@pytest.mark.parametrize(("clients", "classes"), [(51, 10), (20, 31), (100, 100)])
def test_many_become_a_heat_map(clients, classes, tmp_path):
    counts = skewed(clients, classes)
    figure = label_figure(counts)
    _, main, _ = shapes(figure)
    (image,) = main.images
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), 0), counts.T)
    lightness = image.cmap(np.linspace(0, 1, 256))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(lightness) < 0).all()  # the order of shades survives printing in grey
    figure.savefig(tmp_path / "labels.pdf")
    assert (tmp_path / "labels.pdf").stat().st_size > 1000


def test_texts():
    figure = label_figure(skewed(4, 3), ("cat", "dog", "hen"), ("Ulm", "Bonn", "Köln", "$x$"))
    _, main, _ = shapes(figure)
    assert [t.get_text() for t in main.get_xticklabels()] == ["Ulm", "Bonn", "Köln", r"\$x\$"]
    assert (main.get_xlabel(), main.get_ylabel()) == ("Client", "Class")
    assert [t.get_text() for t in main.get_yticklabels()] == ["cat", "dog", "hen"]
    assert figure.get_suptitle()


def test_the_scale_shows_round_counts_no_larger_than_any_drawn():
    assert [round_count(v) for v in (0.2, 1, 7, 19, 1734, 4000)] == [1, 1, 7, 10, 1000, 4000]
    counts = skewed(20, 10)
    _, main, side = shapes(label_figure(counts))
    of_one = main.collections[0].get_sizes().max() / counts.max()
    for dots in side.collections:
        assert dots.get_sizes() == pytest.approx(of_one * int(dots.get_label().replace(",", "")))
        assert dots.get_sizes() <= main.collections[0].get_sizes().max()


def test_plot_saves_and_leaves_pyplot_alone(tmp_path):
    x, y = np.zeros((60, 2), np.float32), np.arange(60) % 3
    figure = Federation.from_arrays(x, y, clients=3, partition="iid").plot(tmp_path / "p.png")
    assert Image.open(tmp_path / "p.png").width > 400
    assert figure.axes
    assert not _pylab_helpers.Gcf.figs


@pytest.mark.parametrize("name", ["$\\foo{$", "\ud800", "\x1b[2J", "a\x00b"])
def test_any_name_can_be_drawn(name):
    label_figure(np.array([[1, 2], [3, 4]]), (name, "b")).canvas.draw()
