"""Names from files on their way out: what a terminal would obey and a spreadsheet would compute is only shown."""

from __future__ import annotations

import csv
import io
import logging

import numpy as np
import pytest
from rich.table import Table

from fedtailor import Federation, Simulation
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.printable import cell, printable
from fedtailor.report.sheets import escape_html, escape_latex, escape_markdown, write_csv
from fedtailor.terminal import PrintableFormatter, Terminal

HOSTILE = ("\x1b[2J\x1b]0;owned\x07", "a\rb\nc", "\x9b31m", "x\u202egnp.exe", "half \ud800", "\x00\x7f\u2028")


@pytest.mark.parametrize("name", HOSTILE)
def test_control_characters_are_shown(name):
    shown = printable(name)
    assert shown.isprintable()
    assert shown.encode()
    for text in (cell(name), escape_html(name), escape_markdown(name), escape_latex(name)):
        assert text.isprintable()


def test_other_text_stays_as_it_is():
    for name in ("Zürich", "東京", "नई दिल्ली", "👩‍⚕️", 'a, "b"', "[red]", ""):
        assert printable(name) == cell(name) == name
    assert printable("a\n\x1bb", lines=True) == "a\n\\x1bb"
    assert printable("a\nb") == r"a\nb"


def test_no_cell_of_a_csv_file_is_a_formula():
    assert cell("=1+1") == "'=1+1"
    assert cell("@SUM(A1)") == "'@SUM(A1)"
    assert cell("+cmd|' /C calc'!A0").startswith("'+")
    assert cell("\t=1") == r"\t=1"
    assert [cell(text) for text in ("-1", "+2.5e3", "a-b", "1=2")] == ["-1", "+2.5e3", "a-b", "1=2"]
    rows = list(csv.reader(io.StringIO(write_csv([("name", "n"), ("=cmd", -3.5), ("a\nb", 2)]))))
    assert rows == [["name", "n"], ["'=cmd", "-3.5"], [r"a\nb", "2"]]


def test_the_clients_of_a_run_are_listed_safely(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(8, 3)).astype("float32"), np.arange(8) % 2
    names = ["=HYPERLINK(1)", 'two\n"lines"', "\x1b[31mred"]
    federation = Federation.from_clients(dict.fromkeys(names, (x, y)))
    simulation = Simulation(federation, "local", "mlp", rounds=1, engine="inline").run()
    folder = RunFolder(tmp_path)
    folder.write_clients(simulation)
    text = (folder.path / "clients.csv").read_text()
    assert all(line.isprintable() for line in text.splitlines())
    assert [row["name"] for row in csv.DictReader(io.StringIO(text))] == [
        "'=HYPERLINK(1)",
        r"two\n" + '"lines"',
        r"\x1b[31mred",
    ]


def test_the_terminal_shows_what_it_is_told(capsys):
    terminal = Terminal()
    terminal.print("[red]x[/red] :smile: \x1b[31m\nsecond line")
    table = Table(title="\x1b]0;t\x07")
    table.add_column("a\x1b[2J")
    table.add_row("[bold]b[/bold]\x9b")
    terminal.print(table)
    shown = capsys.readouterr().out
    assert r"[red]x[/red] :smile: \x1b[31m" + "\nsecond line" in shown
    assert r"[bold]b[/bold]\x9b" in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_log_messages_are_shown_too():
    record = logging.LogRecord("x", logging.WARNING, "", 0, "client '%s' is late", ("\x1b[2J",), None)
    assert PrintableFormatter("%(message)s").format(record) == r"client '\x1b[2J' is late"
