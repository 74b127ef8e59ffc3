"""A federation on this machine alone, to try one out: each site is a process that ends with this one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtailor.deploy.deploy_folder import HERE, DeployFolder

GRACE = 3.0  # seconds that processes have to end by themselves


@contextmanager
def sites_here(folder: DeployFolder, names: Iterable[int | str], port: int) -> Iterator[dict[str, subprocess.Popen]]:
    """Run sites of a federation as processes of this machine; they are stopped however the context ends."""
    folder.logs.mkdir(exist_ok=True)
    started: dict[str, subprocess.Popen] = {}
    try:
        for name in names:
            started[str(name)] = start_site(folder.site(name), port, folder.logs / f"site-{name}.log")
        yield started
    finally:
        stop(started.values())


def start_site(place: Path, port: int, log: Path) -> subprocess.Popen:
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "fedtailor", "deploy", "site", str(place), "--server", f"{HERE}:{port}"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process only
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def stop(processes: Iterable[subprocess.Popen]) -> None:
    """Stop processes by SIGTERM, then by SIGKILL."""
    processes = list(processes)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                process.send_signal(sign)
        deadline = time.monotonic() + GRACE
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(0.02)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
