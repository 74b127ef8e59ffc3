"""Run tries in separate processes: one that hangs, crashes or takes too much memory is a failure and harms no other."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch

from fedtailor.errors import FedTailorError

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # before importing it: its default pool reserves too much

SECONDS = 20  # of CPU time for one try
PATIENCE = 240  # seconds for one try on a busy machine
MEMORY = 1 << 30  # bytes that the tries of one process may take beyond what it starts with
BATCH = 50  # tries of one process


def contained(tries: Sequence[Callable[[], str]], describe: Callable[[int], str]) -> Iterator[str]:
    """Yield the outcome of each try, in order: '' if it kept the promise, else what happened. `describe` names a try by its number.

    A try returns '' or what is wrong; a FedTailorError is a kept promise, any other error is not.
    """
    done = 0
    while done < len(tries):
        batch = tries[done : done + BATCH]
        outcomes, ending = _in_a_child(batch)
        if len(outcomes) < len(batch):
            outcomes.append(ending or "ended without a word")
        for outcome in outcomes:
            yield f"{describe(done)}: {outcome}" if outcome else ""
            done += 1


def _in_a_child(tries: Sequence[Callable[[], str]]) -> tuple[list[str], str]:
    """Return the outcomes of the tries until the child ended, and how it ended if it was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            _limit_memory()
            torch.set_num_threads(1)  # the parent's threads do not survive the fork
            logging.disable(logging.CRITICAL)
            warnings.simplefilter("ignore")
            with os.fdopen(write, "w", buffering=1) as report:
                for one in tries:
                    # Without a handler, each signal ends the process, even inside a library.
                    signal.setitimer(signal.ITIMER_PROF, SECONDS)
                    signal.alarm(PATIENCE)
                    report.write(json.dumps(_outcome(one)) + "\n")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as report:
        outcomes = [json.loads(line) for line in report if line.endswith("\n")]
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        return outcomes, ""
    number = os.WTERMSIG(status)
    slow = {signal.SIGPROF: f"computed for more than {SECONDS} s", signal.SIGALRM: f"took more than {PATIENCE} s"}
    return outcomes, slow.get(signal.Signals(number), f"killed by signal {number}")


def _outcome(one: Callable[[], str]) -> str:
    try:
        return one()
    except FedTailorError:
        return ""
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} ({os.path.basename(at.filename)}:{at.lineno})"


def _limit_memory() -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
