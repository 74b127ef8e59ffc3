"""Neural networks, each cut into a body and a head."""

from __future__ import annotations

import importlib
import pkgutil

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.build import build_net
from fedtailor.nets.net import Net, Part

for _module in pkgutil.iter_modules(__path__):  # every net registers itself when its file is imported
    importlib.import_module(f"{__name__}.{_module.name}")

register, find = nets.register, nets.find  # so that the package `ft.nets` can be used like the registry

__all__ = ["Architecture", "Net", "Part", "Task", "build_net", "find", "nets", "register"]
