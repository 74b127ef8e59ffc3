"""A client's label distribution in the logits of a net."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtailor.data.task import Task
from fedtailor.learning.head_mixing import best_logit_weight
from fedtailor.learning.samples import Samples
from fedtailor.nets.net import Net


def evenness(counts: Tensor) -> float:
    """Return the entropy of label shares over its maximum for as many labels: 1 if they are equally frequent, 0 for one label."""
    p = counts[counts > 0].double() / counts.sum()
    return -(p * p.log()).sum().item() / math.log(max(2, len(p)))


@torch.no_grad()
def add_label_prior(net: Net, samples: Samples, task: Task) -> float:
    """Add α·log p(c) to the bias of a head, where p(c) ∝ n_c + ½ over the samples; return α, which is 0 if there is no bias.

    α ∈ [0, 1] is what the samples (up to one chunk of them) are best explained with.
    """
    bias = net.head_bias
    if bias is None:
        return 0.0
    counts = torch.bincount(samples.y, minlength=task.classes).to(samples.dtype) + 0.5
    prior = (counts / counts.sum()).log()
    x, y = next(samples.chunks())
    logits = as_logits(net.eval()(x)).cpu().double()
    alpha = best_logit_weight(logits + prior.cpu().double(), logits, y.cpu())
    bias += alpha * as_outputs(task, prior)
    return alpha


def as_logits(outputs: Tensor) -> Tensor:
    """Return one logit per class; a binary task's single output is that of class 1."""
    return outputs if outputs.shape[1] > 1 else torch.cat([torch.zeros_like(outputs), outputs], dim=1)


def as_outputs(task: Task, logits: Tensor) -> Tensor:
    """Return what a net would have to put out for one logit per class."""
    return logits[1:] - logits[:1] if task.kind == "binary" else logits
