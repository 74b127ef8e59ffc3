"""Notebooks: small, without outputs, and as pages with what they draw. `make docs` executes them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.docs.test_links import broken

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
nbformat = pytest.importorskip("nbformat", reason="needs the extra docs")
notebooks = pytest.importorskip("tools.pages.notebooks", reason="needs the extra docs")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_text_code_and_no_outputs(path):
    notebook = json.loads(path.read_text())
    nbformat.validate(nbformat.read(path, 4))
    text = [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert "".join(text[0]["source"]).startswith("# ")
    assert len(text) >= len(code) / 2
    for cell in code:
        compile("".join(cell["source"]), path.name, "exec")
    said = "\n\n".join("".join(cell["source"]) for cell in text)
    assert broken(path, said) == []
    assert f"notebooks/{path.stem}.md" in (ROOT / "mkdocs.yml").read_text()


def test_a_page_shows_what_a_notebook_printed_and_drew():
    code = nbformat.v4.new_code_cell("draw()")
    code.outputs = [
        nbformat.v4.new_output("stream", text="said\n"),
        nbformat.v4.new_output(
            "display_data", {"image/png": base64.b64encode(b"picture").decode(), "text/plain": "<F>"}
        ),
        nbformat.v4.new_output("execute_result", {"text/html": '<style>x</style><table border="1" class="dataframe">'}),
        nbformat.v4.new_output("execute_result", {"text/plain": "3"}),
    ]
    text = nbformat.v4.new_markdown_cell("# Title\n\n[a](../../docs/privacy.md)")
    found = notebooks.rendered("one", nbformat.v4.new_notebook(cells=[text, code]))
    assert found["notebooks/one-1.png"] == b"picture"
    page = found["notebooks/one.md"]
    for part in (
        "[a](../privacy.md)",
        "```python\ndraw()\n```",
        "```text\nsaid\n```",
        "](one-1.png)",
        "<table>",
        "```text\n3\n```",
    ):
        assert part in page
    assert "style" not in page
