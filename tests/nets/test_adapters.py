"""The adapter net: what it is made of, what trains, and that it starts as the backbone it was given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import batch_norm, conv2d, relu

from fedtailor.errors import FedTailorError
from fedtailor.nets import Task, build_net
from fedtailor.nets.adapters import Adapter, ResNet18Adapters
from fedtailor.nets.resnet import BasicBlock, ResNet18

TASK = Task((3, 16, 16), 100)


def backbone(path: Path, **options: object) -> Path:
    """A body's weights as a file in half precision, with statistics of its own and without a head."""
    torch.manual_seed(5)
    module = ResNet18(**options).build(TASK)
    for _ in range(2):
        module(torch.randn(4, 3, 16, 16))
    state = {n: t for n, t in module.state_dict().items() if not n.startswith("fc.") and "tracked" not in n}
    save_file({n: t.half() for n, t in state.items()}, path)
    return path


def test_the_papers_parameter_counts():
    module = ResNet18Adapters().build(TASK)
    assert sum(p.numel() for p in module.parameters()) == 12_628_132
    trainable = {n: p.numel() for n, p in module.named_parameters() if p.requires_grad}
    assert sum(trainable.values()) == 1_459_428
    assert sum(size for n, size in trainable.items() if "adapter" in n) == 1_400_320
    assert sum(size for n, size in trainable.items() if "adapter" not in n and ".bn" in f".{n}") == 7_808
    assert not any("downsample" in n or n.endswith("conv1.weight") for n in trainable)
    assert sum(isinstance(m, Adapter) for m in module.modules()) == 16


def test_only_what_trains_is_in_the_vectors():
    net = build_net(ResNet18Adapters(), TASK)
    assert len(net.all) == 1_459_428
    assert len(net.head) == 51_300
    statistics = 2 * (64 + 4 * 960 + 4 * 960 + 896)  # of the stem, blocks, adapters and shortcuts
    assert len(net.local_buffers) == statistics
    assert len(build_net(ResNet18Adapters(), TASK, carry_buffers=True).all) == 1_459_428 + statistics
    assert [s.shape[1] for s in net.stages(torch.zeros(2, 3, 16, 16))] == [64, 128, 256, 512]


def test_an_adapter_adds_a_small_change_between_convolution_and_norm():
    torch.manual_seed(0)
    module = ResNet18Adapters(dropout=0.0).build(Task((3, 8, 8), 3))
    block = module.layer2[0]
    assert isinstance(block, BasicBlock)
    for adapter in (block.adapter1, block.adapter2):
        assert adapter.conv.weight.std().item() == pytest.approx(1e-4, rel=0.05)
        torch.nn.init.normal_(adapter.conv.weight)
    x = torch.randn(6, 64, 4, 4)

    def norm(z):
        return batch_norm(z, None, None, training=True)

    z = conv2d(x, block.conv1.weight, stride=2, padding=1)
    z = relu(norm(z + conv2d(norm(z), block.adapter1.conv.weight)))
    z = conv2d(z, block.conv2.weight, padding=1)
    z = norm(z + conv2d(norm(z), block.adapter2.conv.weight))
    shortcut = norm(conv2d(x, block.downsample[0].weight, stride=2))
    torch.testing.assert_close(block.train()(x), relu(z + shortcut), rtol=1e-4, atol=1e-5)


def test_it_starts_as_the_backbone_of_the_file(tmp_path):
    path = str(backbone(tmp_path / "w.safetensors"))
    plain, adapted = ResNet18(weights=path).build(TASK).eval(), ResNet18Adapters(weights=path).build(TASK).eval()
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    for a, b in zip(plain.stages(x), adapted.stages(x), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
    assert torch.equal(plain.bn1.running_var, adapted.bn1.running_var)


def test_statistics_may_be_left_in_the_file(tmp_path):
    path = str(backbone(tmp_path / "w.safetensors"))
    with_them, without = (ResNet18Adapters(weights=path, load_statistics=s).build(TASK) for s in (True, False))
    assert torch.equal(with_them.layer3[0].conv1.weight, without.layer3[0].conv1.weight)
    assert without.bn1.running_mean.eq(0).all()
    assert without.layer2[0].downsample[1].running_var.eq(1).all()
    assert not with_them.layer2[0].downsample[1].running_var.eq(1).any()


def test_misfits_are_told(tmp_path):
    path = str(backbone(tmp_path / "small.safetensors", stem="small"))
    with pytest.raises(FedTailorError, match=r"conv1\.weight"):
        ResNet18Adapters(weights=path).build(TASK)
    with pytest.raises(FedTailorError, match="'resnet18-adapters' reads images"):
        ResNet18Adapters().build(Task((5,), 3))
