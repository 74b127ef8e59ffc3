"""A net as a function of its weights, which many clients can compute at once, each with weights of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedtailor.nets.chain import Chain, Weights, chain_of
from fedtailor.nets.fast import with_plain_layers
from fedtailor.nets.net import Net

# Multiplications per sample above which a CPU gains nothing by stacking: arithmetic and memory take longer than the overhead.
LARGEST = 75_000
CHECKED = 3  # samples on which a net is tried

Function = Callable[[Weights, Tensor], Tensor]


class Layers:
    """The layers of a net apart from their weights, for stacked weights and stacked samples, (clients, samples, …).

    `places` says where in the net's memory each parameter is, and its shape.
    """

    def __init__(self, net: Net) -> None:
        self.places: dict[str, tuple[slice, torch.Size]] = {}
        for name, tensor in net.all.entries.items():
            start = int(tensor.storage_offset())
            self.places[name] = slice(start, start + tensor.numel()), tensor.shape
        of_body = {f"0.{name}": name for name in net.body.entries}
        of_head = {f"0.{name.removeprefix(net.head_name + '.')}": name for name in net.head.entries}
        self.features = _stacked(net.embedder, of_body)
        self.classify = _stacked(net.classifier, of_head)

    @property
    def depth(self) -> int:
        """How many layers of a chain are below the head."""
        assert isinstance(self.features, Chain)
        return len(self.features.layers)

    def chain(self, *, features: bool) -> Chain | None:
        """The layers whose steps are written out, those above the features or all; None for nets of other layers."""
        chains = [self.classify] if features else [self.features, self.classify]
        layers = [layer for chain in chains if isinstance(chain, Chain) for layer in chain.layers]
        whole = Chain(layers)
        return whole if whole.has_back and all(isinstance(chain, Chain) for chain in chains) else None

    def weights(self, flats: Tensor) -> Weights:
        """The stacked parameters of nets whose memories are the rows of a matrix, as copies."""
        views = {name: flats[:, place].view(-1, *shape) for name, (place, shape) in self.places.items()}
        return {name: view.clone(memory_format=torch.contiguous_format) for name, view in views.items()}

    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        return self.classify(weights, self.features(weights, x))


def _stacked(module: nn.Module, names: dict[str, str]) -> Function:
    """A module as a function of stacked weights and samples; `names` are those of its parameters, in the module and in the net."""
    module = with_plain_layers(nn.Sequential(copy.deepcopy(module)))
    for layer in module.modules():
        if hasattr(layer, "memory_format"):
            # Stacked images have five dimensions, for which there is no other.
            layer.memory_format = torch.preserve_format  # type: ignore[assignment]
    chain = chain_of(module, names)
    if chain is not None:
        return chain

    def call(weights: Weights, x: Tensor) -> Tensor:
        return functional_call(module, {inner: weights[name] for inner, name in names.items()}, (x,))

    return vmap(call)


def stackable(net: Net, example: Tensor) -> Layers | None:
    """The layers of a net, if many clients can and should compute it at once: `example` is a sample.

    They cannot with layers that look at other samples of a batch, draw random numbers or keep statistics (BatchNorm, dropout), and they
    should not on a CPU if the net is so large that it has little overhead.
    """
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.MultiheadAttention)
    if any(isinstance(module, kinds) for module in net.modules()) or any(True for _ in net.buffers()):
        return None
    layers = Layers(net)
    x = example.expand(CHECKED, *example.shape)
    if not example.is_floating_point():
        x = x.clone()
    if x.device.type == "cpu" and multiplications(net, x) > LARGEST:
        return None
    return layers if _computes(layers, net, x) else None


@torch.no_grad()
def multiplications(net: nn.Module, x: Tensor) -> int:
    """How many multiplications the linear and convolutional layers of a net need per sample."""
    found = 0

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        nonlocal found
        weight = layer.get_parameter("weight")
        found += weight.numel() * (output.numel() // (len(x) * len(weight)))

    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    hooks = [layer.register_forward_hook(count) for layer in net.modules() if isinstance(layer, kinds)]
    net(x)
    for hook in hooks:
        hook.remove()
    return found


@torch.no_grad()
def _computes(layers: Layers, net: Net, x: Tensor) -> bool:
    """Whether stacked weights give the outputs of the net itself, also beside a row of zeros."""
    filled = torch.cat([x, torch.zeros_like(x[:1])])
    weights = {name: torch.stack([t, t]) for name, t in net.all.entries.items()}
    try:
        found = layers.outputs(weights, torch.stack([filled, filled]))
    except Exception:  # any module of a user's own, which may do anything: read values, branch on them
        return False
    return torch.allclose(found[1, : len(x)], net(x), rtol=1e-4, atol=1e-5)
