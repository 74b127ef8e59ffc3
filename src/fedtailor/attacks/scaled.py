from __future__ import annotations

from dataclasses import dataclass

from fedtailor.attacks.base import Attack, attacks
from fedtailor.registry import option


@attacks.register("scaled", "model-replacement")
@dataclass(frozen=True)
class Scaled(Attack):
    """Send the change many times over: times n / m with m of n clients, it takes the mean's place (Bagdasaryan et al., 2020)."""

    paper = "Bagdasaryan et al., How To Backdoor Federated Learning"
    year = 2020

    factor: float = option(10.0, "attackers multiply the change that they send by it", above=0)
