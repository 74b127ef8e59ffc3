"""The table `privacy` of a config: a rule for each name that leaves a client, and how much privacy is asked for.

    [privacy]
    body = "dp"          # averaged with differential privacy
    head = "refuse"      # may not leave: a run whose method sends it stops
    epsilon = 2

With any rule given, everything without one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedtailor.errors import FedTailorError, nearest
from fedtailor.methods import Method, methods
from fedtailor.privacy.sample_dp import SampleOptions
from fedtailor.registry import build, check, option, options

WORDS = ("plain", "refuse", "dp", "secure-sum", "robust")
ALONE = ("plain", "refuse")  # rules that no other is combined with
PATTERN = re.compile(r"(?P<word>[a-z][a-z-]*)(?:\((?P<arguments>[^()]*)\))?")

# What leaves a site beside the entries of a method's payload. In a simulation these are the researcher's own instruments.
CHANNELS = {
    "samples": "how many samples a site has",
    "loss": "its mean training loss",
    "scores": "how well its personal model does on its own test samples",
    "logged": "numbers that the method logs at a site",
    "hello": "what a site sends once before the first round, such as its label shares",
}


@dataclass(frozen=True)
class Rule:
    """What happens to one entry: `plain`, `refuse`, or some of dp, secure-sum and robust(NAME), joined by +.

    >>> rule = Rule.read("body", "dp+secure-sum")
    >>> rule.dp, rule.secure_sum, rule.robust, str(rule)
    (True, True, '', 'dp+secure-sum')
    >>> Rule.read("body", "robust(trimmed)").robust
    'trimmed'
    """

    arguments: Mapping[str, str]  # by word

    @classmethod
    def read(cls, name: str, text: Any) -> Rule:
        """Read the rule of an entry as a person writes it."""
        parts = [PATTERN.fullmatch(part.strip()) for part in text.split("+")] if isinstance(text, str) else [None]
        found = {part["word"]: (part["arguments"] or "").replace(" ", "") for part in parts if part}
        wrong = [word for word in found if word not in WORDS]
        if None in parts or wrong or len(found) < len(parts):
            near = nearest(wrong[0], WORDS) if wrong else ""
            raise FedTailorError(
                f"privacy.{name} = {text!r} is no rule.{near} Rules: plain, refuse, dp, secure-sum and robust(NAME)."
            )
        rule = cls(found)
        if len(found) > 1 and (set(found) & set(ALONE) or "robust" in found):
            raise FedTailorError(f"privacy.{name} = {text!r} contradicts itself: {_why_alone(found)} Give one rule.")
        empty = [word for word, given in found.items() if (word == "robust") != bool(given) and word != "dp"]
        if empty:
            how = "robust needs the name of a mean, such as robust(median)." if empty == ["robust"] else ""
            raise FedTailorError(
                f"privacy.{name} = {text!r} is no rule. {how or f'{empty[0]} has nothing in brackets.'}"
            )
        return rule

    @property
    def plain(self) -> bool:
        return "plain" in self.arguments

    @property
    def refused(self) -> bool:
        return "refuse" in self.arguments

    @property
    def dp(self) -> bool:
        return "dp" in self.arguments

    @property
    def secure_sum(self) -> bool:
        return "secure-sum" in self.arguments

    @property
    def robust(self) -> str:
        """The name of the robust mean; empty if the rule is another."""
        return self.arguments.get("robust", "")

    @property
    def averages(self) -> bool:
        """Whether it is a rule for a mean, so that the server must not look at single replies."""
        return self.dp or self.secure_sum or bool(self.robust)

    def __str__(self) -> str:
        return "+".join(f"robust({given})" if word == "robust" else word for word, given in self.arguments.items())


def _why_alone(found: Mapping[str, str]) -> str:
    if "robust" in found:
        return (
            "a robust mean looks at single replies, which secure-sum hides, and its sensitivity is not the clip of dp."
        )
    return f"{next(word for word in found if word in ALONE)} stands alone."


@dataclass(frozen=True)
class DPOptions:
    """How much differential privacy a run has; these belong to all its protected entries together."""

    epsilon: float | None = option(None, "ε that the whole run may spend; the noise is solved for", above=0.0)
    delta: float | None = option(None, "δ of (ε, δ) (none: N^−1.1 for N clients)", above=0.0, at_most=0.5)
    noise: float | None = option(
        None,
        "noise multiplier z: noise of z times the clip (none: solved for; with epsilon as well, that is the budget)",
        at_least=0.0,
    )
    clip: float = option(1.0, "longest change of a client, over all protected entries together", above=0.0)
    quantile: float | None = option(
        None,
        "share of clients whose change is left whole, which the clip adapts to (none: it stays)",
        above=0.0,
        at_most=0.99,
    )

    def __post_init__(self) -> None:
        check(self, "privacy")


@dataclass(frozen=True)
class SumOptions:
    """How entries with the rule secure-sum are added."""

    bound: float = option(1024.0, "largest absolute value of a number in a secure sum", above=0.0)
    threshold: float = option(
        2 / 3, "more than this share of a round's clients has to stay for a secure sum", at_least=0.5, at_most=0.99
    )

    def __post_init__(self) -> None:
        check(self, "privacy")


@dataclass(frozen=True)
class Privacy:
    """The rules of a run, by the name of an entry or channel, its differential privacy and its secure sums."""

    rules: Mapping[str, Rule]
    dp: DPOptions = field(default_factory=DPOptions)
    samples: SampleOptions | None = None  # private steps at the clients, whatever the rules
    sums: SumOptions = field(default_factory=SumOptions)

    @classmethod
    def read(cls, table: Any) -> Privacy | None:
        """Read a config's table; None if there is none, or an empty one: then nothing is protected."""
        if table is None or table == {} or isinstance(table, Privacy):
            return table or None
        if not isinstance(table, Mapping):
            raise FedTailorError(
                f"privacy = {table!r} is no table of rules: give one by name, such as privacy.body=dp."
            )
        of_samples = [o.name for o in options(SampleOptions)]
        known = [*of_samples, *(o.name for kind in OPTIONS.values() for o in options(kind))]
        rules = {str(name): Rule.read(str(name), rule) for name, rule in table.items() if name not in known}
        _check_names(rules)
        asked = {name: value for name, value in table.items() if name in of_samples}
        samples = build(SampleOptions, asked, "privacy") if asked else None
        given = {word: _given(word, table, rules) for word in OPTIONS}
        dp = build(DPOptions, {**given["dp"], **_in_brackets(rules, given["dp"])}, "privacy")
        sums = build(SumOptions, given["secure-sum"], "privacy")
        return cls({name: _bare(rule) for name, rule in rules.items()}, dp, samples, sums)

    def values(self) -> dict[str, Any]:
        """Return the table as a config spells it out."""
        rules = {name: str(rule) for name, rule in self.rules.items()}
        words = {word for rule in self.rules.values() for word in rule.arguments}
        given = (asdict(self.dp) if "dp" in words else {}) | (asdict(self.sums) if "secure-sum" in words else {})
        given |= asdict(self.samples) if self.samples else {}
        return rules | {name: value for name, value in given.items() if value is not None}

    def of(self, method: Method) -> dict[str, Rule]:
        """Return the rule of each entry that a method sends; refuse a run in which one has none, or one that it cannot have.

        With no rule at all, there is nothing to say by name: private steps protect every entry.
        """
        if not self.rules:
            return {}
        missing = [name for name in method.up if name not in self.rules]
        if missing:
            raise FedTailorError(
                f"{method.name} sends {', '.join(method.up)}, and with privacy each needs a rule: give one for {', '.join(missing)}, such "
                f"as privacy.{missing[0]}=refuse (may not leave) or privacy.{missing[0]}=plain (leaves unprotected)."
            )
        own = {name: self.rules[name] for name in method.up}
        for name, rule in own.items():
            if rule.averages and (name not in method.averaged or name in method.individually):
                able = ", ".join(n for n in method.averaged if n not in method.individually)
                raise FedTailorError(
                    f"privacy.{name} = {rule} is for an entry that the server only averages, but {method.name} uses each client's {name} "
                    f"by itself. It {f'only averages {able}' if able else 'averages nothing'}."
                )
            if rule.secure_sum and method.mean_by == "own weights":
                raise FedTailorError(
                    f"privacy.{name} = {rule}: {method.name} weighs clients by what each of them sends, which a secure sum hides. "
                    "It is for means by samples or by clients."
                )
        self._check_summed({name: rule for name, rule in own.items() if rule.dp or rule.secure_sum})
        protected = [name for name, rule in own.items() if rule.dp]
        if protected and self.dp.epsilon is None and self.dp.noise is None:
            raise FedTailorError(
                f"privacy.{protected[0]} = dp needs an amount: privacy.epsilon=2, say, or the noise itself, privacy.noise=1."
            )
        return own

    def _check_summed(self, own: Mapping[str, Rule]) -> None:
        """Refuse what dp inside a secure sum cannot do: changes are clipped together, by clients who know the run's config only."""
        both = [name for name, rule in own.items() if rule.dp and rule.secure_sum]
        if not both:
            return
        said = f"privacy.{both[0]} = {own[both[0]]}"
        others = [name for name in own if name not in both]
        if others:
            raise FedTailorError(
                f"{said} beside privacy.{others[0]} = {own[others[0]]}: what is clipped together is summed together. Give both one rule."
            )
        if self.dp.quantile is not None:
            raise FedTailorError(
                f"{said}: privacy.quantile needs the lengths of changes, which a secure sum hides. Leave it out, and give privacy.clip."
            )
        if self.dp.epsilon is not None and self.dp.delta is None:
            raise FedTailorError(
                f"{said} with privacy.epsilon needs privacy.delta too, such as 0.001: each client solves for the noise by itself, and does "
                "not know how many clients there are."
            )

    def summed(self, method: Method) -> tuple[str, ...]:
        """Return the entries of a method whose sum is all that the server sees."""
        return tuple(name for name, rule in self.of(method).items() if rule.secure_sum)

    def allows(self, channel: str) -> bool:
        """Return whether a channel beside the payload may leave a site."""
        return channel in self.rules and self.rules[channel].plain


