"""Movements of thirty people, a natural federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedtailor.data.pool import Pool, Source, missing, sources
from fedtailor.data.sources.arrays import arrays_pool, read_arrays
from fedtailor.errors import FedTailorError

ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")


@sources.register("har", "uci-har")
@dataclass(frozen=True)
class Har(Source):
    """10,299 windows of nine phone sensor signals of 128 steps, six activities, owned by 30 people (Anguita et al., 2013)."""

    @property
    def fitting_net(self) -> str:
        return "cnn1d"

    @property
    def fitting_partition(self) -> str:
        return "natural"

    def read(self, root: Path) -> Pool:
        file = root / "har" / "har.npz"
        if not file.is_file():
            how = (
                "Save the UCI HAR inertial signals as an .npz of x (n, 9, 128), y (0 to 5), subject and test (0 or 1)."
            )
            raise missing(self.name, [file], how)
        arrays = read_arrays(file)
        if "subject" not in arrays or "test" not in arrays or arrays.get("x", np.empty(0)).shape[1:] != (9, 128):
            raise FedTailorError(f"{file} must hold x of shape (n, 9, 128), y, subject and test.")
        pool = arrays_pool(file, {"client": arrays["subject"], **arrays})
        if pool.classes > len(ACTIVITIES):
            raise FedTailorError(f"{file}: labels must lie in 0..{len(ACTIVITIES) - 1}, but one is {pool.y.max()}.")
        return replace(pool, classes=len(ACTIVITIES), labels=ACTIVITIES)
