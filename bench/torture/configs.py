"""Mutated configs: a config file or key=value overrides either run, or are refused with a clear message."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.torture import Result
from bench.torture.contained import contained
from fedtailor.experiment.config import CHOICES, Config, DataSettings, Settings, options_of
from fedtailor.experiment.simulation import Simulation
from fedtailor.registry import options

TRIES = 3000
SMALL = 8  # numbers up to this make a short run
ABSURD = """
5 -1 0 1 2 0.5 -0.5 1e-300 1e308 1e309 -1e309 nan -nan inf -inf true false [] [[]] [1,2] [0,-1] [nan,nan] [0.1,1.0] {} {a=1} ''
'x' "x" none None null 0x10 0b1 1_000 1979-05-27 1979-05-27T07:32:00Z cuda cuda:99 meta mps xla cpu:99 cpu hpu lazy sparse
../../etc/passwd /dev/zero /dev/stdin /dev/tty / . ~ ~nobody-here/x fedavg.py fedavg fedrep digits mnist table folder arrays mlp cnn
dirichlet natural %s%n =1+1 @x a=b [red]x[/red] 9223372036854775807 9223372036854775808 18446744073709551616 2147483648 65537 1e6 1e12
"""
WORDS = ABSURD.split()
CONTROLS = [
    "",
    " ",
    "\t",
    "\n",
    "\0",
    "\x1b[31m",
    "\x7f",
    "\u202e",
    "\ud800",
    "é",
    "𝔽",
    "1\nrounds=5",
    "1\n[method]\nx=1",
]
LONG = ["9" * 5000, "-" + "9" * 400, "a" * 300, "a" * 100_000, "[" * 5000, "{a=" * 500, "a/" * 3000]
STRANGE = [*CONTROLS, *LONG, '"""', "'", '"', "\\", "[1", "#", "1 # 2"]
HEADINGS = [
    "[method]",
    "[[method]]",
    "[method.name]",
    "method = 5",
    "net = []",
    "[data.x]",
    "[seed]",
    "a.b.c = 1",
    '"" = 1',
]
SIGNS = "=[]{}\"'\\.,#\n\t \0\x1b\x7f-+_eE0129aznTtfñ\u202e"


def run(share: float) -> list[Result]:
    count = max(1, round(TRIES * share))
    with tempfile.TemporaryDirectory() as scratch:
        rng = random.Random(20)
        texts = _texts()
        cases = [_words(rng) if rng.random() < 0.5 else _toml(rng, texts) for _ in range(count)]
        tries = [partial(_attempt, case, Path(scratch) / f"{i}.toml") for i, case in enumerate(cases)]
        outcomes = list(contained(tries, lambda i: f"{i} {cases[i]!r:.300}"))
    return [Result.of("a mutated config runs or is refused in words", outcomes)]


Case = list[str] | bytes  # key=value overrides, or a config file


def _attempt(case: Case, file: Path) -> str:
    if isinstance(case, bytes):
        file.write_bytes(case)
        config = Config.load(file)
    else:
        config = Config.load(None, case)
    file.write_text(config.to_toml())
    if Config.load(file).values() != config.values():
        return "its config.toml says something else"
    if _is_small(config):
        Simulation(config.federation(), config.method, config.net, engine="inline", protocol=config.settings).run()
    return ""


def _is_small(config: Config) -> bool:
    """Return whether its run is short: digits, and every number small or the default; without clients=…, there would be 20."""
    parts = (config.settings, config.method, config.partition, config.net, config.data_settings)
    given = [(o.default, getattr(part, o.name)) for part in parts for o in options(type(part))]
    usual = config.data.name == "digits" and config.settings.rounds <= SMALL and not config.data_settings.proxy
    usual = usual and config.settings.clients > 0
    return usual and all(_small(value) for default, value in given if value != default)


def _small(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_small, value))
    return not isinstance(value, int | float) or abs(value) <= SMALL