OPTIONS: dict[str, type] = {"dp": DPOptions, "secure-sum": SumOptions}  # by the word of the rule that they belong to


def _given(word: str, table: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the options of a rule that a table gives; refuse them where no entry has the rule."""
    names = [o.name for o in options(OPTIONS[word])]
    given = {name: value for name, value in table.items() if name in names}
    if given and not any(word in rule.arguments for rule in rules.values()):
        raise FedTailorError(
            f"privacy.{next(iter(given))} needs an entry with the rule {word}, such as privacy.body={word}."
        )
    return given


def _in_brackets(rules: Mapping[str, Rule], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of dp(epsilon=2), which is short for both where one name is protected."""
    texts = {name: rule.arguments["dp"] for name, rule in rules.items() if rule.arguments.get("dp")}
    if not texts:
        return {}
    name, text = next(iter(texts.items()))
    if sum(rule.dp for rule in rules.values()) > 1:
        raise FedTailorError(
            f"privacy.{name} = 'dp({text})' is short for a run that protects one entry. ε belongs to all protected entries together: write "
            "privacy.epsilon=…, and dp for each."
        )
    found: dict[str, Any] = {}
    for word in text.split(","):
        key, sign, value = (part.strip() for part in word.partition("="))
        if not sign or key in given:
            raise FedTailorError(
                f"privacy.{name} = 'dp({text})' "
                + (f"and privacy.{key} say the same twice." if sign else "is no rule: write dp(epsilon=2).")
            )
        found[key] = value
    return found


def _bare(rule: Rule) -> Rule:
    """Return a rule without the options in its brackets, once they are the run's."""
    return Rule({word: given if word == "robust" else "" for word, given in rule.arguments.items()})


def _check_names(rules: Mapping[str, Rule]) -> None:
    """Refuse a name that no method sends, and a rule that a channel cannot have."""
    sent = sorted({name for method in methods.classes.values() for name in method.up})
    for name, rule in rules.items():
        if name in CHANNELS:
            if rule.averages:
                raise FedTailorError(f"privacy.{name} = {rule} is for an entry of a method; {name} is plain or refuse.")
        elif name not in sent:
            every = (*OPTIONS.values(), SampleOptions)
            known = [*sent, *CHANNELS, *(o.name for kind in every for o in options(kind))]
            raise FedTailorError(
                f"privacy.{name}: no method sends '{name}'.{nearest(name, known)} Names: {', '.join(sent)}; beside them "
                f"{', '.join(CHANNELS)}."
            )
