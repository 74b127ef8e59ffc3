"""The tables of what leaves a client, for the page on privacy."""

from __future__ import annotations

from fedtailor.methods import methods
from fedtailor.privacy.reveals import LEARNT
from fedtailor.privacy.sample_dp import why_not
from fedtailor.report.sheets import escape_markdown
from tools.pages.text import code, table


def methods_table() -> str:
    rows = [
        [f"[`{name}`](methods/{name}.md)", code(cls.down), code(cls.up), code(cls.keeps)]
        for name, cls in sorted(methods.classes.items())
    ]
    return table(["method", "the server sends", "a client sends", "a client keeps"], rows)


def sample_dp_table() -> str:
    """Which methods private steps protect, and why the others are refused."""
    kinds = dict(sorted(methods.classes.items()))
    able = [f"[`{name}`](methods/{name}.md)" for name, cls in kinds.items() if not why_not(cls)]
    rows = [[", ".join(able), "protected"]]
    rows += [
        [f"[`{name}`](methods/{name}.md)", f"refused: {reason}"]
        for name, cls in kinds.items()
        if (reason := why_not(cls))
    ]
    return table(["method", "privacy for samples"], rows)


def entries_table() -> str:
    return table(
        ["entry", "what it reveals"], [[f"`{entry}`", escape_markdown(what)] for entry, what in LEARNT.items()]
    )
