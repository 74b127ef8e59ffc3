"""The page says what the bench of private steps has measured."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_figures_of_the_file():
    ratios = json.loads((DOCS / "results" / "private_steps.json").read_text())

    def span(net: str) -> str:
        own = [ratio for name, ratio in ratios.items() if name.startswith(net)]
        return f"{min(own):.1f} to {max(own):.1f} times"

    page = " ".join((DOCS / "privacy.md").read_text().split())
    assert f"{span('mlp')} as long as a plain one on the MLP, and {span('cnn')} on the CNN" in page
