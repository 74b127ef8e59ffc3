"""A pool of samples as a source reads it, before a partition deals it to clients."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedtailor.data.task import Kind, Task
from fedtailor.errors import FedTailorError
from fedtailor.limits import check_count
from fedtailor.registry import Registry


@dataclass(frozen=True)
class Pool:
    """Samples with labels; where the source knows them, also who owns each sample and which ones are its official test part.

    `x` keeps its compact type: uint8 for images (channels first), integers for token ids, floats for measurements. It may be
    memory-mapped. `mean` and `std` (one number per channel) apply to uint8 images after scaling to [0, 1].
    """

    x: np.ndarray
    y: np.ndarray
    classes: int
    owner: np.ndarray | None = None  # for each sample, a position in `owners`
    owners: tuple[str, ...] = ()
    test: np.ndarray | None = None  # True where a sample belongs to the official test part
    labels: tuple[str, ...] = ()
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    vocabulary: int = 0  # for token ids: how many there are
    kind: Kind = "multiclass"  # of task; `y` has one column per label or target of multi-label and regression tasks

    def __post_init__(self) -> None:
        n = len(self.y)
        if n == 0:
            raise FedTailorError("The data set is empty: no sample was read.")
        for what, column in (("x", self.x), ("owner", self.owner), ("test", self.test)):
            if column is not None and len(column) != n:
                raise FedTailorError(f"The data set has {n} labels but {len(column)} entries in '{what}'.")
        check_count(self.classes, "CLASSES", "The data set")
        check_count(self.vocabulary, "TOKENS", "The data set")
        self.task.check(self.y, "the data set")

    @property
    def task(self) -> Task:
        return Task(tuple(self.x.shape[1:]), self.classes, self.vocabulary, self.kind)

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, rows: np.ndarray) -> Pool:
        """Return the pool of these rows only; sorted rows make a memory-mapped file be read in order."""
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            owner=None if self.owner is None else self.owner[rows],
            test=None if self.test is None else self.test[rows],
        )


class Source(ABC):
    """Base class of data sets. Subclasses are frozen dataclasses; their fields are the options `data.*`."""

    name: ClassVar[str]

    @abstractmethod
    def read(self, root: Path) -> Pool:
        """Read the samples; `root` is the folder that holds data sets."""

    @property
    def fitting_net(self) -> str:
        """Return the net to use if the config names none."""
        return "cnn"

    @property
    def fitting_partition(self) -> str:
        """Return the partition to use if the config names none."""
        return "dirichlet"


sources: Registry[Source] = Registry("data")


def data_root(configured: str = "") -> Path:
    """Return the folder of data sets: the config's data.root, else FEDTAILOR_DATA, else a cache folder."""
    named = configured or os.environ.get("FEDTAILOR_DATA")
    if named:
        return Path(os.path.expanduser(named))  # unlike Path.expanduser, it accepts any text
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME", "~/.cache"))) / "fedtailor"


def missing(name: str, looked: list[Path], how: str = "") -> FedTailorError:
    """Make the error for a missing data set: where it was looked for and how to get it."""
    places = "\n".join(f"  {path}" for path in looked)
    how = how or (
        f"Get it with:  fedtailor data get {name}\n"
        "or set data.root (or the environment variable FEDTAILOR_DATA) to the folder that holds it."
    )
    return FedTailorError(f"The data set '{name}' is not there. Looked for:\n{places}\n{how}")
