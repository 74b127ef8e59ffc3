"""Disturbed runs: whatever happens, the folder ends equal to that of an undisturbed run, or one sentence says why it cannot.

Tries kills at file events and at random moments, also during a resume, a disk that is full from a file event on, files that are cut,
changed or deleted, and two processes that resume one folder at once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.torture import Result
from bench.torture.faults import Ended, Fault, Running, fedtailor_command
from fedtailor import Config

TINY = ("data=digits", "data.fraction=0.15", "clients=3", "partition=iid", "net=mlp", "epochs=1")
# Private heads; closing steps; clients that report to the server first.
EVENTS = {"fedrep": (), "fedavg-ft": ("method.ft_epochs=2",), "fedsimsup": ()}
HEART = ("partition=paired", "partition.reserve=0", "net=cnn", "method.akt_steps=1", "method.pgd_steps=2")
SYSTEMS = {"pgfedsplit": (), "heart": HEART, "fedsimsup": (), "fedafk": (), "fedah": ()}  # with their overrides
PICTURES = (".png",)
ALIKE = ("config.toml", "description.json", "labels.json", "clients.jsonl", "clients.csv", "ledger.csv")


@dataclass(frozen=True)
class Study:
    """An undisturbed run, and the arguments that start another one like it."""

    words: tuple[str, ...]
    whole: Path
    events: int
    seconds: float

    @classmethod
    def of(cls, method: str, name: str, *words: str) -> Study:
        tiny = [word for word in TINY if word.partition("=")[0] not in {given.partition("=")[0] for given in words}]
        words = ("run", f"method={method}", *tiny, "rounds=3", "checkpoint_every=1", "engine=inline", *words)
        began = time.perf_counter()
        ended = fedtailor_command(*words, "--out", name, fault=Fault(10**9))
        if ended.code:
            raise RuntimeError(f"{method} does not run: {ended.said}")
        return cls(words, Path(name), ended.events, time.perf_counter() - began)

    def begin(self, folder: Path, fault: Fault | None = None) -> Running:
        return Running.begin(*self.words, "--out", str(folder), fault=fault)

    def carry_on(self, folder: Path, fault: Fault | None = None) -> Ended:
        """Do what a user does next: resume the run or, if there is none, start it again."""
        if folder.exists():
            return fedtailor_command("run", "--resume", str(folder), fault=fault)
        return self.begin(folder, fault).end()

    def mended(self, folder: Path) -> str:
        """Carry a run on to its end; return what is wrong then, or an empty text."""
        ended = self.carry_on(folder)
        if ended.code:
            return f"resume: {_short(ended)}"
        return self.differs(folder)

    def differs(self, folder: Path) -> str:
        """Return how a finished run differs from the undisturbed one, or an empty text."""
        here, there = _files(folder), _files(self.whole)
        if here != there:
            return f"files differ: {sorted(map(str, here ^ there))}"
        left = [path.name for path in folder.parent.iterdir() if path != folder]
        if left:
            return f"left beside it: {left}"
        if json.loads((folder / "status.json").read_text())["state"] != "finished":
            return "not finished"
        if _numbers(folder) != _numbers(self.whole):
            return "other numbers in metrics.jsonl"
        compared = [path for path in here if str(path) in ALIKE or path.suffix == ".safetensors"]
        other = [str(path) for path in compared if (folder / path).read_bytes() != (self.whole / path).read_bytes()]
        return f"other bytes in {other}" if other else ""


def run(share: float) -> Iterator[Result]:
    with workplace():
        studies = [Study.of(method, f"whole/{method}", *words) for method, words in EVENTS.items()]
        systems = [Study.of(method, f"whole/system-{method}", *words) for method, words in SYSTEMS.items()]
        yield from disturbed(studies, systems, share)


def disturbed(studies: list[Study], systems: list[Study], share: float) -> Iterator[Result]:
    rng = random.Random(0)
    yield Result.of("kill -9 at a file event, resume: same bits", _kills(studies, share))
    yield Result.of("the same, killed at a file event of the resume too", _kills_twice(studies, share, rng))
    yield Result.of("disk full from a file event on: one sentence; resume: same bits", _full(studies, share))
    yield Result.of("kill -9 at a random moment (five systems), resume: same bits", _moments(systems, share, rng))
    yield Result.of("a file cut, changed or deleted: same bits or one sentence", _damage(studies, share, rng))
    yield Result.of("two resumes at once: one is told, same bits", _two(studies[0], share))


def _kills(studies: list[Study], share: float) -> Iterator[str]:
    for study in studies:
        for at in _spread(study.events, share):
            with _try() as folder:
                study.begin(folder, Fault(at)).end()
                yield _said(study, f"event {at}", study.mended(folder))


def _kills_twice(studies: list[Study], share: float, rng: random.Random) -> Iterator[str]:
    for study in studies:
        for at in _spread(study.events, share / 8):
            with _try() as folder:
                study.begin(folder, Fault(at)).end()
                again = [rng.randrange(1, study.events) for _ in range(2)]
                for other in again:
                    study.carry_on(folder, Fault(other))
                yield _said(study, f"events {at} and {again}", study.mended(folder))


def _full(studies: list[Study], share: float) -> Iterator[str]:
    for study in studies:
        for at in _spread(study.events, share / 4):
            with _try() as folder:
                ended = study.begin(folder, Fault(at, full=True)).end()
                wrong = "" if ended.clean else f"uncaught: {_short(ended)}"
                yield _said(study, f"full at event {at}", wrong or study.mended(folder))


def _moments(studies: list[Study], share: float, rng: random.Random) -> Iterator[str]:
    """Kill at random moments, half of the tries with worker processes, which outlive the kill for a moment."""
    for number in range(max(2, round(100 * share))):
        study = studies[number % len(studies)]
        engine = ("engine=inline", "engine=processes")[number // len(studies) % 2]
        moments = [study.seconds * rng.random() * 1.2 for _ in range(1 + number % 2)]
        with _try() as folder:
            for moment in moments:
                words = (
                    ("--resume", str(folder)) if folder.exists() else (*study.words[1:], engine, "--out", str(folder))
                )
                running = Running.begin("run", *words)
                time.sleep(moment)
                running.kill()
                running.end()
            if folder.exists():
                _set_engine(folder)
            yield _said(study, f"{engine} killed after {moments}", study.mended(folder))


def _damage(studies: list[Study], share: float, rng: random.Random) -> Iterator[str]:
    for study in studies:
        for state in ("killed", "finished"):
            source = _left(study) if state == "killed" else study.whole
            names = sorted(path for path in _files(source) if path.suffix not in (*PICTURES, ".lock"))
            if state == "finished":  # models and checkpoints are neither read nor written
                names = [path for path in names if len(path.parts) == 1]
            cases = [
                (name, spoil)
                for name in names
                for spoil in (cut, changed, gone)
                for _ in range(2 if spoil is not gone else 1)
            ]
            for name, spoil in cases[:: max(1, round(1 / share))]:
                with _try() as folder:
                    shutil.copytree(source, folder)
                    spoil(folder / name, rng)
                    yield _said(study, f"{name} {spoil.__name__} in a {state} run", _told_or_mended(study, folder))


def _told_or_mended(study: Study, folder: Path) -> str:
    ended = study.carry_on(folder)
    if ended.code == 2 and ended.clean:
        return ""  # reported
    if ended.code:
        return _short(ended)
    differs = study.differs(folder)
    return f"silently wrong: {differs}" if differs else ""


def _two(study: Study, share: float) -> Iterator[str]:
    source = _left(study)
    for _ in range(max(2, round(10 * share))):
        with _try() as folder:
            shutil.copytree(source, folder)
            both = [Running.begin("run", "--resume", str(folder)) for _ in range(2)]
            ended = [running.end() for running in both]
            told = [e for e in ended if "is being carried out by process" in e.said or "is finished already" in e.said]
            wrong = "" if all(e.clean for e in ended) and len(told) == 1 else " / ".join(map(_short, ended))
            yield _said(study, "two resumes", wrong or study.differs(folder))


def cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(max(1, path.stat().st_size)))


def changed(path: Path, rng: random.Random) -> None:
    """Change one digit or, if there is none, one byte."""
    data = bytearray(path.read_bytes())
    digits = [i for i, byte in enumerate(data) if 48 <= byte < 58] or list(range(len(data)))
    if digits:
        place = rng.choice(digits)
        data[place] = 48 + (data[place] - 47) % 10
        path.write_bytes(data)


def gone(path: Path, rng: random.Random) -> None:
    path.unlink()


def _left(study: Study) -> Path:
    """Make the folder of a run killed while it saved its last checkpoint."""
    folder = Path("whole") / f"left-{study.whole.name}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(study.whole, folder)
    shutil.rmtree(folder / "models")
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    for name in ("clients.csv", "accuracy.png", "logged.png"):
        (folder / name).unlink(missing_ok=True)
    (folder / "status.json").write_text('{"state": "running", "round": 1, "command": ""}')
    return folder


def _set_engine(folder: Path) -> None:
    """Set engine=inline in the config, to compare with a run that used it: the numbers are the same."""
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('engine = "processes"', 'engine = "inline"'))


def _spread(events: int, share: float) -> range:
    step = max(1, round(1 / share))
    return range(max(1, min(step, events) // 2), events + 1, step)


def _said(study: Study, what: str, wrong: str) -> str:
    return f"{study.whole.name}, {what}: {wrong}" if wrong else ""


def _short(ended: Ended) -> str:
    return f"exit {ended.code}: {' '.join(ended.said.split())[-300:]}"


def _files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def _numbers(folder: Path) -> list[dict[str, object]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.startswith("seconds_")} for line in lines]


@contextmanager
def workplace() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="fedtailor-torture-") as place:
        os.chdir(place)
        Config.load(words=TINY).federation().plot("labels.png")  # import here what forked processes then need not
        try:
            yield
        finally:
            os.chdir(before)


@contextmanager
def _try() -> Iterator[Path]:
    """Give a new folder for one run, and remove it afterwards."""
    place = Path(tempfile.mkdtemp(dir="."))
    try:
        yield place / "run"
    finally:
        shutil.rmtree(place)
