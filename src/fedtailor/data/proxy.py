"""Proxy samples for the server, from the clients' data set or from another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedtailor.data.client_data import Split
from fedtailor.data.encode import encoded_samples
from fedtailor.data.federation import Federation
from fedtailor.data.pool import Pool
from fedtailor.data.task import CLASSES
from fedtailor.errors import FedTailorError

PIECE = 1024  # images resized at a time


def set_aside(pool: Pool, share: float, rng: np.random.Generator) -> tuple[Pool, Pool]:
    """Split off a random share of a pool, never from its official test part; return the rest and the share."""
    rows = np.arange(len(pool)) if pool.test is None else np.flatnonzero(~pool.test)
    count = max(1, round(share * len(rows)))
    aside = np.sort(rng.permutation(rows)[:count])
    return pool.subset(np.setdiff1d(np.arange(len(pool)), aside)), pool.subset(aside)


def with_proxy(federation: Federation, pool: Pool) -> Federation:
    """Replace the server's proxy samples by the pool's, with images resized to fit.

    The pool's labels may belong to another task. Samples whose label is a class number of the federation are kept and others dropped,
    so that code that needs a label (an attack's target) gets one that the net knows.
    """
    if federation.kind not in CLASSES or pool.kind not in CLASSES:
        raise FedTailorError(
            f"Proxy data is of classes, but the task is {federation.kind} and that of data.proxy {pool.kind}."
        )
    rows = np.flatnonzero(pool.y < federation.classes)
    pixels, own = encoded_samples(pool, federation.description), tuple(federation.shape)
    found = tuple(pixels.shape[1:])
    images = len(own) == len(found) == 3 and own[0] == found[0] and pixels.dtype == np.uint8
    if found != own and not images:
        raise FedTailorError(
            f"The proxy data has samples of shape {found} ({pixels.dtype}) where the clients have {own}; only images with as many channels "
            "can be resized to fit. Choose another data.proxy."
        )
    pieces = np.split(rows, range(PIECE, len(rows), PIECE))  # the pool may be a file larger than memory
    x = torch.cat([_fitted(torch.from_numpy(np.array(pixels[piece])), own) for piece in pieces])
    return replace(federation, server=Split(x, torch.from_numpy(pool.y[rows].astype(np.int64))))


def _fitted(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(x.shape[1:]) == shape:
        return x
    resized = interpolate(x.float(), shape[1:], mode="bilinear", antialias=True, align_corners=False)
    return resized.round_().clamp_(0, 255).to(torch.uint8)
