"""What a site holds of the secure sum under way: a file that only its user can read, kept for as long as the sum needs it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedtailor.files import replace_private
from fedtailor.privacy.secure_sum.contributors import Contributors


@dataclass(frozen=True)
class SumFile:
    """The file, between two messages: a site killed in the middle of a sum goes on with it, or is one of its dropouts."""

    path: Path

    def load(self, sums: Contributors, client: int) -> None:
        """Take up the sum under way, if there is one. A file that cannot be read is none: the next sum has fresh keys."""
        try:
            sums.restore(client, json.loads(self.path.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.forget()

    def save(self, sums: Contributors, client: int) -> None:
        """Write what is held before a message leaves, so that no step can be repeated after a kill."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_private(self.path, json.dumps(sums.plain(client)))

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)
