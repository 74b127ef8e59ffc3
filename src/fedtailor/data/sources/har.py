"""Human activity recognition: phone sensor signals of thirty people, a natural federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedtailor.data.pool import Pool, Source, missing, sources
from fedtailor.data.sources.arrays import arrays_pool, read_arrays
from fedtailor.errors import FedTailorError

# Mean and spread of each signal over the training part: body acceleration, angular speed, total acceleration (x, y, z each).
MEAN = (-0.0007, -0.0004, -0.0003, -0.0038, 0.0001, 0.0009, 0.8053, 0.0252, 0.0852)
STD = (0.1919, 0.1215, 0.1041, 0.4040, 0.3716, 0.2540, 0.4145, 0.3997, 0.3449)
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")


@sources.register("har", "uci-har")
@dataclass(frozen=True)
class Har(Source):
    """10,299 windows of nine phone sensor signals of 128 steps, six activities, owned by 30 people (Anguita et al., 2013)."""

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
        return replace(
            pool, x=standardized(by_signal(pool.x)), classes=len(ACTIVITIES), labels=ACTIVITIES, keep_split=False
        )


def by_signal(x: np.ndarray) -> np.ndarray:
    """Return windows signal by signal. Some files store them step by step whatever their shape says; the smoother reading is right."""
    steps = np.ascontiguousarray(x.reshape(len(x), 128, 9).transpose(0, 2, 1))
    return steps if _jerks(steps) < _jerks(x) / 2 else x


def standardized(x: np.ndarray) -> np.ndarray:
    mean, std = (np.array(numbers, np.float32)[:, None] for numbers in (MEAN, STD))
    return (x - mean) / std


def _jerks(x: np.ndarray) -> float:
    """Return the mean change of a signal from one step to the next, relative to its standard deviation."""
    return float(np.abs(np.diff(x)).mean() / max(x.std(), 1e-12))
