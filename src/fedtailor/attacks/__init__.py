"""What hostile clients do in a simulation, one file per attack; importing this package registers them all. No deployment can ask for it."""

import importlib
import pkgutil

from fedtailor.attacks.attackers import Attackers
from fedtailor.attacks.base import Attack, attacks

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Attack", "Attackers", "attacks"]
