from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedtailor.errors import FedTailorError
from fedtailor.nets import Net, Task, build_net, nets
from fedtailor.nets.net import Pull, check_cut, last_linear


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(x)).mean((2, 3)))


class Nested(nn.Module):
    """The head is deep inside, and a linear layer of the body is registered before it."""

    def __init__(self, after: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"trunk": nn.Linear(4, 6), "top": nn.Sequential(OrderedDict(fc=nn.Linear(6, 3)))})
        self.after = after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner["top"](torch.relu(self.inner["trunk"](x))))


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=g), torch.randint(3, (8,), generator=g)


def test_the_cut_net_computes_what_the_module_did(batch: tuple[Tensor, Tensor]) -> None:
    net, x = Net(perceptron()), batch[0]
    assert torch.equal(net(x), perceptron()(x))
    assert torch.equal(net.classify(net.features(x)), net(x))
    assert net.features(x).shape == (8, 5)


def test_body_and_head_make_up_all() -> None:
    net = Net(perceptron())
    assert (len(net.body), len(net.head), len(net.all)) == (4 * 6 + 6 + 6 * 5 + 5, 5 * 3 + 3, 83)
    assert torch.equal(net.all.vector, torch.cat([net.body.vector, net.head.vector]))
    assert torch.equal(net.all.vector, torch.cat([p.detach().flatten() for p in perceptron().parameters()]))


def test_writing_a_vector_changes_the_outputs(batch: tuple[Tensor, Tensor]) -> None:
    net, x = Net(perceptron()), batch[0]
    before = net(x)
    kept = net.body.vector
    net.body.vector = kept * 2
    reference = perceptron()
    with torch.no_grad():
        for layer in (reference[0], reference[2]):
            layer.weight.mul_(2)
            layer.bias.mul_(2)
    assert torch.equal(net(x), reference(x))
    net.all.vector = torch.cat([kept, net.head.vector])
    assert torch.equal(net(x), before)


def test_a_vector_is_a_copy_and_carries_no_graph() -> None:
    net = Net(perceptron())
    kept = net.body.vector
    kept.zero_()
    assert net.body.vector.abs().sum() > 0
    mixed = net.body.vector * torch.tensor(0.5, requires_grad=True)
    net.body.vector = mixed
    assert torch.equal(net.body.vector, mixed.detach())
    assert not net.body.vector.requires_grad
    assert not net.all.vector.requires_grad


def test_a_vector_of_the_wrong_length_is_refused() -> None:
    net = Net(perceptron())
    with pytest.raises(ValueError, match="the head has 18 entries"):
        net.head.vector = net.body.vector


@pytest.mark.parametrize("part", ["body", "head", "all"])
def test_gradient_and_step_are_those_of_autograd_and_sgd(part: str, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    reference = perceptron()
    cross_entropy(reference(x), y).backward()
    chosen = [p for n, p in reference.named_parameters() if part == "all" or (part == "head") == n.startswith("4.")]
    gradient = torch.cat([p.grad.flatten() for p in chosen if p.grad is not None])
    net = Net(perceptron())
    trained = getattr(net, part)
    assert torch.allclose(trained.gradient(cross_entropy(net(x), y)), gradient, atol=1e-7)
    torch.optim.SGD(chosen, lr=0.3).step()
    trained.step(cross_entropy(net(x), y), lr=0.3)
    assert torch.allclose(net.all.vector, torch.cat([p.detach().flatten() for p in reference.parameters()]), atol=1e-7)


@pytest.mark.parametrize("carry", [True, False])
def test_a_pull_is_the_gradient_of_the_proximal_term(carry: bool) -> None:
    x = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    net = Net(Normed(), carry_buffers=carry)
    centre = net.all.vector + torch.arange(len(net.all)) / 50
    trainable = slice(len(net.all) - len(net.all.weights), None)
    start, gradient = net.all.vector[trainable], net.all.gradient(net(x).square().sum())
    net.all.step(net(x).square().sum(), lr=0.1, pull=Pull(centre, 0.7))
    expected = start - 0.1 * (gradient + 0.7 * (start - centre[trainable]))
    assert torch.allclose(net.all.weights, expected, atol=1e-6)


def test_a_step_on_one_part_leaves_the_other_untouched(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    net = Net(perceptron())
    body, head = net.body.vector, net.head.vector
    net.head.step(cross_entropy(net(x), y), lr=0.1)
    assert torch.equal(net.body.vector, body)
    assert not torch.equal(net.head.vector, head)
    head = net.head.vector
    net.body.step(cross_entropy(net(x), y), lr=0.1)
    assert torch.equal(net.head.vector, head)
    assert not torch.equal(net.body.vector, body)


def test_parameters_a_loss_does_not_reach_have_zero_gradient(batch: tuple[Tensor, Tensor]) -> None:
    net = Net(perceptron())
    gradient = net.all.gradient(net.features(batch[0]).square().sum())
    assert gradient[: len(net.body)].abs().sum() > 0
    assert torch.equal(gradient[len(net.body) :], torch.zeros(len(net.head)))


@pytest.mark.parametrize("carry", [True, False])
def test_weights_are_the_trainable_entries_and_gradients_flow_through_them(carry: bool) -> None:
    net = Net(Normed(), carry_buffers=carry)
    net.train()
    net(torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)))
    centre = torch.linspace(-1, 1, len(net.all.weights))
    assert torch.equal(net.all.weights.detach(), net.all.trainable(net.all.vector))
    gradient = net.all.gradient((net.all.weights - centre).square().sum() / 2)
    assert torch.allclose(gradient, net.all.weights.detach() - centre)
    before = net.all.vector
    net.all.weights = centre
    assert torch.equal(net.all.trainable(net.all.vector), centre)
    statistics = len(before) - len(centre)
    assert torch.equal(net.all.vector[:statistics], before[:statistics])
    with pytest.raises(ValueError, match="the vector has shape"):
        net.all.weights = centre[1:]


