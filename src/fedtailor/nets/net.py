"""A network cut into body, head and other parts, each a flat vector of which the module's parameters are views.

With vectors, the code can follow the papers, θ ← μθ + (1−μ)θ_G: loading, averaging, mixing, pulling and stepping are one vector
operation each. Parameters that do not require gradients (a frozen backbone) belong to no vector: they neither train nor travel.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtailor.errors import FedTailorError
from fedtailor.nets.fast.wide_linear import WideLinear, unformed
from fedtailor.nets.spans import Spans

GROUPS = ("body", "head", "norm")  # parts that every net has, though they may be empty
NORM = re.compile(r"\w*Norm(\dd)?")  # a class that is, or derives from, BatchNorm2d, LayerNorm, GroupNorm, RMSNorm, …


EDITIONS = itertools.count(1)


class Pull(NamedTuple):
    """The proximal term strength/2·‖w − centre‖², on the part `on` of what trains, or on all of it."""

    centre: Tensor
    strength: float
    on: Part | None = None


class Part:
    """A part of a net: its body, its head, all of it, or what `net.part` selects by name.

    `vector` is a copy of all its entries, including running statistics if these travel; `weights` are only the trainable entries.
    """

    def __init__(self, net: Net, name: str, entries: Mapping[str, Tensor]) -> None:
        """`entries` are some of the net's, in its order: running statistics first."""
        self.net = net
        self.name = name
        self.entries = entries  # parameter and buffer name -> its view of the memory
        self.parameters: list[Tensor] = [t for t in entries.values() if isinstance(t, nn.Parameter)]
        # Private, because no gradient flows through them: a loss that read them would silently lack a term.
        self._memory = Spans(net.flat, entries.values())
        self._trainable = Spans(net.flat, self.parameters)
        self._wide = [
            m for m in net.modules() if isinstance(m, WideLinear) and any(m.weight is p for p in self.parameters)
        ]

    @property
    def vector(self) -> Tensor:
        """A copy of all entries, safe to keep, send and compute with. No gradient flows through it, so a loss has to use `weights`."""
        if self.net.in_loss:
            part = f"net.{self.name}" if self.name in ("all", "body", "head") else "part"
            raise RuntimeError(
                f"{part}.vector is a copy without a gradient, and was read in the loss that trains its net: there, use {part}.weights "
                f"(or {part}.weights.detach() where a constant is meant)."
            )
        return self._memory.copy()

    @vector.setter
    def vector(self, value: Tensor) -> None:
        self._load(self._memory, value)

    @property
    def weights(self) -> Tensor:
        """A copy of the trainable entries through which gradients flow to the parameters, for a term of a loss."""
        return torch.cat([self.net.flat[:0], *(p.reshape(-1) for p in self.parameters)])

    @weights.setter
    def weights(self, value: Tensor) -> None:
        self._load(self._trainable, value)

    def trainable(self, vector: Tensor) -> Tensor:
        """Return the trainable entries of a vector of this part: all but the running statistics, which come first."""
        return vector[len(vector) - len(self._trainable) :]

    def mix(self, own: Part, other: Part, weight: float) -> None:
        """Set the weights to weight·own + (1−weight)·other, from two parts of the same shape, without a copy."""
        for mine, one, two in zip(*(part._trainable.pieces for part in (self, own, other)), strict=True):
            torch.lerp(two, one, weight, out=mine)

    def difference(self, other: Part) -> Tensor:
        """Return the weights of this part minus those of another of the same shape, as a vector."""
        return self._trainable.joined - other._trainable.joined

    @property
    def finite(self) -> bool:
        """Whether every entry is a finite number."""
        return math.isfinite(self._memory.joined.sum().item())  # infinite or NaN if any entry is

    @property
    def length(self) -> float:
        """‖w‖ of the trainable entries."""
        return self._trainable.joined.norm().item()

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss with respect to this part, as a vector over its trainable entries."""
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True) if self.parameters else ()
        filled = (torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True))
        return torch.cat([self.net.flat[:0], *(g.reshape(-1) for g in filled)])

    def pull_gradient(self, pull: Pull) -> Tensor:
        """Return the gradient of a proximal term, as a vector over the trainable entries of this part."""
        part = self._pulled(pull)
        gradient = torch.zeros_like(self._trainable.joined)
        pairs = part._trainable.beside(part.trainable(pull.centre))
        for (piece, centre), place in zip(pairs, self._trainable.places(part._trainable) or [], strict=True):
            torch.sub(piece, centre, out=gradient[place]).mul_(pull.strength)
        return gradient

    def directional_derivative(self, loss: Tensor, along: Tensor) -> float:
        """Return ∇loss · along, for a direction given as a vector over the trainable entries of this part."""
        gradients = self._gradients(loss)
        pieces = dict(zip(self.parameters, along.split([p.numel() for p in self.parameters]), strict=True))
        products = [torch.dot(g.reshape(-1), pieces[p]) for p, g in gradients]
        products += [layer.directional_derivative(pieces[layer.weight].view_as(layer.weight)) for layer in self._wide]
        return float(sum(products))

    def step(self, loss: Tensor | None, lr: float, pull: Pull | None = None, *, gradient: Tensor | None = None) -> None:
        """Take one step of plain SGD on this part only, down the loss or the given gradient, and down the pull."""
        if not self.parameters:  # a frozen body, or a net that is all head
            return
        gradients = self._gradients(loss) if gradient is None and loss is not None else []
        with torch.no_grad():
            if pull is not None:
                part = self._pulled(pull)
                for piece, centre in part._trainable.beside(part.trainable(pull.centre)):
                    piece.lerp_(centre, lr * pull.strength)
            if gradients:
                torch._foreach_add_(*zip(*gradients, strict=True), alpha=-lr)
            for layer in self._wide:
                layer.add_gradient(-lr)
            if gradient is not None:
                for piece, along in self._trainable.beside(gradient):
                    piece.sub_(along, alpha=lr)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return a vector of this part as tensors by parameter name, for debugging."""
        pieces = vector.split([entry.numel() for entry in self.entries.values()])
        return {
            name: piece.view(entry.shape) for (name, entry), piece in zip(self.entries.items(), pieces, strict=True)
        }

    def _gradients(self, loss: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the parameters that the loss depends on and their gradients; wide layers keep those of their weights as factors."""
        with unformed(self._wide):
            found = torch.autograd.grad(loss, self.parameters, allow_unused=True) if self.parameters else ()
        return [(p, g) for p, g in zip(self.parameters, found, strict=True) if g is not None]

    def _pulled(self, pull: Pull) -> Part:
        part = self if pull.on is None else pull.on
        if part is not self and (part.net is not self.net or self._trainable.places(part._trainable) is None):
            raise ValueError(
                f"a pull on the {part.name} cannot be part of a step on the {self.name}, which does not include it"
            )
        return part

    def _load(self, place: Spans, value: Tensor) -> None:
        if value.shape != (len(place),):
            raise ValueError(f"the {self.name} has {len(place)} entries, the vector has shape {tuple(value.shape)}")
        place.load(value.detach())

    def __len__(self) -> int:
        return len(self._memory)

    def __repr__(self) -> str:
        return f"Part({self.name}, {len(self)} entries)"


class Net(nn.Module):
    """A module cut at its head: logits = head(features(x)).

    With `carry_buffers`, running statistics (BatchNorm) are part of the body's vector, and travel and are averaged with it. Otherwise they
    are in `local_buffers`, which stay with the client or server that trains.
    """

    def __init__(self, module: nn.Module, head: str | None = None, *, carry_buffers: bool = False) -> None:
        super().__init__()
        self.head_name = head or last_linear(module)
        self.classifier = _submodule(module, self.head_name)
        self.embedder = _replaced(module, self.head_name, nn.Identity())
        self._flatten(carry_buffers)
        self.in_loss = False  # true while a loss that trains this net is computed
        self.seen: tuple[Tensor | None, int] = (
            None,
            0,
        )  # what affected the features when they were last asked about, and its number
        kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.MultiheadAttention)
        noisy = [m for m in self.embedder.modules() if isinstance(m, kinds)]
        self.has_batchnorm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in noisy)
        self.repeatable = not any(not isinstance(m, nn.MultiheadAttention) or m.dropout > 0 for m in noisy)

    def features(self, x: Tensor) -> Tensor:
        """Return z = body(x)."""
        return self.embedder(x)

    @property
    def head_bias(self) -> Tensor | None:
        """The bias of the head's last linear layer, which is added to the outputs; none if it has none."""
        layers = [module for module in self.classifier.modules() if isinstance(module, nn.Linear)]
        return layers[-1].bias if layers else None

    def classify(self, z: Tensor) -> Tensor:
        """Return the logits of features."""
        return self.classifier(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.embedder(x))

    def edition(self) -> int:
        """A number that changes whenever weights or statistics that affect the features change, and that no other net has had."""
        now = torch.cat([self.local_buffers, *self.body._memory.pieces])
        seen, _ = self.seen
        if seen is None or not torch.equal(seen, now):
            self.seen = now, next(EDITIONS)
        return self.seen[1]

    def train(self, mode: bool = True) -> Self:
        # Visiting all submodules takes as long as a small net's forward pass.
        settled = self.training == self.embedder.training == self.classifier.training == mode
        return self if settled else super().train(mode)

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of the body's inner stages, early to deep."""
        if not hasattr(self.embedder, "stages"):
            raise FedTailorError(
                f"The net {type(self.embedder).__name__} does not expose stages; use resnet18, cnn or, for series, cnn1d."
            )
        return self.embedder.stages(x)  # type: ignore[operator]

    def part(self, *names: str) -> Part:
        """Return the part with these names: body, head, norm (all normalisation layers), or patterns.

        A pattern matches the name of a parameter or of a module that contains it: `encoder.layer1`, `*.bias`, `*.lora_A`. Parts that the
        net already has are returned themselves: `net.part("head") is net.head`.
        """
        if ("part", names) not in self._parts:
            chosen = set[str]().union(*(self._named(name) for name in names))
            self._parts["part", names] = self._made(",".join(names), chosen)
        return self._parts["part", names]

    def rest(self, *names: str) -> Part:
        """Return the part with all entries except those of `net.part(*names)`."""
        if ("rest", names) not in self._parts:
            chosen = self.all.entries.keys() - self.part(*names).entries.keys()
            self._parts["rest", names] = self._made(f"not {','.join(names)}", chosen)
        return self._parts["rest", names]

    def top(self, count: int) -> Part:
        """Return the last `count` parameter tensors as a part; 2: weight and bias of a linear head."""
        parameters = [name for name, t in self.all.entries.items() if isinstance(t, nn.Parameter)]
        return self._made("top", set(parameters[-count:]))

    def _named(self, name: str) -> set[str]:
        if name == "norm":
            own = {id(t) for m in self.modules() if _is_norm(m) for t in (*m.parameters(False), *m.buffers(False))}
            return {entry for entry, tensor in self.all.entries.items() if id(tensor) in own}
        if name in GROUPS:
            return set((self.body if name == "body" else self.head).entries)
        found = {entry for entry in self.all.entries if fnmatchcase(entry, name) or fnmatchcase(entry, f"{name}.*")}
        if not found:
            raise FedTailorError(
                f"No part of the net is called '{name}'. There are {', '.join(GROUPS)}, and what trains: {_listed(self.all.entries)}."
            )
        return found

    def _made(self, name: str, chosen: set[str]) -> Part:
        """Return the part with these entries, an existing one if possible."""
        for known in (self.all, self.body, self.head):
            if chosen == known.entries.keys():
                return known
        return Part(self, name, {n: t for n, t in self.all.entries.items() if n in chosen})

    def plain(self, head: nn.Module | None = None) -> nn.Module:
        """Return an independent copy as the plain module it was made from, optionally with another head."""
        head = copy.deepcopy(self.classifier if head is None else head)
        whole = _replaced(copy.deepcopy(self.embedder), self.head_name, head)
        for buffer in whole.buffers():
            buffer.data = buffer.data.clone()  # a copied view would keep all of the net's memory
        return whole

    def _flatten(self, carry_buffers: bool) -> None:
        body = {n: p for n, p in self.embedder.named_parameters() if p.requires_grad}
        prefix = f"{self.head_name}."
        head = {prefix + n: p for n, p in self.classifier.named_parameters() if p.requires_grad}
        buffers = {n: b for n, b in self.embedder.named_buffers() if b.is_floating_point()}
        statistics = sum(b.numel() for b in buffers.values())
        body_end = statistics + sum(p.numel() for p in body.values())
        total = body_end + sum(p.numel() for p in head.values())
        example = next(iter(head.values()), None)
        flat = torch.empty(
            total, dtype=None if example is None else example.dtype, device=None if example is None else example.device
        )
        start = 0
        for tensor in (*buffers.values(), *body.values(), *head.values()):
            view = flat[start : start + tensor.numel()].view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
            start += tensor.numel()
        travelling = buffers if carry_buffers else {}
        self.flat = flat
        self.local_buffers = flat[:0] if carry_buffers else flat[:statistics]
        self.body = Part(self, "body", {**travelling, **body})
        self.head = Part(self, "head", head)
        self.all = Part(self, "all", {**travelling, **body, **head})
        # What `part` and `rest` returned, by names. If there is no body, `all` has the entries of the head, but part("head") is `head`.
        self._parts: dict[tuple[str, tuple[str, ...]], Part]
        self._parts = {("part", ("body",)): self.body, ("part", ("head",)): self.head}


def _is_norm(module: nn.Module) -> bool:
    return any(NORM.fullmatch(cls.__name__) for cls in type(module).__mro__)


def _listed(names: Mapping[str, Tensor], most: int = 20) -> str:
    """List the first names, and the number of the others."""
    shown = ", ".join(list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def last_linear(module: nn.Module) -> str:
    """Return the name of the last linear layer, the default head."""
    names = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    if not names or names[-1] == "":
        raise FedTailorError(
            f"{type(module).__name__} has no linear layer below its top that could be the head; name one with head='…'."
        )
    return names[-1]


def check_cut(module: nn.Module, head: str | None, example: Tensor) -> None:
    """Refuse a module that computes something after its head: it would not be head(features)."""
    module = copy.deepcopy(module).eval()
    head = head or last_linear(module)
    if not _cuts_cleanly(module, head, example):
        raise FedTailorError(
            f"{type(module).__name__} cannot be cut at '{head}': the module computes something after that layer (a softmax? other "
            "layers?) or uses it or its weights more than once. Return the head's output as it is, or name another head."
        )


@torch.no_grad()
def _cuts_cleanly(module: nn.Module, head: str, example: Tensor) -> bool:
    whole = module(example)
    classifier, embedder = _submodule(module, head), _replaced(module, head, nn.Identity())
    try:
        cut = classifier(embedder(example))
    except RuntimeError:
        return False
    shared = {*classifier.parameters()} & {*embedder.parameters()}
    return not shared and whole.shape == cut.shape and torch.allclose(whole, cut, rtol=1e-4, atol=1e-5)


def _submodule(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        known = ", ".join(n for n, _ in module.named_children())
        raise FedTailorError(
            f"{type(module).__name__} has no submodule '{name}' to be the head. Its parts: {known}."
        ) from None


def _replaced(module: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """Replace the submodule `name`, and return `module` itself."""
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, new)
    return module
