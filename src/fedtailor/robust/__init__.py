"""Robust means: what the server takes from replies of which some are hostile. One file each; importing this package registers them all."""

import importlib
import pkgutil

from fedtailor.robust.base import RobustMean, robust_means
from fedtailor.robust.changes import Changes

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Changes", "RobustMean", "robust_means"]
