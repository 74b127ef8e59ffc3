"""The notebooks of examples/notebooks as pages: executed, with their tables and pictures."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"
EXECUTED = ROOT / "build" / "notebooks"  # so that the site can be built again without executing what has not changed
SECONDS = 600  # for one cell; on an idle machine a whole notebook takes less than a minute
STYLE = re.compile(r"<style.*?</style>|\s(?:class|style|border)=\"[^\"]*\"", re.DOTALL)


def pages() -> dict[str, str | bytes]:
    """Execute all notebooks; return pages and pictures by path below docs."""
    found: dict[str, str | bytes] = {}
    for path in sorted(FOLDER.glob("*.ipynb")):
        found |= rendered(path.stem, executed(path))
    return found


def executed(path: Path) -> Any:
    """Return a notebook with its outputs. A cell that fails is an error."""
    known = EXECUTED / f"{path.stem}-{_fingerprint(path)}.ipynb"
    if known.exists():
        return nbformat.read(known, 4)
    notebook = nbformat.read(path, 4)
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")  # not reached from elsewhere
    NotebookClient(notebook, km=kernel, timeout=SECONDS).execute()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, known)
    return notebook


def rendered(name: str, notebook: Any) -> dict[str, str | bytes]:
    """Return the page of an executed notebook, and its pictures beside it."""
    text: list[str] = []
    pictures: dict[str, str | bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text.append(cell.source.replace("](../../docs/", "](../"))
            continue
        text.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[f"notebooks/{picture}"] = base64.b64decode(data["image/png"])
                text.append(f"![What the code above draws]({picture}){{ .drawn }}")
            elif "text/html" in data:
                text.append(STYLE.sub("", data["text/html"]).replace("\n\n", "\n"))
            else:
                text.append(f"```text\n{output.get('text', data.get('text/plain', '')).rstrip()}\n```")
    text.append(f"The notebook is `examples/notebooks/{name}.ipynb` in the repository.")
    return {f"notebooks/{name}.md": "\n\n".join(text) + "\n", **pictures}


def _fingerprint(path: Path) -> str:
    """Return a checksum of the notebook and of the package."""
    files = [path, *sorted((ROOT / "src").rglob("*.py"))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]
