"""Where the noise of differential privacy comes from: a named stream in a simulation, a secret of the server in a deployment."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.files import refuse_readable, replace_private
from fedtailor.randomness import torch_stream


class Normal(Protocol):
    """Standard normal numbers for the sum `total`, named by round and purpose: the same ones when a round is repeated."""

    @property
    def repeated(self) -> int:
        """How often a round was released again with another sum."""
        ...

    def __call__(self, round: int, purpose: str, total: Tensor) -> Tensor: ...


class NamedNoise:
    """The noise of a simulation. Whoever knows the seed can take it off again: it protects nothing but the experiment's honesty."""

    repeated = 0

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, round: int, purpose: str, total: Tensor) -> Tensor:
        generator = torch_stream(self.seed, "privacy", round, purpose)
        return torch.randn(total.shape, generator=generator, dtype=torch.float32)


class SecretNoise:
    """The noise of a deployment, from a secret in a file that only the server's user can read.

    A round that is repeated after a resume gets the same noise if its sum is the same, so that nothing new is published. If another
    site has replied, the sum is another: the same noise would show the difference. It then has noise of its own, and counts as a
    further release.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secret, self.released = _read(path)

    @property
    def repeated(self) -> int:
        rounds: dict[str, int] = {}
        for key, digests in self.released.items():
            round = key.partition(" ")[0]
            rounds[round] = max(rounds.get(round, 0), len(digests))
        return sum(count - 1 for count in rounds.values())

    def __call__(self, round: int, purpose: str, total: Tensor) -> Tensor:
        content = total.detach().cpu().double().contiguous().numpy().tobytes()
        digest = hashlib.blake2b(content, key=self.secret, digest_size=16).hexdigest()
        key = f"{round} {purpose}"
        if digest not in self.released.setdefault(key, []):
            self.released[key].append(digest)
            _write(self.path, self.secret, self.released)  # before it can be published
        return secret_normal(self.secret, f"{key} {digest}", total.numel()).reshape(total.shape)

    def sampling_seed(self) -> int:
        """Return a seed for the sampling of sites, which they cannot compute either."""
        return int.from_bytes(hashlib.blake2b(b"sampling", key=self.secret, digest_size=7).digest())


def secret_uniform(secret: bytes, name: str, count: int) -> Tensor:
    """Return numbers in (0, 1) from SHAKE-256 of a secret and a name, which nobody without the secret can tell from others."""
    stream = hashlib.shake_256(secret + name.encode()).digest(8 * count)
    bits = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
    return torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-53)


def secret_normal(secret: bytes, name: str, count: int) -> Tensor:
    """Return standard normal numbers from a secret and a name."""
    return torch.special.ndtri(secret_uniform(secret, name, count))


def _read(path: Path) -> tuple[bytes, dict[str, list[str]]]:
    """Read the secret and what was released with it; make both if there is no file."""
    if not path.exists():
        secret = secrets.token_bytes(32)
        _write(path, secret, {})
        return secret, {}
    refuse_readable(path, "the secret of the noise")
    try:
        said = json.loads(path.read_text())
        secret = bytes.fromhex(said["secret"])
        released = {str(key): [str(digest) for digest in digests] for key, digests in said["released"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FedTailorError(
            f"'{path}', which holds the secret of the noise, is damaged. Without it this run cannot go on: its noise would differ."
        ) from None
    if len(secret) != 32:
        raise FedTailorError(f"'{path}' holds no secret of 32 bytes.")
    return secret, released


def _write(path: Path, secret: bytes, released: dict[str, list[str]]) -> None:
    replace_private(path, json.dumps({"secret": secret.hex(), "released": released}))
