import copy

import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Protocol
from fedtailor.engines.worker import Worker
from fedtailor.learning.branches import Branches, beside
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
