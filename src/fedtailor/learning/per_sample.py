"""Sums of per-sample gradients, each clipped to a length: what a private step is made of.

The plain form takes one sample at a time, and is right for every net and loss by construction. For the task's loss and nets of common
layers there is a faster one: a layer's gradient for one sample is a product of what the layer read and of the gradient of its outputs, so
that one backward pass to the layers' outputs has the lengths of all samples' gradients, and one weighted product per layer their clipped
sum (Goodfellow, 2015; Bu et al., 2023). No sample's gradient is ever stored for wide layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.errors import FedTailorError
from fedtailor.learning.losses import Loss
from fedtailor.learning.sample_weights import taken
from fedtailor.nets.net import Net, Part

Each = Callable[[Net, Tensor, Tensor], Tensor]  # the losses of a batch (x, y), one number per sample


class Gradients(NamedTuple):
    """The gradients of one parameter for each sample of a batch: their squared lengths, and their sum by given weights."""

    squares: Tensor
    summed: Callable[[Tensor], Tensor]


# -- one sample at a time -------------------------------------------------------------------------------------------------------------


def clipped_sum(part: Part, loss: Loss, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Return Σ gᵢ·min(1, clip/‖gᵢ‖) over the samples of a batch, as a vector over the part's trainable entries.

    gᵢ is the gradient of the loss of sample i alone. If it is not finite, it counts as zero.
    """
    total = part.weights.detach().zero_()
    for i in range(len(y)):
        row = slice(i, i + 1)
        gradient = part.gradient(loss(part.net, x[row], taken(y, row)))
        factor = _factors(gradient.square().sum()[None], clip)
        if factor > 0:
            total += factor * gradient
    return total


def _factors(squares: Tensor, clip: float) -> Tensor:
    """Return min(1, clip/√square) of each squared length, and zero where it is not finite."""
    lengths = squares.sqrt()
    return torch.where(torch.isfinite(lengths), (clip / lengths).clamp(max=1.0), 0.0)


# -- all samples at once --------------------------------------------------------------------------------------------------------------


def layers_of(part: Part) -> dict[nn.Module, list[int]] | None:
    """Return the layers that hold the part's parameters, with the places of these in the part; None if one has no fast form."""
    places = {id(p): k for k, p in enumerate(part.parameters)}
    found: dict[nn.Module, list[int]] = {}
    for module in part.net.modules():
        here = [places.pop(id(p)) for p in module.parameters(recurse=False) if id(p) in places]
        if here and not _is_known(module):
            return None
        if here:
            found[module] = here
    return None if places else found


def fast_clipped_sum(
    part: Part, layers: dict[nn.Module, list[int]], each: Each, x: Tensor, y: Tensor, clip: float
) -> Tensor:
    """Return what `clipped_sum` does, up to rounding, for a net that does not mix the samples of a batch."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    with _untracked(part.net), _watched(layers, seen):
        loss = each(part.net, x, y).sum()
    used = [layer for layer in layers if layer in seen]
    outputs = [seen[layer][1] for layer in used]
    with torch.no_grad():
        of_outputs = torch.autograd.grad(loss, outputs) if loss.requires_grad else ()
        pairs = [(layer, seen[layer][0], g) for layer, g in zip(used, of_outputs, strict=True)]
        gradients = [_gradients(layer, a, g) for layer, a, g in pairs]
        flat = [one for of_layer in gradients for one in of_layer.values()]
        squares = sum((one.squares for one in flat), x.new_zeros(len(y), dtype=part.net.flat.dtype))
        factors = _factors(squares, clip)
        if not bool(torch.isfinite(squares).all()):  # 0·∞ is not 0, so such samples are blotted out before the sum
            sound = torch.isfinite(squares)
            pairs = [(layer, _blotted(a, sound), _blotted(g, sound)) for layer, a, g in pairs]
            gradients = [_gradients(layer, a, g) for layer, a, g in pairs]
        sums: dict[int, Tensor] = {}
        for (layer, _, _), of_layer in zip(pairs, gradients, strict=True):
            own = {id(p): name for name, p in layer.named_parameters(recurse=False)}
            for k in layers[layer]:
                sums[k] = of_layer[own[id(part.parameters[k])]].summed(factors)
        found = (sums[k] if k in sums else torch.zeros_like(p) for k, p in enumerate(part.parameters))
        return torch.cat([part.net.flat[:0], *(s.reshape(-1) for s in found)])


@contextmanager
def _untracked(net: Net) -> Iterator[None]:
    """Within this context, autograd does not track the net's parameters, whose own gradients are not wanted."""
    tracked = [p for p in net.parameters() if p.requires_grad]
    for p in tracked:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in tracked:
            p.requires_grad_(True)


