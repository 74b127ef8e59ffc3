"""One line of an audit: how well an attack did, beside what guessing reaches, and what that means in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Measurement = Literal["inversion", "labels", "membership", "canary"]

ASKED: dict[Measurement, str] = {
    "inversion": "Can single samples be reconstructed?",
    "labels": "Can one tell which classes a client has?",
    "membership": "Can one tell who was in the training data?",
    "canary": "How much privacy is lost at least?",
}
STRONG: dict[Measurement, float] = {"inversion": 0.9, "labels": 0.9, "membership": 0.7}
YES, IN_PART, NO = "yes", "in part", "not by this attack"


@dataclass(frozen=True)
class Finding:
    """The score of one attack with its 95 % interval; `chance` is what is reached without seeing anything.

    Scores are correlations with the true sample (inversion), areas under the ROC curve (labels, membership) or a lower bound on ε
    (canary). `promised` is the ε that the run claims, if any.
    """

    measurement: Measurement
    entry: str
    seen_by: str
    setting: str
    score: float
    low: float
    high: float
    chance: float
    details: Mapping[str, float] = field(default_factory=dict)
    promised: float | None = None

    @property
    def leaks(self) -> bool:
        """Whether the attack did better than chance, beyond what its interval allows."""
        return self.low > self.chance

    @property
    def broken(self) -> bool:
        """Whether the attack shows that the promised ε does not hold."""
        return self.measurement == "canary" and self.promised is not None and self.score > self.promised

    @property
    def verdict(self) -> str:
        """What the score means, in plain words."""
        if self.measurement == "canary":
            return self._bound()
        if not self.leaks:
            return NO
        return YES if self.score >= STRONG[self.measurement] else IN_PART

    def _bound(self) -> str:
        most = ", and no more can be shown" if self.score >= self.high else ""
        if self.broken:
            return f"THE PROMISE OF {self.promised:.3g} DOES NOT HOLD"
        if self.promised is None:
            return f"no ε is promised{most}"
        return f"below the promised {self.promised:.3g}"
