"""How long the activities of a round take."""

from __future__ import annotations

import time


class Clock:
    """Seconds spent in each activity of a round."""

    def __init__(self) -> None:
        self.seconds = {"seconds_training": 0.0, "seconds_evaluation": 0.0, "seconds_communication": 0.0}
        self._last = time.perf_counter()

    def lap(self, activity: str) -> None:
        now = time.perf_counter()
        self.seconds[f"seconds_{activity}"] += now - self._last
        self._last = now
