from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedtailor.errors import FedTailorError
from fedtailor.nets import Architecture, Task, build_net, nets
from fedtailor.registry import options

TASKS = {
    "cnn": Task((1, 8, 8), 10),
    "lenet": Task((3, 32, 32), 10),
    "lenet-small": Task((3, 32, 32), 10),
    "resnet18": Task((3, 8, 8), 4),
    "fasttext": Task((20,), 4, 50),
    "mlp": Task((30,), 3),
    "cnn1d": Task((9, 128), 6),
    "vit": Task((1, 8, 8), 10),
}


def module(name: str, task: Task, **values: object) -> nn.Module:
    return nets.build(name, values).build(task)


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def batch(task: Task, n: int) -> Tensor:
    g = torch.Generator().manual_seed(0)
    if task.vocabulary:
        return torch.randint(task.vocabulary, (n, *task.shape), generator=g)
    return torch.randn(n, *task.shape, generator=g)


def test_every_net_is_registered_and_explained() -> None:
    assert set(TASKS) <= set(nets.classes)
    for name in TASKS:
        cls = nets.find(name)
        assert issubclass(cls, Architecture)
        assert cls.__doc__
        assert cls.paper
        assert all(o.meaning for o in options(cls))
        assert hash(cls()) == hash(cls())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("cnn", (1, 28, 28), 10, 582_026),
        ("cnn", (3, 32, 32), 10, 878_538),
        ("cnn", (3, 32, 32), 100, 924_708),
        ("cnn", (3, 64, 64), 200, 5_694_600),
        ("lenet", (3, 32, 32), 10, 52_202),
        ("lenet-small", (3, 32, 32), 10, 8_210),
        ("resnet18", (3, 32, 32), 1000, 11_689_512),
        ("mlp", (1, 28, 28), 10, 784 * 200 + 200 + 200 * 10 + 10),
    ],
)
def test_published_parameter_counts(name: str, shape: tuple[int, ...], classes: int, count: int) -> None:
    assert size(module(name, Task(shape, classes))) == count


def test_counts_by_hand() -> None:
    assert size(module("fasttext", Task((200,), 4, 98_635))) == 98_635 * 32 + 32 * 32 + 32 + 32 * 4 + 4
    classical = 456 + 2_416 + 48_120 + (120 * 84 + 84) + (84 * 10 + 10)
    assert size(module("lenet", Task((3, 32, 32), 10), linears=3)) == classical
    assert size(module("mlp", Task((5, 2), 3), hidden=[])) == 33
    assert len(build_net("resnet18", Task((3, 32, 32), 7)).body) == 11_176_512


@pytest.mark.parametrize("name", ["cnn", "lenet", "lenet-small", "vit"])
@settings(max_examples=25, deadline=None)
@given(channels=st.integers(1, 4), height=st.integers(4, 40), width=st.integers(4, 40), classes=st.integers(2, 12))
def test_image_nets_take_any_image(name: str, channels: int, height: int, width: int, classes: int) -> None:
    task = Task((channels, height, width), classes)
    assert build_net(name, task)(batch(task, 3)).shape == (3, classes)


@pytest.mark.parametrize("stem", ["imagenet", "small"])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (4, 1, 21)])
def test_resnet_takes_any_image(stem: str, norm: str, shape: tuple[int, int, int]) -> None:
    task = Task(shape, 5)
    assert module("resnet18", task, stem=stem, norm=norm)(batch(task, 2)).shape == (2, 5)


def test_cnn1d_is_its_layers_one_after_the_other() -> None:
    net, x = module("cnn1d", TASKS["cnn1d"]), batch(TASKS["cnn1d"], 2)
    halve = nn.MaxPool1d(2)
    convolutions = nn.Sequential(net.conv1, nn.ReLU(), halve, net.conv2, nn.ReLU(), halve)
    assert torch.equal(net(x), net.fc(torch.relu(net.fc1(convolutions(x).flatten(1)))))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=25, deadline=None)
