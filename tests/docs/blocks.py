"""The fenced blocks of a page, and how they are carried out: from top to bottom, in one folder, with one set of Python variables.

A comment before a block says what a test needs to know:

    <!-- not run: reason -->       the block is only checked: its commands, options and keys exist
    <!-- quick: rounds=1 -->       run with these words added; in Python, with these values in place of those given
    <!-- setup … -->               Python that makes what the page takes for granted
    <!-- none run: reason -->      no block of the page is run

A Python block that starts with `# name.py` is a file. A `text` block is what the commands before it print; if it starts with "Error:", they
fail.
With FEDTAILOR_BLOCKS=full, `quick` is ignored and everything is run as it is written.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.docs.checked import check

FULL = os.environ.get("FEDTAILOR_BLOCKS") == "full"
FENCED = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^(?P=indent)```$"
    r"|<!-- (?P<mark>setup|quick|not run|none run):?(?P<says>.*?)-->",
    re.MULTILINE | re.DOTALL,
)
RUN = {"sh", "python"}


@dataclass
class Block:
    kind: str
    text: str
    quick: str = ""
    not_run: str = ""
    setup: str = ""

    def lines(self) -> list[str]:
        """Return the commands: continued lines joined, comments left out."""
        lines = [re.sub(r"(^|\s+)#.*$", "", line).strip() for line in self.text.replace("\\\n", " ").splitlines()]
        return [line for line in lines if line]


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page that are commands, Python or output."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    for match in FENCED.finditer(text):
        if match["mark"]:
            marks[match["mark"].replace(" ", "_")] = match["says"].strip()
            continue
        whole, indent = marks.pop("none_run", ""), len(match["indent"])
        lines = "".join(line[indent:] for line in match["text"].splitlines(keepends=True))
        block = Block(match["kind"], lines, **marks)
        block.not_run = block.not_run or whole
        marks = {"none_run": whole} if whole else {}
        if block.kind in (*RUN, "text"):
            found.append(block)
    assert marks.keys() <= {"none_run"}, f"no block follows: {marks}"
    return found


@dataclass
class Reader:
    """Somebody who follows a page to the letter in the current folder. `fedtailor` is the command, in this process."""

    fedtailor: Callable[..., str]
    log: Callable[[], str] = lambda: ""
    known: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    said: str = ""

    def follow(self, page: list[Block]) -> None:
        for block, after in zip(page, [*page[1:], None], strict=True):
            if block.setup:
                exec(block.setup, {})
            if block.not_run:
                for line in block.lines() if block.kind == "sh" else []:
                    check(line)
            elif block.kind == "text":
                assert " ".join(block.text.split()) in " ".join(self.said.split()), self.said
            elif block.kind == "python":
                self.python(block)
            else:
                fails = after is not None and after.kind == "text" and after.text.startswith("Error:")
                self.said = "".join(self.command(line, block.quick, 2 if fails else 0) for line in block.lines())
                self.said += self.log()

    def python(self, block: Block) -> None:
        text = block.text if FULL else shortened(block.text, block.quick)
        if file := re.match(r"# (\w+\.py)\n", text):
            Path(file[1]).write_text(text)
        else:
            exec(compile(text, "block", "exec"), self.known)

    def command(self, line: str, quick: str, code: int) -> str:
        program, *words = shlex.split(line)
        if program == "fedtailor":
            return self.fedtailor(*words, *([] if FULL else shlex.split(quick)), code=code)
        assert program in ("python", "pytest"), f"say why this is not run: {line}"
        if program == "pytest":
            start = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            done = subprocess.run([*start, *words], capture_output=True, text=True, env=outside())
            assert done.returncode == code, done.stdout + done.stderr
            return done.stdout
        words, into = (words[:-2], words[-1]) if ">" in words else (words, None)
        said = script(words)
        if into:
            Path(into).write_text(said)
        return said


def script(words: list[str]) -> str:
    """Return what a program in a file prints, carried out in this process, which has PyTorch already."""
    before, sys.argv = sys.argv, words
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before
    return said.getvalue()


def shortened(python: str, quick: str) -> str:
    for word in quick.split():
        key, _, value = word.partition("=")
        python = re.sub(rf"\b{re.escape(key)}=[\w.]+", f"{key}={value}", python)
    return python


def outside() -> dict[str, str]:
    """Return an environment with the package, and nothing else of this repository."""
    return {**os.environ, "PYTHONPATH": str(Path(str(sys.modules["fedtailor"].__file__)).parents[1])}
