"""A pool of samples as a source reads it, before a partition deals it to clients."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedtailor.data.description import Column, Description
from fedtailor.data.task import Kind, Task
from fedtailor.errors import FedTailorError
from fedtailor.limits import check_count
from fedtailor.registry import Registry

PER_SAMPLE = ("owner", "test", "time", "group", "weight")


@dataclass(frozen=True)
class Pool:
    """Samples with labels; where the source knows them, also who owns each sample and which ones are its official test part.

    `x` keeps its compact type: uint8 for images (channels first), integers for token ids, floats for measurements. It may be
    memory-mapped. `mean` and `std` (one number per channel) apply to uint8 images after scaling to [0, 1]. With `columns` or `tokens`,
    `x` is raw (see `description`): what a net reads is learned from the training rows once the pool is dealt.
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
    columns: tuple[Column, ...] = ()  # of a table: names, kinds and all values of categories
    standardize: bool = True  # whether the numbers of a table are scaled
    tokens: tuple[str, ...] = ()  # of texts: all tokens, in the order of their ids
    token_limit: int = 0  # of texts: most token ids to keep
    label: str = ""  # name of the label column
    keep_split: bool = False  # `test` is the user's own choice: it holds for every partition
    time: np.ndarray | None = None  # numbers: each client's latest samples become its test part
    group: np.ndarray | None = None  # numbers: samples of a group are on the same side of the split
    weight: np.ndarray | None = None  # of each sample in the training loss
    notes: tuple[str, ...] = ()  # what was left out or changed when the data was read

    def __post_init__(self) -> None:
        n = len(self.y)
        if n == 0:
            raise FedTailorError("The data set is empty: no sample was read.")
        for what in ("x", *PER_SAMPLE):
            column = getattr(self, what)
            if column is not None and len(column) != n:
                raise FedTailorError(f"The data set has {n} labels but {len(column)} entries in '{what}'.")
        check_count(self.classes, "CLASSES", "The data set")
        check_count(self.vocabulary, "TOKENS", "The data set")
        self.task.check(self.y, "the data set")

    @property
    def task(self) -> Task:
        shape = (sum(column.width for column in self.columns),) if self.columns else tuple(self.x.shape[1:])
        return Task(shape, self.classes, self.vocabulary, self.kind)

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, rows: np.ndarray) -> Pool:
        """Return the pool of these rows only; sorted rows make a memory-mapped file be read in order."""
        known = {what: getattr(self, what) for what in PER_SAMPLE}
        some: dict[str, Any] = {what: None if column is None else column[rows] for what, column in known.items()}
        return replace(self, x=self.x[rows], y=self.y[rows], **some)


class Source(ABC):
    """Base class of data sets. Subclasses are frozen dataclasses; their fields are the options `data.*`."""

    name: ClassVar[str]

    @abstractmethod
    def read(self, root: Path) -> Pool:
        """Read the samples; `root` is the folder that holds data sets."""

    def as_described(self, description: Description) -> Source:
        """Return the source that reads the same data as a description expects it; most read theirs in one way only."""
        return self

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
