import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, Protocol
from fedtailor.engines.worker import Worker
from fedtailor.learning.supervision import Branches, Supervision, beside
from fedtailor.methods.local import Local
from fedtailor.nets import Net
from fedtailor.nets.mlp import MLP


def test_the_outputs_are_added_and_a_copy_is_plain():
    nets = [Net(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))) for _ in range(2)]
    both, x = Branches(*nets), torch.randn(5, 4)
    assert torch.equal(both(x), nets[0](x) + nets[1](x))
    plain = copy.deepcopy(both)
    assert torch.equal(plain(x), both(x))
    assert not any(isinstance(module, Net) for module in plain.modules())


def test_a_loss_beside_a_frozen_net_is_that_of_the_sum_and_trains_one(federation):
    client = Worker(federation, Local(), MLP(hidden=(4,)), None, Protocol())._client(2, 1, "fit")
    net, frozen = client.net(), client.net("other", model=torch.linspace(-1, 1, len(client.net().all)))
    x, y = client.samples.take(torch.arange(5)), client.samples.y[:5]
    loss = beside(client, frozen)(net, x, y)
    torch.testing.assert_close(loss, F.cross_entropy(net(x) + frozen(x), y))
    assert not frozen.training
    assert net.all.gradient(loss).norm() > 0
    assert frozen.all.gradient(beside(client, frozen)(net, x, y)).norm() == 0


def test_every_client_draws_one_name_for_good_and_about_equally_often():
    supervision = Supervision("parallel", " a, b,c")
    groups = supervision.groups(0, 900)
    assert list(groups) == supervision.names == ["a", "b", "c"]
    assert sorted(i for members in groups.values() for i in members) == list(range(900))
    assert all(240 < len(members) < 360 for members in groups.values())
    assert all(supervision.drawn(0, i) == 1 for i in groups["b"])
    assert supervision.groups(0, 10)["a"] == [i for i in groups["a"] if i < 10]
    assert groups != supervision.groups(1, 900)


@pytest.mark.parametrize(
    ("text", "images", "numbers"), [("auto", "lenet-small", None), ("same", None, None), ("vit", "vit", "vit")]
)
def test_auto_is_a_small_net_for_images_and_same_is_the_runs_net(text, images, numbers, federation):
    pictures = Federation.from_clients(
        [(np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], np.zeros((1, 8, 8), np.uint8), [0])]
    )
    for data, net, expected in ((pictures, "lenet", images), (federation, "mlp", numbers)):
        client = Worker(data, Local(), net, None, Protocol())._client(0, 1, "fit")
        assert Supervision("parallel", text).architecture(0, client.id, client.task) == expected
