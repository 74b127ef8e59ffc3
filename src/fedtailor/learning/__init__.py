"""The vocabulary methods are written in: train a part, embed, class means, weighted mean, pull, mix."""

from fedtailor.learning.losses import Loss, near_prototypes, prototype_distance
from fedtailor.learning.mixing import Payload, Reply, State, mixed, weighted_mean
from fedtailor.learning.participants import Client, Participant, Server
from fedtailor.learning.protocol import Protocol
from fedtailor.learning.prototypes import class_means, mean_of_means

__all__ = [
    "Client",
    "Loss",
    "Participant",
    "Payload",
    "Protocol",
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
