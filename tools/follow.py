"""Build the wheel, install it into an empty environment, and follow the start page there to the letter.

    python -m tools.follow                                  # docs/index.md with this Python
    python -m tools.follow --python python3.13 --page docs/your-data.md

pip brings the versions of constraints.txt, so this needs a package index. The environment and everything that is written are in a
temporary folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.blocks import Block, blocks

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the new environment")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "index.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        programs = installed(Path(folder), args.python)
        print(f"installed after {time.monotonic() - began:.0f} s", flush=True)
        here = Path(folder) / "here"
        here.mkdir()
        said = ""
        for block in blocks(args.page.read_text()):
            if not block.not_run:
                said = follow(block, here, programs, said)
        print(f"followed {args.page.name} after {time.monotonic() - began:.0f} s", flush=True)


def installed(folder: Path, python: str) -> Path:
    """Install the wheel with the extra `report` into a new environment; return the folder of its programs."""
    wheels = folder / "wheels"
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", wheels, ROOT], check=True, capture_output=True
    )
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True, env=clean())
    programs = folder / "venv" / "bin"
    words = ["-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), f"{wheel}[report]"]
    subprocess.run([programs / "python", *words], check=True, env=clean())
    return programs


def follow(block: Block, here: Path, programs: Path, said: str) -> str:
    """Carry out one block as a reader would; return what it printed."""
    if block.kind == "text":
        assert " ".join(block.text.split()) in " ".join(said.split()), said
        return said
    print(f"$ {block.text.strip()}", flush=True)
    words = ["bash", "-ec", block.text] if block.kind == "sh" else [str(programs / "python"), "-c", block.text]
    path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160"}
    done = subprocess.run(words, cwd=here, env=clean() | path, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def clean() -> dict[str, str]:
    """Return the environment without what points to this repository."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


if __name__ == "__main__":
    main()
