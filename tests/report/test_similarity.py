import numpy as np
import pytest
from matplotlib import _pylab_helpers
from PIL import Image

from fedtailor.report.figures import similarity_chart
from fedtailor.report.pictures import panels

pytestmark = pytest.mark.usefixtures("rendered")


def label_similarity_figure(counts):
    return panels([similarity_chart(counts)])


def skewed(clients, classes=10, seed=0):
    rng = np.random.default_rng(seed)
    return rng.multinomial(300, rng.dirichlet(np.full(classes, 0.3), size=clients))


@pytest.mark.parametrize("clients", [1, 2, 8, 20, 300])
def test_a_picture_for_any_number_of_clients(clients, tmp_path):
    label_similarity_figure(skewed(clients)).savefig(tmp_path / "similarity.png")
    picture = Image.open(tmp_path / "similarity.png")
    assert min(picture.size) > 400
    assert np.array(picture.convert("L")).std() > 5
    assert not _pylab_helpers.Gcf.figs


def test_cells_are_cosines_and_the_more_alike_the_darker():
    counts = np.array([[6, 3, 0], [4, 2, 0], [0, 0, 5], [0, 1, 1]])
    axes = label_similarity_figure(counts).axes[0]
    (image,) = axes.images
    expected = [[np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b) for b in counts] for a in counts]
    np.testing.assert_allclose(image.get_array(), expected, atol=1e-12)
    assert image.get_clim() == (0, 1)
    assert (np.diff(image.cmap(np.linspace(0, 1, 256))[:, :3] @ [0.2126, 0.7152, 0.0722]) < 0).all()
    assert [t.get_text() for t in axes.texts[:4]] == ["1.00", "1.00", ".00", ".32"]


def test_a_client_without_samples_is_like_no_one():
    (image,) = label_similarity_figure(np.array([[1, 2], [0, 0]])).axes[0].images
    np.testing.assert_array_equal(image.get_array()[1], [0, 0])
