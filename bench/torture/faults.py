"""Run the command `fedtailor` in a separate process in which something goes wrong at a chosen file event.

The process is forked from one that has PyTorch imported, so a try takes a fraction of a second. File events change a file or
a name: opening for writing, each write and the middle of it, fsync, truncation, renaming, removing, making a folder.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fedtailor.experiment.checkpoint
from fedtailor.cli import app as cli

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Fault:
    """A fault: at the `at`-th file event the process is killed, or the disk is full from then on."""

    at: int
    full: bool = False


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit code (negative: the signal), its output, and the number of file events."""

    code: int
    said: str
    events: int

    @property
    def clean(self) -> bool:
        """Whether it succeeded, or said clearly why not."""
        return self.code in (0, 130) or (self.code == 2 and "Error:" in self.said and "Traceback" not in self.said)


@dataclass
class Running:
    """A command under way."""

    process: int
    log: Path

    @classmethod
    def begin(cls, *words: str, fault: Fault | None = None) -> Running:
        """Start `fedtailor` with these arguments; the files it writes are below the current folder."""
        handle, name = tempfile.mkstemp(prefix="fedtailor-torture-")
        sys.stdout.flush()
        process = os.fork()
        if process:
            os.close(handle)
            return cls(process, Path(name))
        torch.set_num_threads(1)  # the parent's threads do not survive the fork
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        os._exit(_serve(words, fault))

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)

    def end(self) -> Ended:
        _, status = os.waitpid(self.process, 0)
        text = self.log.read_text(errors="replace")
        self.log.unlink()
        said, _, events = text.rpartition("\nevents: ")
        code = os.waitstatus_to_exitcode(status)
        return Ended(code, said, int(events)) if said else Ended(code, text, 0)


def fedtailor_command(*words: str, fault: Fault | None = None) -> Ended:
    """Run `fedtailor` with these arguments to its end."""
    return Running.begin(*words, fault=fault).end()


# -- in the process of a command -----------------------------------------------------------------------------------------------------


def _serve(words: tuple[str, ...], fault: Fault | None) -> int:
    events = Events(fault)
    events.install()
    sys.argv = ["fedtailor", *words]
    code: Any = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, f"\nevents: {events.count}".encode())
    return int(code or 0)


class Events:
    """Count the file events of this process and trigger the fault. Workers forked from it are not affected."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.count = 0
        self.process = os.getpid()

    def step(self, grows: bool = False) -> None:
        """Count one event; `grows` says that it needs room on the disk."""
        if os.getpid() != self.process:
            return
        self.count += 1
        if self.fault is None or self.count < self.fault.at:
            return
        if not self.fault.full:
            os.kill(self.process, signal.SIGKILL)
        elif grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def install(self) -> None:
        sys.addaudithook(self._hear)
        opened = builtins.open
        for module in (builtins, io):
            module.open = self._opening(opened)  # type: ignore[attr-defined]
        for name, grows in (("fsync", True), ("ftruncate", False), ("pwrite", True)):
            setattr(os, name, self._counted(getattr(os, name), grows))
        checkpoint: Any = fedtailor.experiment.checkpoint
        checkpoint.save_file = self._saving(checkpoint.save_file)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if flags & WRITES and self._ours(path):
                self.step()
        elif event in CHANGES and (
            self._ours(args[0]) or -1 not in args[1:]
        ):  # rmtree passes file names relative to a folder's handle
            self.step(grows=event == "os.mkdir")

    def _ours(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and Path(os.getcwd()) in Path(os.path.abspath(path)).parents

    def _opening(self, opened: Callable[..., Any]) -> Callable[..., Any]:
        def open(
            file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, *rest: Any, **more: Any
        ) -> Any:
            if not set(mode) & set("wax+") or more.get("opener") or not self._ours(file):
                return opened(file, mode, buffering, encoding, *rest, **more)
            raw = Counted(self, file, mode.replace("b", "").replace("t", ""))
            buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding)

        return open

    def _counted(self, function: Callable[..., Any], grows: bool) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.step(grows)
            return function(*args)

        return counted

    def _saving(self, save_file: Callable[..., None]) -> Callable[..., None]:
        """Wrap the writer of safetensors, which is not Python's: it writes a file of another name and renames it."""

        def save(tensors: Any, path: Path) -> None:
            self.step(grows=True)
            save_file(tensors, path)
            half = path.with_name(".tmpHalf")
            shutil.copy(path, half)
            os.truncate(half, half.stat().st_size // 2)
            path.unlink()
            self.step(grows=True)
            half.unlink()
            save_file(tensors, path)

        return save


class Counted(io.FileIO):
    """A file in which the beginning and the middle of every write are events."""

    def __init__(self, events: Events, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self.events = events

    def write(self, data: Any) -> int:
        self.events.step(grows=True)
        half = memoryview(data)[: len(data) // 2]
        if half:
            super().write(half)
        self.events.step(grows=True)
        rest = memoryview(data)[len(half) :]
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)