def test_mixing_two_parts_and_their_difference_are_those_of_their_weights() -> None:
    own, other, place = Net(perceptron()), Net(perceptron()), Net(perceptron())
    other.all.vector = torch.linspace(-1, 1, len(other.all))
    place.body.mix(own.body, other.body, 0.3)
    assert torch.equal(place.body.vector, torch.lerp(other.body.vector, own.body.vector, 0.3))
    assert torch.equal(place.head.vector, own.head.vector)
    assert torch.equal(own.all.difference(other.all), own.all.vector - other.all.vector)
    own.all.mix(own.all, other.all, 0.0)
    assert torch.equal(own.all.vector, other.all.vector)


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_the_top_is_a_part_of_the_uppermost_tensors(count: int, batch: tuple[Tensor, Tensor]) -> None:
    net = Net(perceptron())
    top, parameters = net.top(count), net.all.parameters
    size = sum(p.numel() for p in parameters[-count:])
    assert len(top) == size
    assert torch.equal(top.vector, net.all.vector[-size:])
    x, y = batch
    gradients = (part.gradient(cross_entropy(net(x), y)) for part in (top, net.all))
    assert torch.equal(next(gradients), next(gradients)[-size:])
    top.vector = torch.zeros(size)
    assert net.all.vector[-size:].abs().sum() == 0


def test_named_gives_each_tensor_its_stretch() -> None:
    net = Net(perceptron())
    state = perceptron().state_dict()
    for part in (net.body, net.head, net.all):
        named = part.named(part.vector)
        assert all(torch.equal(tensor, state[name]) for name, tensor in named.items())
    assert list(net.head.named(net.head.vector)) == ["4.weight", "4.bias"]
    assert list(net.all.named(net.all.vector)) == list(state)


def test_frozen_parameters_are_in_no_vector_and_an_empty_body_is_no_trouble(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    module = perceptron()
    for layer in (module[0], module[2]):
        layer.requires_grad_(False)
    net = Net(module)
    assert (len(net.body), len(net.all)) == (0, 18)
    state = net.embedder.state_dict()
    loss = cross_entropy(net(x), y)
    assert net.body.gradient(loss).shape == (0,)
    net.body.step(loss, lr=0.1)
    net.body.step(loss, lr=0.1, pull=Pull(net.body.vector, 1.0))
    net.body.vector = net.body.vector
    net.all.step(loss, lr=0.1)
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.embedder.state_dict().items())
    assert cross_entropy(net(x), y) < loss


@pytest.mark.parametrize("carry", [True, False])
def test_running_statistics_travel_only_when_carried(carry: bool) -> None:
    x = torch.randn(16, 1, 6, 6, generator=torch.Generator().manual_seed(0)) + 3
    net = Net(Normed(), carry_buffers=carry)
    before, apart = net.body.vector, net.local_buffers.clone()
    net.train()
    net(x)
    norm = net.embedder.norm
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_mean.abs().sum() > 0
    assert norm.num_batches_tracked == 1
    weights = 4 * 9 + 4 + 4 + 4
    assert len(net.body) == weights + (8 if carry else 0)
    assert len(net.local_buffers) == (0 if carry else 8)
    assert torch.equal(net.body.vector, before) is not carry
    assert torch.equal(net.body.weights, before[-weights:])
    assert carry or not torch.equal(net.local_buffers, apart)
    assert ("norm.running_mean" in net.body.named(net.body.vector)) is carry
    assert net.body.gradient(net(x).sum()).shape == (weights,)

    net.eval()
    outputs = net(x)
    net.body.vector = before
    assert torch.equal(net(x), outputs) is not carry
    assert norm.running_mean.abs().sum().item() == pytest.approx(0) if carry else norm.running_mean.abs().sum() > 0
    assert norm.num_batches_tracked == 2


def test_local_buffers_are_the_statistics_themselves() -> None:
    net = Net(Normed())
    net.local_buffers.copy_(torch.arange(8.0))
    assert torch.equal(net.embedder.norm.running_mean, torch.arange(4.0))
    assert torch.equal(net.embedder.norm.running_var, torch.arange(4.0, 8.0))


