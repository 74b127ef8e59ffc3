"""One version everywhere, a package whose types a user's program can rely on, and files that others read by machine."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import fedtailor as ft

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CLIENT = ROOT / "tests" / "typed_client.py"


def test_the_version_is_the_same_everywhere(fedtailor):
    assert ft.__version__ == VERSION
    assert fedtailor("--version").startswith(f"fedtailor {VERSION} ")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION


def test_the_citation_has_what_the_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["version"], citation["license"], citation["type"]) == (VERSION, "Apache-2.0", "software")


@pytest.mark.usefixtures("registries")
def test_a_typed_program_of_a_user_runs(tmp_path):
    assert runpy.run_path(str(CLIENT))["main"](tmp_path) == (2, VERSION)


@pytest.mark.slow
def test_a_typed_program_of_a_user_passes_a_strict_type_checker():
    assert (Path(ft.__file__).parent / "py.typed").exists()
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--follow-imports", "silent"]
    where = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run([*command, str(CLIENT)], capture_output=True, text=True, env=where)
    assert done.returncode == 0, done.stdout


def test_the_forms_for_issues_are_complete():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [form.name for form in forms] == ["bug.yml", "config.yml", "data.yml", "method.yml"]
    for form in forms:
        said = yaml.safe_load(form.read_text())
        if form.name != "config.yml":
            assert {"name", "description", "body"} <= set(said)
            fields = [field for field in said["body"] if field["type"] != "markdown"]
            assert all({"id", "attributes"} <= set(field) and field["attributes"]["label"] for field in fields)
            assert len({field["id"] for field in fields}) == len(fields)
