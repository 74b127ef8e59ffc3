"""Data sets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedtailor.data.images import pixels
from fedtailor.data.pool import Pool, Source, sources
from fedtailor.data.sources.files import encoded
from fedtailor.data.sources.text import text_pool
from fedtailor.errors import FedTailorError, nearest
from fedtailor.registry import option


@sources.register("hub", "huggingface")
@dataclass(frozen=True)
class Hub(Source):
    """A classification data set of the Hugging Face hub, its images or texts."""

    dataset: str = option("", "its name on the hub, such as 'ylecun/mnist'")
    subset: str = option("", "its configuration, where it has several")
    image: str = option("", "the column of images")
    text: str = option("", "the column of texts, where there are no images")
    label: str = option("label", "the column of labels")
    client: str = option("", "the column that names the owner of a sample; empty: samples have no owner")
    size: int = option(0, "resize every image to size×size pixels; 0 keeps them as they are", at_least=0, at_most=4096)
    channels: Literal[1, 3] = option(3, "3 for colour, 1 for grey")
    length: int = option(200, "tokens kept of each text", at_least=1)
    vocabulary: int = option(98_635, "most token ids, padding and unknown included", at_least=3)

    def read(self, root: Path) -> Pool:
        if not self.dataset or bool(self.image) == bool(self.text):
            raise FedTailorError(
                "The data source 'hub' needs data.dataset and one of data.image and data.text, a column's name."
            )
        parts = _parts(_load(self.dataset, self.subset, root))
        for column in filter(None, (self.image or self.text, self.label, self.client)):
            for part, _ in parts:
                if column not in part.column_names:
                    near = nearest(column, part.column_names)
                    raise FedTailorError(
                        f"{self.dataset} has no column '{column}'.{near} It has: {', '.join(part.column_names)}."
                    )
        y, labels = self._labels(parts)
        owner, owners = encoded(_column(parts, self.client)) if self.client else (None, ())
        test = np.repeat([held_out for _, held_out in parts], [len(part) for part, _ in parts])
        flag = test if test.any() else None
        if self.text:
            texts = [str(text) for text in _column(parts, self.text)]
            return text_pool(texts, y, labels, flag, self.length, self.vocabulary, owner, owners)
        centre = (0.5,) * self.channels
        return Pool(self._images(parts), y, len(labels), owner, owners, flag, labels, mean=centre, std=centre)

    def _labels(self, parts: Sequence[tuple[Any, bool]]) -> tuple[np.ndarray, tuple[str, ...]]:
        values = _column(parts, self.label)
        names = getattr(parts[0][0].features[self.label], "names", None)
        if not names:
            return encoded(values)
        wrong = next((value for value in values if not 0 <= value < len(names)), None)
        if wrong is not None:
            raise FedTailorError(
                f"{self.dataset} has samples with label {wrong}: the labels of a part of it are hidden."
            )
        return np.array(values, np.int64), tuple(names)

    def _images(self, parts: Sequence[tuple[Any, bool]]) -> np.ndarray:
        samples = (sample[self.image] for part, _ in parts for sample in part)
        grids = [
            pixels(image, f"image {row} of {self.dataset}", self.size, self.channels)
            for row, image in enumerate(samples)
        ]
        sizes = sorted({grid.shape[1:] for grid in grids})
        if len(sizes) > 1:
            raise FedTailorError(
                f"The images of {self.dataset} differ in size (from {sizes[0]} to {sizes[-1]}). Set data.size to resize them."
            )
        return np.stack(grids)


def _load(dataset: str, subset: str, root: Path) -> Any:
    try:
        import datasets
    except ImportError:
        raise FedTailorError("Data sets of the hub need an extra package:  pip install 'fedtailor[hub]'") from None
    try:
        return datasets.load_dataset(dataset, subset or None, cache_dir=str(root / "hub"))
    except Exception as error:  # the hub's own errors are many and change between its versions
        raise FedTailorError(
            f"The data set '{dataset}' could not be had from the hub ({type(error).__name__}: {error})."
        ) from error


def _parts(loaded: Any) -> list[tuple[Any, bool]]:
    """List (part, whether it is the test part). A validation part is the test part only if there is no other."""
    names = [name for name in loaded if len(loaded[name])]
    held_out = next((name for name in ("test", "validation", "valid", "val") if name in names), None)
    parts = [(loaded[name], name == held_out) for name in names if name != "unsupervised"]
    if not parts:
        raise FedTailorError("The data set of the hub is empty.")
    return parts


def _column(parts: Sequence[tuple[Any, bool]], column: str) -> list[Any]:
    return [value for part, _ in parts for value in part[column]]
