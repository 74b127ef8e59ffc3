"""The tables of the page on scale, from what bench.growth measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.methods import methods
from tools.pages.text import table

FILE = Path(__file__).parents[2] / "docs" / "results" / "scale.json"
AT = (10**3, 10**4, 10**5, 10**6)
MEMORY = 64 * 10**9
SMALL_SECONDS = 0.05  # below, the clock and the interpreter say more than the method
Measured = Mapping[int, Mapping[str, float]]


@cache
def measured() -> dict[str, dict[int, dict[str, float]]]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return {name: {int(n): row for n, row in sizes.items()} for name, sizes in found.items() if name in methods.classes}


def polynomial(sizes: Measured, key: str) -> np.ndarray:
    """Return the coefficients of the parabola through the measurements, highest power first; bytes per client or pair are on one."""
    clients = sorted(sizes)[-3:]
    found = np.polyfit(clients, [sizes[n][key] for n in clients], len(clients) - 1)
    found = np.pad(found, (3 - len(found), 0))
    return np.where(abs(found) < 1e-3, 0.0, found)  # less than a thousandth of a byte is rounding


def at(sizes: Measured, key: str, clients: int) -> float:
    """Return a number as measured, or on the parabola through the measurements."""
    return sizes[clients][key] if clients in sizes else float(np.polyval(polynomial(sizes, key), clients))


def exponent(sizes: Measured, key: str) -> float:
    """Return p if the number grows like the p-th power of the clients, from the smallest to the largest measurement."""
    small, large = min(sizes), max(sizes)
    return math.log(max(sizes[large][key], 1e-9) / max(sizes[small][key], 1e-9)) / math.log(large / small)


def bytes_of(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if number >= 100 or unit == "B" else f"{number:.2g} {unit}"
        number /= 1000
    raise AssertionError


def growth(sizes: Measured, key: str) -> str:
    """Return how the server's work grows; constant if there is too little of it to tell."""
    if max(row[key] for row in sizes.values()) < SMALL_SECONDS:
        return "little"
    return f"{max(0.0, exponent(sizes, key)):.1f}"


def scale_table() -> str:
    """Return what each server keeps and sends, and how its work grows. What was not measured is in italics."""
    rows = []
    for name, sizes in sorted(measured().items()):
        kept = [_shown(sizes, "kept", n) for n in AT]
        each_round = sum(sizes[max(sizes)][key] for key in ("down", "up"))
        sent = [bytes_of(each_round + at(sizes, "sync", n)) for n in (AT[0], AT[-1])]
        traffic = sent[0] if sent[0] == sent[1] else f"{sent[0]}; *{sent[1]}* at 10⁶"
        own = bytes_of(sizes[max(sizes)]["client_keeps"])
        rows.append(
            [f"[`{name}`](methods/{name}.md)", *kept, traffic, growth(sizes, "cpu"), growth(sizes, "cpu_all"), own]
        )
    header = [
        "method",
        "keeps at 10³",
        "10⁴",
        "10⁵",
        "10⁶",
        "sent per round",
        "work, more clients",
        "work, more participants",
    ]
    return table([*header, "a client keeps"], rows, numbers=range(1, 9))


def _shown(sizes: Measured, key: str, clients: int) -> str:
    text = bytes_of(at(sizes, key, clients))
    return text if clients in sizes else f"*{text}*"


def stops_table() -> str:
    """Return the methods whose server cannot grow without end: why, and where its memory is full."""
    rows = []
    for name, sizes in sorted(measured().items()):
        pairs, each, _ = polynomial(sizes, "kept")
        slow = exponent(sizes, "cpu_all") > 1.5 and growth(sizes, "cpu_all") != "little"
        if each <= 0 and not slow:
            continue
        models = each / sizes[max(sizes)]["model"]
        why = [_models(round(models, 1)) if models >= 0.05 else f"keeps {bytes_of(each)} per client"]
        why += [f"keeps {pairs:.0f} bytes per pair of clients"] if pairs > 0 else []
        why += ["its work grows faster than the number of participants, as of all pairs"] if slow else []
        full = next(n for n in (10**k * m for k in range(3, 9) for m in range(1, 10)) if at(sizes, "kept", n) > MEMORY)
        rows.append((full, [f"[`{name}`](methods/{name}.md)", ", ".join(why), f"*{full:,} clients*"]))
    return table(
        ["method", "the server", "64 GB are full before"],
        [row for _, row in sorted(rows, key=lambda r: r[0])],
        numbers=[2],
    )


def _models(count: float) -> str:
    return "keeps a model per client" if count == 1 else f"keeps {count:g} models per client"


def averaged_list() -> str:
    """Return the methods that only average what clients send, all of it."""
    names = [name for name, cls in sorted(methods.classes.items()) if cls.up and set(cls.up) <= set(cls.averaged)]
    return ", ".join(f"[`{name}`](methods/{name}.md)" for name in names) + ".\n"
