"""The building blocks of methods: train a part, embed, class means, weighted mean, pull, mix."""

from fedtailor.learning.descent import Descent
from fedtailor.learning.losses import Loss, near_prototypes, prototype_distance
from fedtailor.learning.mixing import Payload, Reply, State, mixed, weighted_mean
from fedtailor.learning.participants import Client, Participant
from fedtailor.learning.protocol import Protocol
from fedtailor.learning.prototypes import class_means, mean_of_means
from fedtailor.learning.server import Server
from fedtailor.nets.net import Pull

__all__ = [
    "Client",
    "Descent",
    "Loss",
    "Participant",
    "Payload",
    "Protocol",
    "Pull",
    "Reply",
    "Server",
    "State",
    "class_means",
    "mean_of_means",
    "mixed",
    "near_prototypes",
    "prototype_distance",
    "weighted_mean",
]
