"""Tables, pictures and pages that runs and comparisons share."""

from __future__ import annotations

import html
import io
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fedtailor.analysis.results import Result, read_results
from fedtailor.files import replace_text

if TYPE_CHECKING:
    import pandas as pd


class Results:
    """A folder with one run or several, shown as tables, pictures and a page."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def results(self) -> list[Result]:
        """The runs in the folder now; a run that is still going on elsewhere is read as far as it got."""
        return read_results(self.path)

    def table(self) -> pd.DataFrame:
        """Return a table with one row per method, best first: accuracy (mean of clients, best round, worst decile), bytes, seconds."""
        import pandas as pd

        from fedtailor.report.sheets import as_csv
        from fedtailor.report.tables import brief_sheet

        return pd.read_csv(io.StringIO(as_csv(brief_sheet(self.results))))

    def clients(self, *, baseline: str = "") -> pd.DataFrame:
        """Return a table with one row per client under the best method, against `baseline` (by default `local`)."""
        import pandas as pd

        from fedtailor.analysis.groups import by_method
        from fedtailor.report.clients import all_clients

        results = self.results
        found = [one.sheet() for one in all_clients(by_method(results), results[0].metric, baseline)]
        return pd.DataFrame(found[0].rows, columns=list(found[0].header)) if found else pd.DataFrame()

    def plot(self, path: str | PathLike[str] | None = None) -> Path:
        """Draw accuracy per round and per client, and save it as `path`, by default accuracy.png in the folder."""
        from fedtailor.report.clients import metric_picture

        target = Path(path) if path is not None else self.path / "accuracy.png"
        metric_picture(self.results, target)
        return target

    def report(self, path: str | PathLike[str] | None = None, *, baseline: str = "") -> Path:
        """Write the page that compares runs, by default report.html in the folder; `baseline` is a method to compare with."""
        from fedtailor.report.material import load_material
        from fedtailor.report.page import page
        from fedtailor.report.sections import sections

        target = Path(path) if path is not None else self.path / "report.html"
        command = f"ft.load({str(self.path)!r}).report({str(target)!r})"
        replace_text(target, page(sections(load_material([self.path], baseline), command)))
        return target

    def _repr_html_(self) -> str:
        head = f"<pre>{html.escape(repr(self))}</pre>"
        return head + self.table().to_html(index=False) if any(r.evaluated for r in self.results) else head
