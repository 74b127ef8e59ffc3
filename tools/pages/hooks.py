"""Hooks of mkdocs: add the generated pages, fill in generated tables, and turn LaTeX into MathML."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.pages import cards, commands, leaves, mathematics, notebooks, options, scale  # noqa: E402

PICTURE = re.compile(r"!\[[^]]*\]\((images/[\w-]+\.svg)\)")
FOR_TESTS = re.compile(
    r"^ *<!-- (setup|quick|not run|none run)\b.*?-->\n", re.MULTILINE | re.DOTALL
)  # see tests/docs/blocks.py
TABLES = {
    "methods": leaves.methods_table,
    "entries": leaves.entries_table,
    "sample_dp": leaves.sample_dp_table,
    "scale": scale.scale_table,
    "stops": scale.stops_table,
    "averaged": scale.averaged_list,
}


def on_config(config: Any) -> Any:
    """List the method cards by family, and all pages of results, in the navigation."""
    for entry in config.nav:
        if "Methods" in entry:
            entry["Methods"] = [
                "methods/index.md",
                *({title: [f"methods/{n}.md" for n in names]} for title, names in cards.by_family().items()),
            ]
        if "Results" in entry:
            found = sorted(p.name for p in (Path(config.docs_dir) / "results").glob("*.md"))
            entry["Results"] += [f"results/{name}" for name in found if f"results/{name}" not in entry["Results"]]
    return config


def on_files(files: Files, config: Any) -> Files:
    made: dict[str, str | bytes] = {
        **cards.pages(),
        "reference/commands.md": commands.page(),
        "reference/options.md": options.page(),
    }
    made |= notebooks.pages()
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Leave out what only tests read, fill in tables, and put pictures that are SVG into the page itself, where they follow its colours."""
    markdown = FOR_TESTS.sub("", markdown)
    for name, made in TABLES.items():
        markdown = markdown.replace(f"<!-- table: {name} -->", made())
    return PICTURE.sub(lambda found: _block((Path(config.docs_dir) / found[1]).read_text()), markdown)


def on_page_content(html: str, **_: Any) -> str:
    return mathematics.with_mathml(html)


def _block(svg: str) -> str:
    """Return a picture as a block of HTML: without blank lines, which would end it."""
    return "\n".join(["<div>", *(line for line in svg.splitlines() if line.strip()), "</div>"])
