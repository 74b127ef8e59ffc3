"""Which entries have a robust mean: by a rule of their own, robust(NAME), or by the run's option `robust`."""

from __future__ import annotations

from collections.abc import Mapping

from fedtailor.errors import FedTailorError
from fedtailor.methods import Method
from fedtailor.privacy.rules import Rule
from fedtailor.robust import RobustMean, robust_means


def robust_rules(method: Method, rules: Mapping[str, Rule], robust: RobustMean | None) -> dict[str, RobustMean]:
    """Return the robust mean of each entry that has one; an entry's own rule goes before the run's.

    Refuses a run's robust mean for a method that does not average, or beside a rule that hides single replies.
    """
    own = {name: _read(name, rule.robust) for name, rule in rules.items() if rule.robust}
    if robust is None or not method.up:
        return own
    if not method.averaged:
        raise FedTailorError(
            f"robust = {robust.name} needs a method whose server averages, but {method.name} uses each client's "
            f"{' and '.join(method.up)} by itself. Leave robust out, or take another method."
        )
    hidden = [name for name in method.averaged if name in rules and (rules[name].secure_sum or rules[name].dp)]
    if hidden:
        raise FedTailorError(
            f"robust = {robust.name} looks at each reply, which privacy.{hidden[0]} = {rules[hidden[0]]} does not allow. Leave one of "
            "them out."
        )
    return {name: own.get(name, robust) for name in method.averaged}


def unprotected(method: Method, means: Mapping[str, RobustMean]) -> list[str]:
    """Return the entries that hostile clients can still move: those that the server does not only average."""
    return [name for name in method.up if name not in means or name in method.individually]


def _read(name: str, text: str) -> RobustMean:
    """Read what is in the brackets of robust(trimmed, share=0.3)."""
    which, *options = (word.strip() for word in text.split(","))
    pairs = [word.partition("=") for word in options]
    wrong = [key for key, sign, _ in pairs if not sign]
    if wrong:
        raise FedTailorError(
            f"privacy.{name} = 'robust({text})' is no rule: options are key=value, such as robust(trimmed, share=0.3)."
        )
    return robust_means.build(which, {key.strip(): value.strip() for key, _, value in pairs})
