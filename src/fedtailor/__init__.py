"""FedTailor: personalized federated learning, where every client ends with a model cut to fit it.

import fedtailor as ft

federation = ft.Federation.from_arrays(x, y, clients=20, partition="dirichlet", beta=0.1)
simulation = ft.Simulation(federation, "fedrep", net="cnn", rounds=20).run()
model = simulation.personal(3)          # client 3's own model, a plain torch module
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtailor.data.federation import Federation
    from fedtailor.errors import FedTailorError
    from fedtailor.experiment.config import Config
    from fedtailor.experiment.simulation import Simulation
    from fedtailor.learning import Protocol
    from fedtailor.methods import Method
    from fedtailor.nets import Net

    __version__: str

__all__ = ["Config", "FedTailorError", "Federation", "Method", "Net", "Protocol", "Simulation"]

_HOMES = {
    "Config": "experiment.config",
    "FedTailorError": "errors",
    "Federation": "data.federation",
    "Method": "methods",
    "Net": "nets",
    "Protocol": "learning",
    "Simulation": "experiment.simulation",
}


def __getattr__(name: str) -> Any:
    """Names come when they are asked for: PyTorch takes seconds to import, and not all that is in here needs it."""
    if name == "__version__":
        return import_module("importlib.metadata").version("fedtailor")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")
    return getattr(import_module(f"fedtailor.{_HOMES[name]}"), name)