@given(channels=st.integers(1, 9), length=st.integers(4, 150), kernel=st.integers(1, 9))
def test_cnn1d_takes_any_window(channels: int, length: int, kernel: int) -> None:
    task = Task((channels, length), 6)
    assert module("cnn1d", task, kernel=kernel, width=4)(batch(task, 2)).shape == (2, 6)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 4), (1, 8, 8), (2, 3, 4, 5)])
@pytest.mark.parametrize("hidden", [[], [4], [4, 5, 6]])
def test_mlp_takes_any_shape(shape: tuple[int, ...], hidden: list[int]) -> None:
    task = Task(shape, 3)
    assert build_net(nets.build("mlp", {"hidden": hidden}), task)(batch(task, 2)).shape == (2, 3)


@pytest.mark.parametrize("name", TASKS)
def test_every_net_learns(name: str) -> None:
    task = replace(TASKS[name], classes=2)
    y = torch.arange(12) % 2
    label = y.view(-1, *[1] * len(task.shape))
    noise = batch(task, 12)
    x = noise // 2 + label * (task.vocabulary // 2) if task.vocabulary else noise + label
    net = build_net(name, task).train()
    first = cross_entropy(net(x), y).item()
    for _ in range(20):
        net.all.step(cross_entropy(net(x), y), lr=1.0 if name == "fasttext" else 0.1)
    assert cross_entropy(net(x), y).item() < 0.5 * first


def test_cnn_is_the_written_formula() -> None:
    net = module("cnn", Task((1, 28, 28), 10))
    reference = nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip
    reference.load_state_dict(dict(zip(reference.state_dict(), net.state_dict().values(), strict=True)))
    x = batch(Task((1, 28, 28), 10), 4)
    assert torch.allclose(net(x), reference(x), atol=1e-6)


def test_padding_starts_below_sixteen_pixels() -> None:
    paddings = {side: module("lenet", Task((1, side, 20), 2)).conv1.padding for side in (8, 15, 16, 20)}
    assert paddings == {8: (2, 2), 15: (2, 2), 16: (0, 0), 20: (0, 0)}


def test_resnet_names_follow_the_published_rule() -> None:
    def norm(name: str) -> list[str]:
        return [f"{name}.{s}" for s in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    expected = ["conv1.weight", *norm("bn1")]
    for stage in range(1, 5):
        for block in range(2):
            at = f"layer{stage}.{block}"
            expected += [f"{at}.conv1.weight", *norm(f"{at}.bn1"), f"{at}.conv2.weight", *norm(f"{at}.bn2")]
            if stage > 1 and block == 0:
                expected += [f"{at}.downsample.0.weight", *norm(f"{at}.downsample.1")]
    state = module("resnet18", Task((3, 32, 32), 10)).state_dict()
    assert list(state) == [*expected, "fc.weight", "fc.bias"]
    assert len(expected) == 120


def test_resnet_stages_and_initial_weights() -> None:
    torch.manual_seed(0)
    net = module("resnet18", Task((3, 32, 32), 10)).eval()
    assert [tuple(s.shape[1:]) for s in net.stages(torch.zeros(1, 3, 32, 32))] == [
        (64, 8, 8), (128, 4, 4), (256, 2, 2), (512, 1, 1),
    ]  # fmt: skip
    small = module("resnet18", Task((3, 32, 32), 10), stem="small")
    assert small.stages(torch.zeros(1, 3, 32, 32))[0].shape == (1, 64, 32, 32)
    for conv in (m for m in net.modules() if isinstance(m, nn.Conv2d)):
        fan_out = conv.out_channels * conv.kernel_size[0] ** 2
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
    for bn in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        assert (bn.weight == 1).all()
        assert (bn.bias == 0).all()


def test_a_resnet_block_adds_its_shortcut() -> None:
    net = module("resnet18", Task((3, 8, 8), 2))
    block = net.layer2[0]
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 64, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block.eval()(x), torch.relu(block.downsample(x)))


