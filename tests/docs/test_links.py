"""Every link between pages, and from README and CONTRIBUTING to them, leads to a file and to a heading that there is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tools.pages import cards, commands, options

ROOT = Path(__file__).parents[2]
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")


@cache
def generated() -> dict[Path, str]:
    made = {**cards.pages(), "reference/commands.md": commands.page(), "reference/options.md": options.page()}
    return {ROOT / "docs" / path: text for path, text in made.items()}


def anchors(text: str) -> set[str]:
    """Return the anchors of headings, as both GitHub and mkdocs make them, and those of the Python reference."""
    plain = FENCED.sub("", text)
    titles = [
        re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    ]
    slugs = {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}
    return slugs | set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


def broken(page: Path, text: str) -> list[str]:
    found = []
    for path, anchor in LINK.findall(FENCED.sub("", text)):
        target = (page.parent / path).resolve() if path else page
        content = generated().get(target)
        if content is None and not target.exists():
            found.append(path)
        elif anchor and target.suffix == ".md":
            known = anchors(target.read_text() if content is None else content)
            found += [f"{path}#{anchor}"] if anchor not in known else []
    return found


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_links_of_a_page(page):
    assert broken(page, page.read_text()) == []


def test_links_of_generated_pages():
    assert {page.name: found for page, text in generated().items() if (found := broken(page, text))} == {}


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in WRITTEN[2:]:
        path = page.relative_to(ROOT / "docs").as_posix()
        assert path in listed or path.startswith("results/"), path


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# One title\n\n[a](#one-title) [b](#other) [c](missing.md) [d](https://example.org/x)\n")
    assert broken(page, page.read_text()) == ["#other", "missing.md"]
