"""FedTailor: personalized federated learning, where every client ends with a model cut to fit it.

>>> import fedtailor as ft
>>> federation = ft.Federation.from_arrays(x, y, clients=20, partition="dirichlet", beta=0.1)
>>> run = ft.run(federation, "fedrep", rounds=20, out="runs/b")  # or ft.compare(federation, ["local", "fedavg", "fedrep"])
>>> model = run.personal(3)  # client 3's own model: model.predict(new), model.module
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtailor import methods, nets
    from fedtailor.api.audit import audit
    from fedtailor.api.recommend import recommend
    from fedtailor.api.run import Run, run
    from fedtailor.api.study import Study, compare, load
    from fedtailor.api.tune import tune
    from fedtailor.data.federation import Federation
    from fedtailor.data.partition import partitions
    from fedtailor.errors import FedTailorError
    from fedtailor.experiment.callbacks import Callback, EarlyStopping
    from fedtailor.experiment.config import Config
    from fedtailor.experiment.progress import Progress
    from fedtailor.experiment.simulation import Simulation
    from fedtailor.experiment.tracking import Tracking
    from fedtailor.learning import Protocol
    from fedtailor.methods import Method
    from fedtailor.nets import Net
    from fedtailor.registry import among, between, log_between, option

    __version__: str

__all__ = [
    "Callback",
    "Config",
    "EarlyStopping",
    "FedTailorError",
    "Federation",
    "Method",
    "Net",
    "Progress",
    "Protocol",
    "Run",
    "Simulation",
    "Study",
    "Tracking",
    "among",
    "audit",
    "between",
    "compare",
    "load",
    "log_between",
    "methods",
    "nets",
    "option",
    "partitions",
    "recommend",
    "run",
    "tune",
]

_HOMES = {
    "Callback": "experiment.callbacks",
    "Config": "experiment.config",
    "EarlyStopping": "experiment.callbacks",
    "FedTailorError": "errors",
    "Federation": "data.federation",
    "Method": "methods",
    "Net": "nets",
    "Progress": "experiment.progress",
    "Protocol": "learning",
    "Run": "api.run",
    "Simulation": "experiment.simulation",
    "Study": "api.study",
    "Tracking": "experiment.tracking",
    "among": "registry",
    "audit": "api.audit",
    "between": "registry",
    "compare": "api.study",
    "load": "api.study",
    "log_between": "registry",
    "option": "registry",
    "partitions": "data.partition",
    "recommend": "api.recommend",
    "run": "api.run",
    "tune": "api.tune",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: PyTorch takes seconds to import, and not every name needs it."""
    if name == "__version__":
        return import_module("importlib.metadata").version("fedtailor")
    if name in ("methods", "nets"):  # packages that are also registries: ft.methods.register
        return import_module(f"fedtailor.{name}")
    if name in _HOMES:
        return getattr(import_module(f"fedtailor.{_HOMES[name]}"), name)
    if name[:1].isupper() and name in (classes := _method_classes()):
        return classes[name]
    raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", *_method_classes()])


def _method_classes() -> dict[str, Any]:
    """Return every method's class by its name, as in ft.FedRep."""
    found = import_module("fedtailor.methods").methods.classes.values()
    return {cls.__name__: cls for cls in found}
