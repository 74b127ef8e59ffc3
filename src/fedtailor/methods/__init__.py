"""One file per method. A new file in this folder is found by itself: it only has to use `@methods.register`."""

import importlib
import pkgutil

from fedtailor.methods.base import Method, methods

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

register, find = methods.register, methods.find  # so that `ft.methods`, this folder, serves as the registry does

__all__ = ["Method", "find", "methods", "register"]
