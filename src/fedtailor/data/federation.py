"""The clients and what each of them holds, ready to train on."""

from __future__ import annotations

import html
import operator
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.data.client_arrays import client_of, with_class_numbers
from fedtailor.data.client_count import default_clients
from fedtailor.data.client_data import ClientData, RemoteSplit, Split, dtype_word, shape_words
from fedtailor.data.compact import Array, as_labels, as_samples, classes_of, kind_of, named_labels, vocabulary
from fedtailor.data.description import Description
from fedtailor.data.encode import described, encoded_samples, relabelled
from fedtailor.data.partition import Partition, check_task, partitions
from fedtailor.data.partitions.natural import Natural
from fedtailor.data.pool import Pool, data_root
from fedtailor.data.split_check import check_split
from fedtailor.data.task import CLASSES, KINDS, Kind, Task
from fedtailor.errors import FedTailorError, nearest
from fedtailor.extras import extra
from fedtailor.limits import check_bytes, check_count
from fedtailor.randomness import numpy_stream, torch_stream
from fedtailor.registry import build

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False, eq=False)
class Federation:
    """All clients with their data, and the description of what a sample is; `server` holds the server's proxy samples, if any.

    Arrays handed to `from_arrays` and `from_clients` may be NumPy or PyTorch: uint8 images (n, H, W), (n, C, H, W), or channels last
    (n, H, W, 1 or 3), which are moved to channels first; floats of any shape, kept as float32; whole numbers (n, length), taken as
    token ids.

    Unless `task` names the task, it is inferred from the labels: whole numbers (n,) and texts are classes, booleans are binary, rows
    (n, k) of 0 and 1 are multi-label, other floats are targets of a regression.
    """

    clients: list[ClientData]
    description: Description
    server: Split

    def __post_init__(self) -> None:
        if not self.clients:
            raise FedTailorError("A federation needs at least one client.")
        check_count(self.classes, "CLASSES", "The federation")
        check_count(self.vocabulary, "TOKENS", "The federation")
        check_bytes(8 * len(self.clients) * self.classes, "The table of who holds which labels (clients × classes)")
        name, times = Counter(client.name for client in self.clients).most_common(1)[0]
        if times > 1:
            raise FedTailorError(f"{times} clients are called '{name}'. Give each its own name.")
        dtype = self.clients[0].train.x.dtype
        for client in self.clients:
            if not len(client.train):
                raise FedTailorError(f"Client '{client.name}' has no training sample. Leave it out, or give it some.")
            check_split(client.train, f"the training part of client '{client.name}'", self.task, dtype)
            check_split(client.test, f"the test part of client '{client.name}'", self.task, dtype)
        check_split(self.server, "the server's part", self.task, dtype)
        if dtype == torch.uint8 and not {len(self.mean), len(self.std)} <= {1, self.shape[0]}:
            raise FedTailorError(
                f"mean and std must be one number, or one a channel (samples are {shape_words(self.shape)})."
            )

    @classmethod
    def from_pool(
        cls,
        pool: Pool,
        partition: str | Partition = "dirichlet",
        clients: int = 20,
        seed: int = 0,
        *,
        description: Description | None = None,
        **options: Any,
    ) -> Federation:
        """Deal a pool to clients; `options` are those of a partition given by name. A memory-mapped pool is shared, not copied.

        What a net reads is learned from the training samples of all clients, unless a `description` is given, which the pool must fit.
        """
        if not isinstance(partition, Partition):
            partition = partitions.build(partition, options)
        elif options:
            raise FedTailorError(f"Give {', '.join(options)} to the partition itself: it is made already.")
        check_task(partition, pool)
        deal = partition.deal(pool, _count(clients, "clients"), numpy_stream(seed, "partition"))
        if description is None:
            description = described(pool, np.concatenate(deal.train))
        else:
            pool = relabelled(pool, description)
        x, y = encoded_samples(pool, description), torch.from_numpy(as_labels(pool.y, "the data set", pool.kind))
        whole = _mapped(x) if isinstance(x, np.memmap) else None
        weight = None if pool.weight is None else torch.from_numpy(pool.weight)

        def split(rows: np.ndarray) -> Split:
            index = torch.from_numpy(rows.astype(np.int64))
            own = None if weight is None else weight[index]
            if whole is None:
                return Split(torch.from_numpy(x[rows]), y[index], weight=own)
            return Split(whole, y[index], index, own)

        names = deal.names or _numbered(len(deal.train))
        parts = zip(names, deal.train, deal.test, strict=True)
        found = [ClientData(name, split(train), split(test)) for name, train, test in parts]
        return cls(found, description, split(deal.server))

    @classmethod
    def from_arrays(
        cls,
        x: Array,
        y: Array,
        *,
        clients: int | None = None,
        partition: str | Partition | None = None,
        seed: int = 0,
        classes: int | None = None,
        task: Kind | None = None,
        **options: Any,
    ) -> Federation:
        """Deal arrays to clients; `options` are those of the partition, such as beta=0.5.

        The default partition is dirichlet, or iid where samples have no class. There are 20 clients, or fewer if there are too few samples,
        unless their number is given.
        """
        (y,), names = named_labels([y])
        kind = _kind(task, y, "y")
        samples, labels = as_samples(x, "x"), as_labels(y, "y", kind)
        if len(labels) == 0:
            raise FedTailorError("The arrays are empty: there is no sample to deal.")
        found = classes_of(labels, kind) if classes is None else _count(classes, "classes")
        pool = Pool(samples, labels, found, vocabulary=vocabulary(samples), kind=kind, labels=names)
        if partition is None:
            partition = "dirichlet" if kind in CLASSES else "iid"
        if not isinstance(partition, Partition):
            partition, options = partitions.build(partition, options), {}
        if clients is None:
            clients = default_clients(pool, partition, seed)
        return cls.from_pool(pool, partition, clients, seed, **options)

    @classmethod
    def from_clients(
        cls,
        parts: Sequence[Sequence[Array]] | Mapping[str, Sequence[Array]],
        *,
        test_share: float = 0.25,
        seed: int = 0,
        names: Sequence[str] | None = None,
        task: Kind | None = None,
    ) -> Federation:
        """Build from each client's own arrays: (x, y), of which a random `test_share` becomes the test part, or (x, y, x_test, y_test)."""
        if isinstance(parts, Mapping):
            names, parts = list(parts), list(parts.values())
        names = [str(name) for name in (_numbered(len(parts)) if names is None else names)]
        if len(names) != len(parts):
            raise FedTailorError(f"There are {len(parts)} clients but {len(names)} names.")
        if not 0 <= test_share <= 0.9:
            raise FedTailorError(f"test_share = {test_share} is not allowed: expected a number from 0 to 0.9.")
        if not parts:
            raise FedTailorError("A federation needs at least one client.")
        rng = numpy_stream(seed, "partition")
        parts, labels = with_class_numbers(parts)
        kind = _kind(task, parts[0][1] if len(parts[0]) > 1 else np.empty(0, int), f"y of client '{names[0]}'")
        clients = [client_of(name, part, kind, test_share, rng) for name, part in zip(names, parts, strict=True)]
        splits = [split for client in clients for split in (client.train, client.test) if len(split)]
        first = clients[0].train.x
        description = Description(
            shape=tuple(first.shape[1:]),
            classes=len(labels) or max((classes_of(split.y.numpy(), kind) for split in splits), default=1),
            kind=kind,
            dtype=dtype_word(first),
            labels=labels,
            vocabulary=max((vocabulary(split.x.numpy()) for split in splits), default=0),
        )
        return cls(clients, description, server=Split(first[:0], clients[0].train.y[:0]))

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame | str | PathLike[str],
        *,
        client: str,
        label: str,
        test_share: float = 0.25,
        seed: int = 0,
        task: Kind | None = None,
        description: Description | None = None,
        **options: Any,
    ) -> Federation:
        """Build from a data frame, or a CSV or Parquet file; column `client` names the owner of each row, `label` the target.

        A label column of fractions means regression, any other one classes, unless `task` names the task. The other `options` are those
        of `data=table`, such as features, ignore, categories, split, time, group and weight. If a `description` is given,
        such as that of a federation which these clients join, rows are encoded as it says.
        """
        from fedtailor.data.sources.table import Table, read_table, table_pool

        frame = read_table(Path(table)) if isinstance(table, str | PathLike) else table
        kind = "auto" if task is None else _known(task)
        source = build(Table, {"label": label, "client": client, "task": kind, **options}, "table")
        source = source if description is None else source.as_described(description)
        natural = Natural(test_share=test_share)
        return cls.from_pool(table_pool(frame, source), natural, clients=0, seed=seed, description=description)

    @classmethod
    def from_folder(
        cls, path: str | PathLike[str], *, size: int = 0, channels: int = 3, test_share: float = 0.25, seed: int = 0
    ) -> Federation:
        """Build from images at path/CLIENT/CLASS/*.png, resized to size×size if a size is given; `channels` is 3 or 1 (grey)."""
        from fedtailor.data.sources.image_folder import Folder

        values = {"path": str(path), "size": size, "channels": channels, "client_folders": True}
        pool = build(Folder, values, "folder").read(data_root())
        return cls.from_pool(pool, Natural(test_share=test_share), clients=0, seed=seed)

    def set_aside(self, share: float, seed: int = 0) -> Federation:
        """Move a share of every client's training samples, drawn at random, to the server, for methods that need proxy samples."""
        if not 0 < share < 1:
            raise FedTailorError(f"share = {share} is not allowed: expected a number above 0 and below 1.")
        rng = numpy_stream(seed, "set_aside")
        clients, moved = [], [self.server]
        for client in self.clients:
            rows, count = rng.permutation(len(client.train)), int(share * len(client.train) + 0.5)
            count = min(count, len(rows) - 1)  # everyone keeps something to train on
            moved.append(client.train.apart(sorted(rows[:count].tolist())))
            clients.append(replace(client, train=client.train.apart(sorted(rows[count:].tolist()))))
        server = Split(torch.cat([s.apart().x for s in moved]), torch.cat([s.y for s in moved]))
        return replace(self, clients=clients, server=server)

    @property
    def task(self) -> Task:
        return self.description.task

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample, as a net reads it."""
        return self.description.shape

    @property
    def classes(self) -> int:
        """The number of classes, of labels of a multi-label task, or of targets of a regression."""
        return self.description.classes

    @property
    def kind(self) -> Kind:
        return self.description.kind

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, if they have names."""
        return self.description.labels

    @property
    def vocabulary(self) -> int:
        """The number of token ids; 0 if samples are not token ids."""
        return self.description.vocabulary

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of uint8 samples after scaling to [0, 1]: one number, or one per channel."""
        return self.description.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Their standard deviation."""
        return self.description.std

    def with_validation(self, share: float, seed: int, first: int = 0) -> Federation:
        """Hold out a share of each client's training samples, rounded down, for validation; `first` is the number of the first client."""
        if not share:
            return self
        clients = []
        for number, client in enumerate(self.clients, start=first):
            count = validation_count(len(client.train), share)
            train, validation = client.train.held_out(count, torch_stream(seed, "validation", number))
            clients.append(replace(client, train=train, validation=validation))
        return replace(self, clients=clients)

    @property
    def at_hand(self) -> bool:
        """Whether the clients' samples are on this machine."""
        return not any(isinstance(client.train, RemoteSplit) for client in self.clients)

    def number(self, client: int | str) -> int:
        """Return the number of a client given by its number or its name."""
        names = [c.name for c in self.clients]
        if isinstance(client, str) and client in names:
            return names.index(client)
        if isinstance(client, str):
            raise FedTailorError(f"There is no client '{client}'.{nearest(client, names)} {_range(names)}")
        try:
            return range(len(names)).index(operator.index(client))
        except (TypeError, ValueError):
            raise FedTailorError(f"There is no client {client!r}. {_range(names)}") from None

    @property
    def sizes(self) -> np.ndarray:
        """The number of training samples of each client."""
        return np.array([len(client.train) for client in self.clients])

    @property
    def label_counts(self) -> np.ndarray:
        """Count training samples of each class or label per client (clients × classes); a regression has no columns."""
        if self.kind == "regression":
            return np.zeros((len(self.clients), 0), dtype=np.int64)
        if self.kind == "multilabel":
            return np.stack([client.train.y.sum(0).numpy() for client in self.clients])
        return np.stack([np.bincount(client.train.y.numpy(), minlength=self.classes) for client in self.clients])

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw who holds which labels; also save it if a path is given (.png, .pdf or .svg)."""
        with extra("report", "A picture"):
            from fedtailor.report.pictures import label_figure
        if self.kind == "regression":
            raise FedTailorError("The samples of a regression have no labels to be drawn.")
        figure = label_figure(self.label_counts, self.labels, [client.name for client in self.clients])
        if path is not None:
            figure.savefig(path, dpi=200)
        return figure

    def __repr__(self) -> str:
        sizes, kinds = self.sizes, (self.label_counts > 0).sum(axis=1)
        what = {"multilabel": "labels", "regression": "targets"}.get(self.kind, "classes")
        outputs = "1 target" if self.kind == "regression" and self.classes == 1 else f"{self.classes:,} {what}"
        lines = [
            f"Federation: {len(self.clients):,} clients, {outputs}, "
            f"samples of {shape_words(self.shape)} {dtype_word(self.clients[0].train.x)}",
            f"  {sizes.sum():,} training and {sum(len(c.test) for c in self.clients):,} test samples"
            + (f", {len(self.server):,} at the server" if len(self.server) else ""),
            f"  training samples per client: {_spread(sizes)}",
        ]
        if self.kind != "regression":
            lines.append(f"  {what + ' per client:':<28} {_spread(kinds)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def validation_count(samples: int, share: float) -> int:
    """Return how many of a client's training samples are held out; at least one is left to train on."""
    return min(int(share * samples + 1e-9), samples - 1)  # 1e-9: 0.29 · 100 is 29, not 28.999…


def _known(task: Any) -> Kind:
    if task not in KINDS:
        raise FedTailorError(
            f"task = {task!r} is not allowed: expected one of {', '.join(KINDS)}.{nearest(str(task), KINDS)}"
        )
    return task


def _kind(task: Kind | None, y: Array, where: str) -> Kind:
    return kind_of(y, where) if task is None else _known(task)


def _mapped(x: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # the tensor is only read
        return torch.from_numpy(x)


def _count(number: Any, what: str) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise FedTailorError(f"{what} = {number!r} is not allowed: expected a whole number.") from None


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"client-{i:0{len(str(count - 1))}d}" for i in range(count))


def _range(names: Sequence[str]) -> str:
    return f"They are 0 to {len(names) - 1}, or by name: {', '.join(names[:5])}{' …' if len(names) > 5 else ''}."


def _spread(values: np.ndarray) -> str:
    return f"smallest {values.min():,}, median {int(np.median(values)):,}, largest {values.max():,}"
