"""FedTailor: personalized federated learning, where every client ends with a model cut to fit it.

import fedtailor as ft

federation = ft.Federation.from_arrays(x, y, clients=20, partition="dirichlet", beta=0.1)
simulation = ft.Simulation(federation, "fedrep", net="cnn", rounds=20).run()
model = simulation.personal(3)          # client 3's own model, a plain torch module
"""

from importlib.metadata import version

from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config
from fedtailor.experiment.simulation import Simulation
from fedtailor.learning import Protocol
from fedtailor.methods import Method, methods
from fedtailor.nets import Net, nets

__version__ = version("fedtailor")

__all__ = ["Config", "FedTailorError", "Federation", "Method", "Net", "Protocol", "Simulation", "methods", "nets"]
