"""What a curious server could learn from a client's messages, so that a site can decide which methods to take part in."""

from __future__ import annotations

from fedtailor.methods import Method
from fedtailor.privacy.rules import Rule

TRAINED = "their change reveals much of the gradients, from which labels, single samples and who was in the data can be guessed"
MEANS = "the mean features of each class: how the net sees its typical sample, which can be reconstructed with knowledge of the net"

LEARNT = {
    "model": f"all weights as the client trained them: {TRAINED}; it can also use the model itself",
    "body": f"the weights below the last layer as the client trained them: {TRAINED}; without the head it cannot predict",
    "head": "the last layer's weights as the client trained them: which labels the client has, and about how many of each",
    "means": MEANS,
    "prototypes": MEANS,
    "squares": "the mean squared features of each class: how much the client's samples of a class vary",
    "counts": "how many samples of each class the client has",
    "classes": "which classes the client has",
    "labels": "which classes the client has, or the proportion of each",
    "h": "the mean features of each class times its proportion: reveals the proportions, and the means again",
    "variance": "one number: how much the client's features vary",
    "fisher": "one number: how sensitive the client's loss is to its weights",
    "gains": "how much better or worse than its own model other clients' models are on the client's samples: which clients are similar",
    "alpha": "one number: how much of the shared head suits the client",
    "mixed_means": "class means of features, mixed with the shared ones",
    "mixed_covariance": "how the client's features vary together, mixed with the shared covariance",
}


def learnt(method: type[Method]) -> dict[str, str]:
    """Return what each entry that a method's clients send reveals."""
    return {name: LEARNT[name] for name in method.up if name in LEARNT}


def still_learnt(name: str, rule: Rule) -> str:
    """Return what a curious server learns from an entry that a rule protects."""
    if rule.refused:
        return "nothing: it does not leave the client"
    if rule.secure_sum:
        return "the sum over clients alone" + (", with noise: at most what ε allows" if rule.dp else "")
    what = LEARNT.get(name, "what the method makes of the client's samples")
    if rule.dp:
        return f"the server, before it adds noise: {what}; everybody else, from the noisy mean: at most what ε allows"
    return what


def possible_rules(method: type[Method]) -> dict[str, str]:
    """Return the rules that each entry of a method can have; those of means only where the server does nothing but average."""
    means = "dp, secure-sum, dp+secure-sum, robust(NAME), plain, refuse"
    return {name: means if name in method.averaged else "plain, refuse" for name in method.up}
