import numpy as np
import pytest

from fedtailor import Federation, Protocol
from fedtailor.engines.worker import Worker
from fedtailor.learning.supervisors import Supervisors
from fedtailor.methods.local import Local


def test_every_client_draws_one_name_for_good_and_about_equally_often():
    supervisors = Supervisors(" a, b,c", seed=0)
    groups = supervisors.groups(900)
    assert list(groups) == supervisors.names == ["a", "b", "c"]
    assert sorted(i for members in groups.values() for i in members) == list(range(900))
    assert all(240 < len(members) < 360 for members in groups.values())
    assert all(supervisors.index(i) == 1 for i in groups["b"])
    assert supervisors.groups(10)["a"] == [i for i in groups["a"] if i < 10]
    assert groups != Supervisors(" a, b,c", seed=1).groups(900)


@pytest.mark.parametrize(
    ("text", "images", "numbers"), [("auto", "lenet-small", None), ("same", None, None), ("vit", "vit", "vit")]
)
def test_auto_is_a_small_net_for_images_and_same_is_the_runs_net(text, images, numbers, federation):
    pictures = Federation.from_clients(
        [(np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], np.zeros((1, 8, 8), np.uint8), [0])]
    )
    for data, net, expected in ((pictures, "lenet", images), (federation, "mlp", numbers)):
        client = Worker(data, Local(), net, None, Protocol())._client(0, 1, "fit")
        assert Supervisors(text, seed=0).architecture(client.id, client.task) == expected
