"""Private steps at a real site: randomness from a secret that never leaves it, and a record of what was spent that no server can undo.

A server may ask for a round again, after a resume or in order to learn more. If the site has the same state and receives the same payload,
it draws the same batches and noise and sends the same reply, which reveals nothing new. If anything differs, it draws others, and spends
its budget once more: the difference of two replies with the same noise would be free of noise.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.files import refuse_readable, replace_text
from fedtailor.privacy.noise import secret_normal, secret_uniform


class SecretDraws:
    """Draws from SHAKE-256 of a key that only the site knows."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.count = 0

    def uniform(self, count: int) -> Tensor:
        return secret_uniform(self.key, self._next(), count)

    def normal(self, count: int, dtype: torch.dtype) -> Tensor:
        return secret_normal(self.key, self._next(), count).to(dtype)

    def _next(self) -> str:
        self.count += 1
        return f" draw {self.count}"


@dataclass
class Spending:
    """A site's secret, and the steps it has spent by piece of work, in two files of its folder."""

    file: Path
    secret: bytes
    steps: dict[str, int]

    @classmethod
    def open(cls, folder: Path) -> Spending:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "private_steps.json"
        try:
            steps = {str(k): int(v) for k, v in json.loads(file.read_text()).items()} if file.exists() else {}
        except (ValueError, TypeError, AttributeError):
            raise FedTailorError(f"'{file}', which says what this site has spent of its privacy, is damaged.") from None
        return cls(file, site_secret(folder / "noise.key"), steps)

    def name(self, moment: int, *tensors: Mapping[str, Tensor]) -> str:
        """Return the name of a piece of work: that of its moment, and of all that the server sent and the site keeps."""
        digest = hashlib.blake2b(key=self.secret, digest_size=16)
        for kind in tensors:
            for name, tensor in sorted(kind.items()):
                array = tensor.detach().cpu().contiguous().numpy()
                digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        return f"{moment} {digest.hexdigest()}"

    def draws(self, name: str) -> SecretDraws:
        return SecretDraws(self.secret + name.encode())

    def elsewhere(self, name: str) -> int:
        """Return the steps spent by all other pieces of work."""
        return sum(steps for other, steps in self.steps.items() if other != name)

    def spend(self, name: str, steps: int) -> None:
        """Record the steps of a piece of work, before it begins: nothing is spent that was not recorded."""
        self.steps[name] = steps
        replace_text(self.file, json.dumps(self.steps))


def site_secret(file: Path) -> bytes:
    """Return the secret in a file that only the site's user can read; make one if there is none."""
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
            new.write(secrets.token_bytes(32))
    refuse_readable(file, "the secret of this site's noise")
    secret = file.read_bytes()
    if len(secret) != 32:
        raise FedTailorError(f"'{file}', which holds the secret of this site's noise, is damaged.")
    return secret
