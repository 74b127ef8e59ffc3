"""Checks of a site's reply before it touches the server's model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedtailor.data.federation import validation_count
from fedtailor.engines.base import Outcome
from fedtailor.engines.work import Work
from fedtailor.learning import Payload
from fedtailor.learning.metrics import Metric
from fedtailor.learning.scoring import Score
from fedtailor.privacy.secure_sum.entries import WEIGHT

DtypeAndShape = tuple[str, tuple[int, ...]]
Form = tuple[tuple[str, str, tuple[int, ...]], ...]  # name, dtype and shape of each entry
Call = tuple[Work, tuple[str, ...]]  # work, and the names of the entries sent

ANY = -1  # a dimension that may differ from client to client


@dataclass
class ReplyChecks:
    """Decides which replies of one call are usable.

    An entry with the name of one that was sent down must have its shape and dtype. The others can only be compared with each other:
    a reply whose names, dtypes and shapes differ from those of the majority is refused. A first dimension of at most `few` may differ:
    it can count a client's classes, or the models it was sent. The majority's form is remembered and breaks ties in later rounds.
    """

    up: tuple[str, ...]  # what the method declares
    sizes: Mapping[int, tuple[int, int]]  # client -> its training and test samples, by its own description
    few: int  # the number of classes or of clients, whichever is larger
    metrics: tuple[Metric, ...] = ()  # of a score, beside accuracy
    summed: tuple[str, ...] = ()  # entries in a secure sum: they arrive masked, as int64, and a masked weight with them
    validation: float = 0.0  # share of its training samples that a client holds out
    known: dict[Call, Form] = field(default_factory=dict)  # the majority's form so far

    def refused(
        self, work: Work, outcomes: Mapping[int, Outcome], sent: Mapping[int, Payload], trusted: Iterable[Payload] = ()
    ) -> dict[int, str]:
        """Return client -> why its reply must not be used. `trusted` are earlier replies to the same call, which vote too."""
        faults = {i: self._fault(work, i, outcome, sent.get(i, {})) for i, outcome in outcomes.items()}
        refused = {i: fault for i, fault in faults.items() if fault}
        given = {i: tuple(sorted(sent.get(i, {}))) for i in outcomes}
        for names in set(given.values()):  # clients that were sent other entries may reply with others
            peers = [i for i in outcomes if given[i] == names and i not in refused]
            forms = {i: form(outcomes[i].up, self.few) for i in peers}
            refused |= self._outvoted((work, names), forms, [form(payload, self.few) for payload in trusted])
        return refused

    def _outvoted(self, call: Call, forms: Mapping[int, Form], trusted: list[Form]) -> dict[int, str]:
        votes = Counter([*forms.values(), *trusted])
        if not votes:
            return {}
        usual = self.known[call] = max(votes, key=lambda form: (votes[form], form == self.known.get(call)))
        usual_form = f"where most sites send {shown(usual)}"
        return {i: f"it sends {shown(own)} {usual_form}" for i, own in forms.items() if own != usual}

    def _sane(self, score: Score, train: int, test: int) -> bool:
        if not sane(score, test, self.metrics) or (score.validation is None) != (not self.validation):
            return False
        held = validation_count(train, self.validation)
        return score.validation is None or sane(score.validation, held, self.metrics)

    def _fault(self, work: Work, client: int, outcome: Outcome, sent: Payload) -> str:
        train, test = self.sizes[client]
        undeclared = sorted(set(outcome.up) - set(self.up) - ({WEIGHT} if self.summed else set()))
        if undeclared:
            return f"it sends {', '.join(map(repr, undeclared[:3]))}, which its method does not declare"
        for name, tensor in outcome.up.items():
            if name in self.summed:
                if tensor.dtype != torch.int64:
                    return f"its '{name}' is {_spelled(dtype_and_shape(tensor))} where a masked one is expected"
            elif name in sent and dtype_and_shape(tensor) != dtype_and_shape(sent[name]):
                return f"its '{name}' is {_spelled(dtype_and_shape(tensor))} where {_spelled(dtype_and_shape(sent[name]))} was sent to it"
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return f"its '{name}' holds values that are not finite"
        if work.trains and not 0 < outcome.samples <= train:
            return f"it says it trained on {outcome.samples} samples, but has {train} by its description at the start"
        if outcome.score is not None and not self._sane(outcome.score, train, test):
            return f"its score is impossible ({outcome.score})"
        if outcome.score is not None and not work.scores:
            return "it sends a score that was not requested"
        return "it sends no score" if work.scores and outcome.score is None and test else ""


def sane(score: Score, samples: int, metrics: Sequence[Metric] = ()) -> bool:
    """Return whether the numbers of a score are possible; a metric may be undefined (NaN)."""
    counted = score.total == samples and 0 <= score.correct <= samples and score.loss >= 0 and math.isfinite(score.loss)
    expected = {m.name: m.bounds for m in metrics if m.name != "accuracy"} if samples else {}
    if not counted or score.values.keys() != expected.keys():
        return False
    return all(math.isnan(v) or expected[name][0] <= v <= expected[name][1] for name, v in score.values.items())


def dtype_and_shape(tensor: Tensor) -> DtypeAndShape:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def form(payload: Payload, few: int) -> Form:
    return tuple(sorted((name, dtype_and_shape(t)[0], _shape(t, few)) for name, t in payload.items()))


def shown(form: Form) -> str:
    return ", ".join(f"'{name}' ({_spelled((dtype, shape))})" for name, dtype, shape in form) or "nothing"


def _shape(tensor: Tensor, few: int) -> tuple[int, ...]:
    first, rest = tuple(tensor.shape[:1]), tuple(tensor.shape[1:])
    return (ANY, *rest) if first and first[0] <= few else (*first, *rest)


def _spelled(form: DtypeAndShape) -> str:
    return f"{form[0]} {'×'.join('?' if n == ANY else str(n) for n in form[1]) or 'number'}"