def _keys() -> list[str]:
    """Return every key: the plain ones, and the options of each part."""
    dotted = [
        f"{kind}.{o}" for kind, known in CHOICES.items() for cls in known.classes.values() for o in options_of(cls)
    ]
    return [*CHOICES, *options_of(Settings), *(f"data.{o}" for o in options_of(DataSettings)), *dotted]


def _words(rng: random.Random) -> list[str]:
    """Return overrides of a tiny run with a few valid options of method and partition, and often an invalid one."""
    parts = {kind: rng.choice(sorted(CHOICES[kind].classes)) for kind in ("method", "partition")}
    words = ["data=digits", "data.fraction=0.05", "clients=2", "rounds=1", "net=mlp", "net.hidden=[4]"]
    words += [f"{kind}={name}" for kind, name in parts.items()]
    own = [(f"{kind}.{o.name}", o.type) for kind, name in parts.items() for o in options(CHOICES[kind].find(name))]
    own += [(o.name, o.type) for o in options(Settings) if o.name not in ("rounds", "epochs", "clients")]
    words += [f"{key}={_plausible(rng, kind)}" for key, kind in rng.sample(own, rng.randint(0, 3))]
    if rng.random() < 0.6:
        key = rng.choice([key for key, _ in own] if rng.random() < 0.5 else _keys())
        value = rng.choice(WORDS if rng.random() < 0.7 else STRANGE)
        words.append(rng.choice([f"{key}={value}"] * 20 + [key, f"{key}.{value}=1", f"={value}", f"{value}={key}"]))
    return words


def _plausible(rng: random.Random, kind: str) -> str:
    """Return a value that is valid for this type of option, though perhaps not for this option."""
    if kind.startswith(("int", "float")):
        return rng.choice(("0", "1", "2", "3", "5", "0.5", "0.01", "0.99"))
    return rng.choice(kind.split(" | ")) if " | " in kind else rng.choice(("true", "false", "x", "[1]"))


def _texts() -> list[str]:
    """Return complete config files, one per net, with methods and partitions in turn."""
    methods, partitions = (sorted(CHOICES[kind].classes) for kind in ("method", "partition"))
    tiny = ["data.fraction=0.05", "clients=2", "rounds=1"]
    return [
        Config.load(
            None, [*tiny, f"net={net}", f"method={methods[3 * i]}", f"partition={partitions[i % len(partitions)]}"]
        ).to_toml()
        for i, net in enumerate(sorted(CHOICES["net"].classes))
    ]


def _toml(rng: random.Random, texts: list[str]) -> bytes:
    text = rng.choice(texts)
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = rng.choice(MUTATIONS)(rng, text)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if rng.random() < 0.3 and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _another_value(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.choice([i for i, line in enumerate(lines) if "=" in line] or [0])
    lines[at] = f"{lines[at].partition('=')[0]}= {rng.choice(WORDS + STRANGE)}"
    return "\n".join(lines)


def _another_text(rng: random.Random, text: str) -> str:
    """Replace a value by quoted text with TOML escapes."""
    lines = text.split("\n")
    at = rng.choice([i for i, line in enumerate(lines) if "=" in line] or [0])
    escaped = "".join(f"\\u{ord(sign):04x}" for sign in rng.choice(STRANGE + WORDS)[:200] if ord(sign) < 0x10000)
    lines[at] = f'{lines[at].partition("=")[0]}= "{escaped}"'
    return "\n".join(lines)


def _another_key(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    lines[at] = rng.choice(HEADINGS)
    return "\n".join(lines)


def _moved_lines(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    return "\n".join(lines[: rng.randrange(len(lines))] + lines[rng.randrange(len(lines)) :])


def _without_line(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _other_sign(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(SIGNS) * rng.choice((1, 1, 1, 1000)) + text[at + rng.randint(0, 2) :]


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


MUTATIONS: list[Callable[[random.Random, str], str]] = [
    *(_another_value, _another_value, _another_text, _another_key, _moved_lines, _without_line, _other_sign, _cut)
]
