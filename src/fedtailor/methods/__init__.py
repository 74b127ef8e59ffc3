"""One file per method. A new file in this folder is imported automatically; it only has to use `@methods.register`."""

import importlib
import pkgutil

from fedtailor.methods.base import Method, methods

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

register, find = methods.register, methods.find  # so that the package `ft.methods` can be used like the registry

__all__ = ["Method", "find", "methods", "register"]
