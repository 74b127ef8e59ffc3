"""Winograd's convolution against PyTorch's."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from fedtailor.nets.fast import winograd
from fedtailor.nets.fast.winograd import Conv2d, convolve


def images(n: int, channels: int, height: int, width: int, outputs: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (n, channels, height, width), (outputs, channels, size, size), (outputs,)
    x, weight, bias = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return [x.requires_grad_(), (weight / (channels * size**2) ** 0.5).requires_grad_(), bias.requires_grad_()]


def all_of(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the slopes of all inputs, for some slope of the output."""
    slope = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, inputs, slope)]


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize(
    ("n", "channels", "height", "width", "border"),
    [(2, 3, 12, 12, 0), (1, 2, 14, 9, 0), (2, 4, 8, 8, 2), (3, 1, 5, 7, 1)],
)
def test_output_and_slopes_are_those_of_the_convolution(
    n: int, channels: int, height: int, width: int, border: int, size: int
) -> None:
    inputs = images(n, channels, height, width, 5, size, torch.float64)
    x, weight, bias = inputs
    ours, theirs = all_of(convolve(x, weight, bias, border), inputs), all_of(conv2d(x, weight, bias, 1, border), inputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("side", "channels"), [(12, 32), (14, 32), (12, 128)])
def test_in_single_precision_the_error_is_of_the_order_of_rounding(side: int, channels: int) -> None:
    inputs = images(10, channels, side, side, 64, 5, torch.float32)
    x, weight, bias = inputs
    ours = all_of(convolve(x, weight, bias, 0), inputs)
    exact = all_of(conv2d(x.double(), weight.double(), bias.double()), inputs)
    for a, b in zip(ours, exact, strict=True):
        assert (a - b).abs().max() < 2e-5 * b.abs().max()


def test_the_layer_is_drawn_and_named_as_pytorchs() -> None:
    torch.manual_seed(3)
    ours = Conv2d(32, 8, 5, 2)
    torch.manual_seed(3)
    theirs = nn.Conv2d(32, 8, 5, padding=2)
    assert {k: v.tolist() for k, v in ours.state_dict().items()} == {
        k: v.tolist() for k, v in theirs.state_dict().items()
    }


@pytest.mark.parametrize(
    ("channels", "n", "side", "gradients", "taken"),
    [
        (32, 10, 12, True, True), (32, 10, 14, True, True), (32, 10, 12, False, True), (32, 10, 14, False, False),
        (6, 10, 12, True, False), (32, 1, 12, True, False),
    ],
)  # fmt: skip
def test_it_is_used_where_it_pays(
    monkeypatch: pytest.MonkeyPatch, channels: int, n: int, side: int, gradients: bool, taken: bool
) -> None:
    spy = Mock(wraps=convolve)
    monkeypatch.setattr(winograd, "convolve", spy)
    torch.manual_seed(0)
    layer, x = Conv2d(channels, 8, 5, 0), torch.randn(n, channels, side, side)
    with torch.set_grad_enabled(gradients):
        y = layer(x)
    assert spy.called == taken
    exact = conv2d(x.double(), layer.weight.double(), layer.bias.double())
    error = (y.double() - exact).abs().max() / exact.abs().max()
    assert error < (1e-5 if taken else 2e-6)  # single precision, as docs/performance.md states it


def test_what_was_first_computed_for_scoring_serves_training_too() -> None:
    winograd._matrices.cache_clear()
    winograd._tiling.cache_clear()
    inputs = images(2, 3, 12, 12, 5, 5, torch.float64)
    x, weight, bias = inputs
    with torch.inference_mode():
        scored = convolve(x, weight, bias, 0)
    y, *slopes = all_of(convolve(x, weight, bias, 0), inputs)
    assert torch.equal(y, scored)
    for ours, theirs in zip(slopes, all_of(conv2d(x, weight, bias), inputs)[1:], strict=True):
        torch.testing.assert_close(ours, theirs)
