"""A site's shares of the noise in secure sums, from a secret that never leaves it, and a record that no server can undo.

A round that is asked for again gets the same share if the change is the same. Two sums with the same shares over different clients would
differ by one client's change with its own share alone, so a share is revealed with one set of clients only. If anything else differs, the
share is another, and the sum is a further one of those that ε allows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedtailor.deploy.secret_steps import site_secret
from fedtailor.errors import FedTailorError
from fedtailor.files import replace_text
from fedtailor.privacy.noise import secret_normal
from fedtailor.privacy.secure_sum.terms import Refused


@dataclass(frozen=True)
class SecretShares:
    """Shares from the secret `noise.key` of a folder; `noise_shares.json` has the sums that they were added to."""

    folder: Path

    def normal(self, client: int, round: int, change: Tensor, deviation: float, most: int) -> Tensor:
        secret, sums = site_secret(self.folder / "noise.key"), self._sums()
        content = change.numpy().tobytes() + deviation.hex().encode()
        name = f"{round} {hashlib.blake2b(content, key=secret, digest_size=16).hexdigest()}"
        if name not in sums and len(sums) >= most:
            raise Refused(
                f"this site has added its changes to {len(sums)} sums, which is all that privacy.epsilon allows"
            )
        survivors = sums.pop(name, [])
        self._write({**sums, name: survivors})  # last: the one under way
        return secret_normal(secret, f"share {name}", change.numel())

    def reveal(self, client: int, survivors: Sequence[int]) -> None:
        sums = self._sums()
        if not sums:
            raise Refused(f"'{self.file}', which says which sum is under way, is gone")
        name = list(sums)[-1]
        if sums[name] not in ([], list(survivors)):
            raise Refused(
                "this site has revealed the sum of these changes with other clients before, and the difference would tell of one"
            )
        self._write({**sums, name: list(survivors)})

    def _sums(self) -> dict[str, list[int]]:
        """Return the sums that have a share of this site, and the clients with which each was revealed."""
        try:
            text = self.file.read_text() if self.file.exists() else "{}"
            return {str(name): [int(i) for i in survivors] for name, survivors in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError):
            raise FedTailorError(
                f"'{self.file}', which says what this site has spent of its privacy, is damaged."
            ) from None

    def _write(self, sums: dict[str, list[int]]) -> None:
        replace_text(self.file, json.dumps(sums))

    @property
    def file(self) -> Path:
        return self.folder / "noise_shares.json"