def test_plain_is_an_independent_copy_under_the_original_names(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    net = Net(perceptron())
    net.all.step(cross_entropy(net(x), y), lr=0.5)
    outputs, features = net(x), net.features(x)
    plain = net.plain()
    assert list(plain.state_dict()) == list(perceptron().state_dict())
    assert torch.equal(plain(x), outputs)
    assert torch.equal(net(x), outputs), "asking for the plain module must not change the net"
    assert torch.equal(net.features(x), features)
    net.all.vector = torch.zeros(len(net.all))
    assert torch.equal(plain(x), outputs)
    with torch.no_grad():
        plain[0].weight.fill_(7)
    assert net.all.vector.abs().sum() == 0


def test_plain_keeps_statistics_and_no_more_memory_than_it_needs() -> None:
    net = Net(Normed())
    net(torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)))
    plain = net.plain()
    assert list(plain.state_dict()) == list(Normed().state_dict())
    for name, tensor in plain.state_dict().items():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), name
    assert torch.equal(plain.norm.running_mean, net.embedder.norm.running_mean)
    before = plain.norm.running_mean.clone()
    net.local_buffers.zero_()
    assert torch.equal(plain.norm.running_mean, before)


def test_the_head_is_found_in_nested_modules(batch: tuple[Tensor, Tensor]) -> None:
    module = Nested()
    expected = module(batch[0])
    assert last_linear(module) == "inner.top.fc"
    names = list(module.state_dict())
    net = Net(module)
    assert torch.equal(net(batch[0]), expected)
    assert list(net.head.entries) == ["inner.top.fc.weight", "inner.top.fc.bias"]
    assert list(net.plain().state_dict()) == names


def test_a_named_head_may_hold_several_layers(batch: tuple[Tensor, Tensor]) -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    check_cut(module, "2", batch[0])
    expected = module(batch[0])
    net = Net(module, "2")
    assert net.features(batch[0]).shape == (8, 6)
    assert torch.equal(net(batch[0]), expected)
    assert len(net.head) == 6 * 5 + 5 + 5 * 3 + 3


def test_heads_that_are_not_there_are_named() -> None:
    with pytest.raises(FedTailorError, match=r"no submodule 'fc'.*Its parts: inner"):
        Net(Nested(), "fc")
    for module in (nn.Linear(3, 2), nn.Sequential(nn.ReLU())):
        with pytest.raises(FedTailorError, match="no linear layer"):
            last_linear(module)


@pytest.mark.parametrize("after", [nn.Softmax(1), nn.LogSoftmax(1), nn.Tanh()])
def test_a_module_that_goes_on_after_its_head_is_refused(after: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(FedTailorError, match=r"cannot be cut at 'inner\.top\.fc'"):
        check_cut(Nested(after), None, batch[0])
    module = Nested()
    check_cut(module, None, batch[0])
    assert isinstance(module.inner["top"].fc, nn.Linear), "checking must not change the module"


def test_an_inner_layer_is_no_head() -> None:
    with pytest.raises(FedTailorError, match="cannot be cut at '2'"):
        check_cut(perceptron(), "2", torch.ones(2, 4))


def test_a_head_that_shares_its_weights_with_the_body_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    with pytest.raises(FedTailorError, match="cannot be cut at '2'"):
        check_cut(module, None, torch.ones(2, 4))


def test_layers_of_the_body_that_share_weights_stay_one(batch: tuple[Tensor, Tensor]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[2].weight = module[0].weight
    net = Net(module)
    assert len(net.body) == 16 + 4 + 4
    net.body.step(cross_entropy(net(batch[0]), batch[1]), lr=0.1)
    plain = net.plain()
    assert plain[2].weight is plain[0].weight


def test_what_makes_features_change_between_two_calls_is_known() -> None:
    image = Task((3, 16, 16), 4)
    seen = {
        name: (build_net(nets.build(name, values), image).repeatable, build_net(name, image).has_batchnorm)
        for name, values in (("cnn", {}), ("resnet18", {}), ("vit", {}))
    }
    assert seen == {"cnn": (True, False), "resnet18": (False, True), "vit": (True, False)}
    assert build_net(nets.build("resnet18", {"norm": "group"}), image).repeatable
    assert not build_net(nets.build("vit", {"dropout": 0.1}), image).repeatable
    dropping = Net(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3)))
    assert not dropping.repeatable
    assert not dropping.has_batchnorm


def test_stages_are_those_of_the_module() -> None:
    net = build_net("cnn", Task((1, 28, 28), 10))
    x = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    stages = net.stages(x)
    assert [tuple(s.shape) for s in stages] == [(2, 32, 12, 12), (2, 64, 4, 4), (2, 512, 1, 1)]
    assert torch.equal(stages[-1].flatten(1), net.features(x))
    with pytest.raises(FedTailorError, match="does not expose stages"):
        Net(perceptron()).stages(torch.ones(1, 4))
