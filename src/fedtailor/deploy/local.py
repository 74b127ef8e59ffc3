"""A federation on this machine alone, for a try-out: Flower's programs as processes that end with this one."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedtailor.deploy.folder import CONNECTION, DeployFolder
from fedtailor.errors import FedTailorError

HERE = "127.0.0.1"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
SOON = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # seconds between two looks for work; by default it is one
GRACE = 3.0  # seconds that programs have to end by themselves
START = 180.0  # seconds that the SuperLink has to start, on a busy machine


class Fleet:
    """The programs that were started, each with a log file of its own."""

    def __init__(self, folder: DeployFolder) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = 0

    def start_link(self) -> None:
        self.port = free_port()
        self.folder.connect(f"{HERE}:{self.port}")
        how = tls_of_link(self.folder) if self.folder.tls else ["--insecure"]
        words = ["--host", HERE, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        self._start("superlink", "flower-superlink", [*how, *words], self.folder.path)
        self._wait_for_link()

    def start_site(self, client: int | str) -> None:
        place = self.folder.site(client)
        how = tls_of_site(place) if self.folder.tls else ["--insecure"]
        ends = ["--superlink", f"{HERE}:{self.port}", "--host", HERE, "--port", str(free_port())]
        self._start(f"site-{client}", "flower-supernode", [*how, *ends, "--node-config", "site.toml"], place)

    def register(self, site: int | str) -> None:
        """Have the server admit a site by its public key."""
        self._start(
            "register",
            "flwr",
            ["supernode", "register", str(self.folder.keys / f"node-{site}.pub"), CONNECTION],
            self.folder.path,
        )
        if self.processes["register"].wait() != 0:
            raise FedTailorError(f"The key of site {site} could not be registered. {self.log('register')} says why.")

    def submit(self, **run_config: str) -> None:
        """Start the run itself; this process ends when the run does."""
        given = " ".join(f'{key}="{value}"' for key, value in run_config.items())
        words = ["run", str(self.folder.app), CONNECTION, "--stream", *(["--run-config", given] if given else [])]
        self._start("run", "flwr", words, self.folder.path)

    def log(self, name: str) -> Path:
        return self.folder.logs / f"{name}.log"

    def running(self, name: str) -> bool:
        return self.processes[name].poll() is None

    def stop(self) -> None:
        """End everything, politely at first: the processes of a program are one group."""
        for sign, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            groups = [p.pid for p in self.processes.values() if _signal_group(p.pid, sign)]
            deadline = time.monotonic() + patience
            while any(_signal_group(group, 0) for group in groups) and time.monotonic() < deadline:
                for process in self.processes.values():
                    process.poll()  # one that has ended is let go of
                time.sleep(0.05)

    def _start(self, name: str, program: str, words: Sequence[str], where: Path) -> None:
        with self.log(name).open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [program_path(program), *words],
                cwd=where,
                env={**os.environ, **QUIET, **SOON, "FLWR_HOME": str(self.folder.flower), "PATH": _path()},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to answer
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def _wait_for_link(self) -> None:
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and self.running("superlink"):
            with socket.socket() as line:
                if line.connect_ex((HERE, self.port)) == 0:
                    return
            time.sleep(0.1)
        raise FedTailorError(f"Flower's SuperLink did not start. {self.log('superlink')} says why.")


@contextmanager
def fleet(folder: DeployFolder) -> Iterator[Fleet]:
    """A fleet that is stopped however the block ends."""
    own = Fleet(folder)
    try:
        yield own
    finally:
        own.stop()


def tls_of_link(folder: DeployFolder) -> list[str]:
    keys = folder.keys
    files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt", "--ssl-keyfile": "server.key"}
    return ["--enable-supernode-auth", *(word for option, name in files.items() for word in (option, str(keys / name)))]


def tls_of_site(place: Path) -> list[str]:
    return ["--root-certificates", str(place / "ca.crt"), "--auth-supernode-private-key", str(place / "node.key")]


def program_path(name: str) -> str:
    found = shutil.which(name, path=_path())
    if found is None:
        raise FedTailorError(f"Flower's program {name} is not installed:  pip install 'fedtailor[flower]'")
    return found


def free_port() -> int:
    with socket.socket() as line:
        line.bind((HERE, 0))
        return int(line.getsockname()[1])


def _path() -> str:
    """Flower's programs start each other by name, so those beside this Python come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _signal_group(group: int, sign: int) -> bool:
    try:
        os.killpg(group, sign)
    except (ProcessLookupError, PermissionError):
        return False
    return True
