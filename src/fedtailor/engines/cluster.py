"""This process's connection to Ray."""

from __future__ import annotations

import logging
import os
import socket
import warnings

import ray

from fedtailor.errors import FedTailorError

KNOCK = 5.0  # seconds that a cluster has to answer


class RayConnection:
    """Counts the engines that use Ray: the first connects, the last disconnects, which stops a Ray that was started here.

    A connection that already exists, such as a notebook's own, is used and left as it is.
    """

    def __init__(self) -> None:
        self.users = 0
        self.ours = False
        self.address = ""

    def take(self, address: str, cores: int) -> None:
        if not ray.is_initialized():
            connect(address, cores)
            self.users, self.ours, self.address = 0, True, address
        elif self.ours and address != self.address:
            raise FedTailorError(
                f"Simulations of one process share one Ray, and another one here has ray_address={self.address!r}. Close it first."
            )
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        if self.ours and self.users == 0:
            ray.shutdown()
            self.ours = False


connection = RayConnection()


def connect(address: str, cores: int) -> None:
    """Join the cluster at this address, or start Ray here with this many cores."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    if address not in ("", "auto"):
        _knock(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about defaults of future versions
            if address:
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init(
                    "local", num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
                )
    except Exception as error:  # Ray has no exception class of its own for this
        what = f"Joining the Ray cluster at {address}" if address else "Starting Ray on this machine"
        raise FedTailorError(f"{what} failed: {' '.join(str(error).split())}") from None


def _knock(address: str) -> None:
    """Check that something listens at the address; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise FedTailorError(
            f"ray_address = {address!r} is not allowed: expected host:port of the cluster's head, such as 10.0.0.1:6379, or auto."
        )
    try:
        socket.create_connection((host, int(port)), KNOCK).close()
    except OSError as error:
        raise FedTailorError(
            f"No Ray cluster answers at {address} ({error}). Start one there with:  ray start --head --port {port}"
        ) from None
