"""Mutated data files: reading one gives valid numbers or an error that names the file, within seconds and little memory."""

from __future__ import annotations

import gzip
import io
import random
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.torture import Result
from bench.torture.contained import contained
from bench.torture.samples import KINDS, Kind
from fedtailor import limits
from fedtailor.errors import FedTailorError

TRIES = 3000
SMALLER = 1 << 24  # bytes that stand for a GB here, so that excess memory shows on small files
HUGE = (0, 1, 255, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**33, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "-1",
    "1e400",
    "9" * 400,
    "2147483648",
    "8589934592",
    "",
    "null",
    "=1",
    "\x1b[2J",
    "[]",
    "{}",
)


def run(share: float) -> list[Result]:
    rng = random.Random(11)
    count = max(len(KINDS), round(TRIES * share))
    with tempfile.TemporaryDirectory() as scratch:
        homes = [Path(scratch, str(i)) for i in range(len(KINDS))]
        # Written in a child too: Parquet starts threads, which a fork would lose.
        written = list(
            contained([partial(_write, k, h) for k, h in zip(KINDS, homes, strict=True)], lambda i: KINDS[i].name)
        )
        seeds = [rng.getrandbits(32) for _ in range(count)]
        tries = [
            partial(_attempt, KINDS[i % len(KINDS)], homes[i % len(KINDS)], Path(scratch, "tries", str(i)), seed)
            for i, seed in enumerate(seeds)
        ]
        read = list(contained(tries, lambda i: f"{i} {KINDS[i % len(KINDS)].name}"))
    return [
        Result.of("a valid file of each kind is read", written),
        Result.of("a mutated file is read into sound numbers or refused by name", read),
    ]


def _write(kind: Kind, home: Path) -> str:
    home.mkdir()
    kind.write(home)
    copy = home.with_name(f"{home.name} valid")
    shutil.copytree(home, copy)
    try:
        kind.read(copy)
    except FedTailorError as error:
        return f"a valid file is refused: {error}"
    return ""


def _attempt(kind: Kind, home: Path, place: Path, seed: int) -> str:
    limits.GB = SMALLER
    rng = random.Random(seed)
    shutil.copytree(home, place)
    file = rng.choice(sorted(f for f in place.rglob("*") if f.is_file()))
    data = file.read_bytes()
    for _ in range(rng.randint(1, 2)):
        data = rng.choice(MUTATIONS if kind.binary else MUTATIONS + 2 * IN_TEXT)(rng, data)
    file.write_bytes(data)
    try:
        tensors = kind.read(place)
    except FedTailorError as error:
        named = str(place) in str(error) or "Ask for" in str(error) or "client" in str(error).lower()
        return "" if named else f"{file.name} is refused without its name: {error}"
    finally:
        shutil.rmtree(place)
    sound = all(bool(t.isfinite().all()) for t in tensors)
    return "" if sound else f"{file.name} is read into NaN or infinity"


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20)) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _flip_at_the_start(rng: random.Random, data: bytes) -> bytes:
    return _flip(rng, data[:128]) + data[128:]


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _splice(rng: random.Random, data: bytes) -> bytes:
    start, end, at = (rng.randrange(len(data) + 1) for _ in range(3))
    return data[:at] + data[min(start, end) : max(start, end)] + data[at:]


def _leave_out(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randint(1, 64) :]


def _grow(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    block = data[start : start + rng.randint(1, 256)]
    return data[:start] + block * rng.choice((10, 1000, 20_000)) + data[start:]


def _blank(rng: random.Random, data: bytes) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.randint(1, 200)
    return data[:at] + rng.choice((b"\0", b"\xff", b"}", b"0", b",", b"\n")) * length + data[at + length :]


def _number(rng: random.Random, data: bytes) -> bytes:
    """Change a binary number, most often in a header or in the directory at the end."""
    form = rng.choice(("<I", ">I", "<Q", ">Q", "<H"))
    value = rng.choice(HUGE) % 256 ** struct.calcsize(form)
    at = rng.choice((rng.randrange(128), rng.randrange(len(data) + 1), max(0, len(data) - rng.randrange(300))))
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


def _digits(rng: random.Random, data: bytes) -> bytes:
    """Change a number written as text, also in the header of an .npy file."""
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return data
    chosen = rng.choice(found[: rng.choice((8, len(found)))])
    return data[: chosen.start()] + str(rng.choice(HUGE)).encode() + data[chosen.end() :]


def _inside(rng: random.Random, data: bytes) -> bytes:
    """Mutate the contents of a gzipped file or an archive, packed again with correct checksums."""
    change = rng.choice(PLAIN)
    try:
        if data[:2] == b"\x1f\x8b":
            return gzip.compress(change(rng, gzip.decompress(data)), 1, mtime=0)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except Exception:
        members = {}
    if not members:
        return change(rng, data)
    chosen = rng.choice(sorted(members))
    packed = io.BytesIO()
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(packed, "w", rng.choice(kinds)) as archive:
        for name, member in members.items():
            archive.writestr(name, change(rng, member) if name == chosen else member)
    return packed.getvalue()


def _bomb(rng: random.Random, data: bytes) -> bytes:
    """Return a few bytes that unpack to much more than the limit."""
    blank = bytes([rng.choice(b"\0,0}\n")]) * (8 * SMALLER)
    if data[:2] == b"PK":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(rng.choice(("x.npy", "data.npy")), blank)
        whole = packed.getvalue()
        # Half of them declare a small size.
        return whole if rng.random() < 0.5 else whole.replace(struct.pack("<I", len(blank)), struct.pack("<I", 1000))
    return gzip.compress(blank, 1, mtime=0)


def _other_kind(rng: random.Random, data: bytes) -> bytes:
    return rng.choice(
        (
            b"",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
            b"PK\5\6" + bytes(18),
            b"\x93NUMPY\1\0",
            b"{",
        )
    )


def _word(rng: random.Random, data: bytes) -> bytes:
    found = list(re.finditer(rb"[^,\[\]{}: \n\r]+", data))
    if not found:
        return data
    chosen = rng.choice(found)
    return data[: chosen.start()] + rng.choice(NUMBERS).encode() + data[chosen.end() :]


def _line(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = rng.choice(
        (b"," * 100_000, lines[at] * 2, b'"' + lines[at], lines[at].replace(b",", b"\t"), b"\xff\xfe")
    )
    return b"\n".join(lines) + b"1\n" * rng.choice((0, 0, 5000))


Mutation = Callable[[random.Random, bytes], bytes]
PLAIN: list[Mutation] = [_flip, _flip_at_the_start, _cut, _splice, _leave_out, _grow, _blank, _number, _digits, _digits]
MUTATIONS: list[Mutation] = [*PLAIN, _inside, _inside, _inside, _inside, _bomb, _other_kind]
IN_TEXT: list[Mutation] = [_word, _word, _word, _line]
