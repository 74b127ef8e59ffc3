"""Make patients.csv and new.csv here: the made-up patients of docs/your-data.md, by the script on that page."""

import re
from pathlib import Path

page = Path(__file__).resolve().parents[2] / "docs" / "your-data.md"
found = re.search(r"```python\n(# make_patients\.py\n.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
if found is None:
    raise SystemExit(f"{page} has no script make_patients.py.")
exec(compile(found[1], "make_patients.py", "exec"))