@contextmanager
def _watched(layers: dict[nn.Module, list[int]], seen: dict[nn.Module, tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Within this context, note what each layer reads and puts out; autograd tracks its outputs."""

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if layer in seen:
            raise FedTailorError(
                f"A {type(layer).__name__} layer is used more than once in a forward pass, for which private steps know no gradient."
            )
        output = output if output.requires_grad else output.requires_grad_()
        seen[layer] = inputs[0].detach(), output
        return output

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _blotted(values: Tensor, sound: Tensor) -> Tensor:
    """Return the values with those of all other samples set to zero."""
    return torch.where(sound.view(-1, *[1] * (values.ndim - 1)), values, torch.zeros_like(values))


# -- layers ---------------------------------------------------------------------------------------------------------------------------


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros"
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return isinstance(layer, nn.Linear | nn.GroupNorm | nn.LayerNorm)


def _gradients(layer: nn.Module, a: Tensor, g: Tensor) -> dict[str, Gradients]:
    """Return the gradients of a layer's parameters by name, from what it read and the gradients of its outputs."""
    match layer:
        case nn.Linear():
            return _of_products(a.view(len(a), -1, a.shape[-1]), g.reshape(len(g), -1, g.shape[-1]), layer.weight)
        case nn.Conv2d():
            return _of_products(_patches(layer, a), g.flatten(2).transpose(1, 2), layer.weight)
        case nn.Conv1d():
            return _of_products(_patches(layer, a), g.transpose(1, 2), layer.weight)
        case nn.Embedding():
            return {"weight": _of_rows(a.flatten(1), g.reshape(len(g), -1, g.shape[-1]), layer)}
        case nn.GroupNorm():
            normal = F.group_norm(a, layer.num_groups, eps=layer.eps)
            return _of_scales((g * normal).flatten(2).sum(2), g.flatten(2).sum(2), layer.weight.shape)
        case nn.LayerNorm():
            normal = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
            size = layer.weight.numel()
            of_weight, of_bias = ((t.reshape(len(g), -1, size).sum(1)) for t in (g * normal, g))
            return _of_scales(of_weight, of_bias, layer.weight.shape)
    raise TypeError(f"no per-sample gradients of {type(layer).__name__}")


def _patches(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> Tensor:
    """Return what a convolution multiplies its weights with: (samples, places, inputs of a place)."""
    sizes = zip(layer.kernel_size, layer.dilation, strict=True)
    match layer.padding:
        case "same":
            sides = [(d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2) for k, d in sizes]
        case "valid":
            sides = [(0, 0) for _ in sizes]
        case _:
            sides = [(int(p), int(p)) for p in layer.padding]
    a = F.pad(a, [p for side in reversed(sides) for p in side])
    if isinstance(layer, nn.Conv1d):
        a = a[:, :, None]
    lead = (1,) * (2 - len(layer.kernel_size))
    size, dilation, stride = ((*lead, *given) for given in (layer.kernel_size, layer.dilation, layer.stride))
    return F.unfold(a, size, dilation, 0, stride).transpose(1, 2)


def _of_products(a: Tensor, g: Tensor, weight: Tensor) -> dict[str, Gradients]:
    """Gradients of y = a·Wᵀ + b at one or several places of a sample: Σ_p g_p a_pᵀ and Σ_p g_p."""
    places, inputs, outputs = a.shape[1], a.shape[2], g.shape[2]
    of_bias = g.sum(1)
    bias = Gradients(of_bias.square().sum(1), lambda c: c @ of_bias)
    if places == 1:
        squares = a.square().sum((1, 2)) * g.square().sum((1, 2))
        return {"weight": Gradients(squares, lambda c: (c[:, None] * g[:, 0]).T @ a[:, 0]), "bias": bias}
    if places * (inputs + outputs) < inputs * outputs:  # ‖Σ_p g_p a_pᵀ‖² = Σ_pq ⟨a_p, a_q⟩⟨g_p, g_q⟩
        squares = ((a @ a.transpose(1, 2)) * (g @ g.transpose(1, 2))).sum((1, 2)).clamp(min=0)
        flat = a.reshape(-1, inputs)
        summed = lambda c: ((c[:, None, None] * g).reshape(-1, outputs).T @ flat).view_as(weight)  # noqa: E731
        return {"weight": Gradients(squares, summed), "bias": bias}
    each = (g.transpose(1, 2) @ a).flatten(1)
    squares = torch.linalg.vector_norm(each, dim=1).square()  # unlike squares and their sum, in one pass
    return {"weight": Gradients(squares, lambda c: (c @ each).view_as(weight)), "bias": bias}


def _of_rows(ids: Tensor, g: Tensor, layer: nn.Embedding) -> Gradients:
    """Gradients of looked-up rows: those of equal ids add up; the padding's row has none."""
    if layer.padding_idx is not None:
        g = g * (ids != layer.padding_idx)[:, :, None]
    same = (ids[:, :, None] == ids[:, None, :]).to(g.dtype)
    squares = (same * (g @ g.transpose(1, 2))).sum((1, 2)).clamp(min=0)

    def summed(c: Tensor) -> Tensor:
        rows = (c[:, None, None] * g).reshape(-1, g.shape[2])
        return torch.zeros_like(layer.weight).index_add_(0, ids.reshape(-1), rows)

    return Gradients(squares, summed)


def _of_scales(of_weight: Tensor, of_bias: Tensor, shape: torch.Size) -> dict[str, Gradients]:
    weight = Gradients(of_weight.square().sum(1), lambda c: (c @ of_weight).view(shape))
    return {"weight": weight, "bias": Gradients(of_bias.square().sum(1), lambda c: (c @ of_bias).view(shape))}


# -- nets that mix samples ------------------------------------------------------------------------------------------------------------

_mixing: WeakKeyDictionary[Net, bool] = WeakKeyDictionary()


@torch.no_grad()
def mixes_samples(net: Net, x: Tensor) -> bool:
    """Whether a net's output for a sample depends on the others of its batch, judged by three random samples shaped as `x`."""
    if net not in _mixing:
        rng = torch.Generator().manual_seed(0)
        shape = (3, *x.shape[1:])
        floats = x.is_floating_point()
        probe = torch.randn(shape, generator=rng) if floats else torch.randint(2, shape, generator=rng)
        probe = probe.to(x)
        mode = net.training
        net.eval()
        together, alone = net(probe), torch.cat([net(probe[i : i + 1]) for i in range(3)])
        net.train(mode)
        _mixing[net] = not torch.allclose(together, alone, rtol=1e-3, atol=1e-4)
    return _mixing[net]
