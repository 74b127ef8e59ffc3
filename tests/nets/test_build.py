import pytest
import torch
from torch import Tensor, nn

from fedtailor.errors import FedTailorError
from fedtailor.nets import Task, build_net, nets

TABLE, TEXT = Task((4,), 3), Task((6,), 3, 20)


def own() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("name", ["cnn", "vit", "resnet18"])
def test_a_seed_names_the_initial_weights(name: str) -> None:
    task = Task((1, 8, 8), 3)
    torch.manual_seed(1)
    first = build_net(name, task, seed=3).all.vector
    torch.manual_seed(2)
    position = torch.get_rng_state()
    again = build_net(nets.build(name, {}), task, seed=3).all.vector
    assert torch.equal(torch.get_rng_state(), position), "the global generator must be left as it was"
    assert torch.equal(first, again)
    assert not torch.equal(first, build_net(name, task, seed=4).all.vector)


def test_a_module_is_copied_with_its_weights() -> None:
    module = own()
    net = build_net(module, TABLE, seed=9)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    expected = module(x)
    assert torch.equal(net(x), expected)
    net.all.vector = torch.zeros(len(net.all))
    assert torch.equal(module(x), expected)
    assert isinstance(module[2], nn.Linear)


@pytest.mark.parametrize("training", [True, False])
def test_building_leaves_statistics_alone_and_the_net_in_training(training: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).train(training)
    net = build_net(module, TABLE, carry_buffers=True)
    assert net.training
    assert all(m.training for m in net.modules())
    assert len(net.body) == 12 + 30 + 12
    assert torch.equal(net.body.vector[:12], torch.tensor([0.0] * 6 + [1.0] * 6))
    assert len(build_net(module, TABLE).local_buffers) == 12


def test_lazy_layers_learn_their_sizes_and_are_drawn_from_the_seed() -> None:
    module = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(3))
    net = build_net(module, TABLE, seed=1)
    assert len(net.all) == 30 + 21
    assert torch.equal(net.all.vector, build_net(module, TABLE, seed=1).all.vector)
    net.all.step(net(torch.ones(2, 4)).sum(), lr=0.1)


def test_type_and_head_are_as_asked() -> None:
    net = build_net(own(), TABLE, dtype=torch.float64, head="2")
    assert net.all.vector.dtype == torch.float64
    assert net(torch.ones(1, 4, dtype=torch.float64)).dtype == torch.float64
    single, double = (build_net("mlp", TABLE, dtype=d).all.vector for d in (torch.float32, torch.float64))
    assert torch.equal(single.double(), double)


def test_text_modules_are_tried_with_token_ids() -> None:
    net = build_net(nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 3)), TEXT)
    assert net(torch.zeros(2, 6, dtype=torch.long)).shape == (2, 3)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc(x), x


@pytest.mark.parametrize(
    ("module", "task", "message"),
    [
        (own(), Task((5,), 3), r"Sequential cannot read the data: a batch of shape \(2, 5\)"),
        (own(), Task((4,), 7), r"shape \(2, 7\) for a batch of 2, but its output has shape \(2, 3\)"),
        (Pair(), TABLE, "its output has type tuple"),
        (nn.Sequential(*own(), nn.LogSoftmax(1)), TABLE, "cannot be cut at '2'"),
        (nn.Sequential(nn.Flatten()), Task((3,), 3), "no linear layer"),
        ("cnm", TABLE, "no net 'cnm'. Did you mean 'cnn'?"),
    ],
)
def test_what_does_not_fit_is_explained(module: nn.Module | str, task: Task, message: str) -> None:
    with pytest.raises(FedTailorError, match=message):
        build_net(module, task)


def test_a_class_or_a_thing_that_is_no_net_is_refused_in_words():
    task = Task((5,), 3)
    with pytest.raises(FedTailorError, match=r"net is the class Linear: give an instance of it, Linear\(…\)"):
        build_net(nn.Linear, task)
    for thing in (5, None, lambda x: x):
        with pytest.raises(FedTailorError, match=r"net must be a net's name or a torch\.nn\.Module, but is of type"):
            build_net(thing, task)


def test_looking_at_a_nets_size_changes_no_number():
    before = torch.get_rng_state()
    one, two = (build_net("mlp", Task((5,), 3), seed=3).all.vector for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)