def test_fasttext_averages_over_all_positions() -> None:
    task = Task((5,), 3, 11)
    net = module("fasttext", task)
    x = torch.tensor([[4, 7, 0, 0, 0]])
    words = net.embedding.weight
    assert torch.equal(words[0], torch.zeros(32))
    z = net.fc1(((words[4] + words[7]) / 5)[None])
    assert torch.allclose(net(x), net.fc(z), atol=1e-6)
    quirky = module("fasttext", task, split_quirk=True)
    quirky.load_state_dict(net.state_dict())
    assert torch.allclose(quirky(x), net.fc(torch.log_softmax(z, 1)), atol=1e-6)
    cut = build_net(nets.build("fasttext", {"split_quirk": True}), task)
    assert torch.allclose(cut.features(x).exp().sum(), torch.tensor(1.0))


def test_fasttext_never_trains_its_padding() -> None:
    net = build_net("fasttext", Task((5,), 3, 11))
    net.all.step(net(torch.tensor([[4, 7, 0, 0, 0]])).sum(), lr=1.0)
    words = net.body.named(net.body.vector)["embedding.weight"]
    assert torch.equal(words[0], torch.zeros(32))


@pytest.mark.parametrize(
    ("side", "patch", "patches"), [(8, 2, 16), (16, 2, 64), (28, 4, 49), (32, 4, 64), (31, 4, 64), (64, 8, 64)]
)
def test_vit_chooses_its_patches(side: int, patch: int, patches: int) -> None:
    net = module("vit", Task((1, side, side), 2))
    assert net.patches.kernel_size == (patch, patch)
    assert net.position.shape == (patches, 64)


def test_vit_attention_is_the_textbook_formula() -> None:
    block = module("vit", Task((1, 8, 8), 2), width=8, heads=2).blocks[0]
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    q, k, v = block.qkv(x).split(8, dim=2)
    heads = []
    for at in (slice(0, 4), slice(4, 8)):
        weights = torch.softmax(q[..., at] @ k[..., at].mT / 4**0.5, -1)
        heads.append(weights @ v[..., at])
    assert torch.allclose(block.attend(x), block.proj(torch.cat(heads, -1)), atol=1e-6)


TEXT, IMAGE, SERIES, TABLE = Task((200,), 4, 1000), Task((3, 32, 32), 4), Task((9, 128), 4), Task((30,), 4)


@pytest.mark.parametrize(
    ("name", "task", "advice"),
    [
        *[(name, TEXT, "fasttext") for name in ("cnn", "lenet", "resnet18", "vit", "cnn1d", "mlp")],
        *[(name, SERIES, "cnn1d") for name in ("cnn", "lenet", "resnet18", "vit", "fasttext")],
        *[(name, TABLE, "mlp") for name in ("cnn", "lenet", "resnet18", "vit", "cnn1d", "fasttext")],
        *[(name, IMAGE, "resnet18") for name in ("cnn1d", "fasttext")],
        *[(name, Task((1, 3, 9), 2), "mlp") for name in ("cnn", "lenet-small")],
        ("vit", Task((1, 1, 9), 2), "mlp"),
        ("cnn1d", Task((9, 3), 2), "mlp"),
        ("resnet18", Task((0, 8, 8), 2), "mlp"),
        ("fasttext", Task((200, 3), 4, 1000), "tokens"),
        ("mlp", Task((), 2), "at least 1"),
    ],
)
def test_unsuitable_samples_are_refused_with_advice(name: str, task: Task, advice: str) -> None:
    with pytest.raises(FedTailorError) as refused:
        build_net(name, task)
    message = str(refused.value)
    assert f"'{name}'" in message
    assert str(task.shape) in message
    assert advice in message


def test_impossible_options_are_refused() -> None:
    with pytest.raises(FedTailorError, match=r"width = 10 must be a multiple of net\.heads = 4"):
        module("vit", IMAGE, width=10)
    with pytest.raises(FedTailorError, match=r"net\.hidden = \[3, 0\] is not allowed"):
        module("mlp", TABLE, hidden=[3, 0])
    with pytest.raises(FedTailorError, match=r"2 \| 3"):
        module("lenet", IMAGE, linears=4)
    with pytest.raises(FedTailorError, match="at least 40×40"):
        module("vit", IMAGE, patch=40)
