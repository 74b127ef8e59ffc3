"""The generated pages of the site: a card for each method, a section for each command, a row for each option."""

from __future__ import annotations

import re
import shlex

import pytest

from fedtailor.experiment.config import CHOICES, Config, DataSettings, Settings
from fedtailor.methods import methods
from fedtailor.registry import options
from tools.pages import cards, commands, leaves
from tools.pages import options as options_page
from tools.pages.evidence import natural
from tools.pages.text import shown

NAMES = sorted(methods.classes)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return cards.pages()


def test_every_method_has_equations_and_nothing_else_has():
    assert sorted(cards.equations()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_equations_are_given_once(name):
    known = cards.equations()[name]
    assert len(known.keys() & {"steps", "same_as"}) == 1
    if "same_as" in known:
        assert issubclass(methods.classes[name], methods.classes[known["same_as"]])
        assert "steps" in cards.equations()[known["same_as"]]
    for says, tex in known.get("steps", []):
        assert says.count("$") % 2 == 0
        assert tex.count("{") == tex.count("}")
        assert tex.count(r"\left") - tex.count(r"\leftarrow") == tex.count(r"\right") - tex.count(r"\rightarrow")


@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_idea_options_and_what_travels(name, pages):
    card, cls = pages[f"methods/{name}.md"], methods.classes[name]
    assert card.startswith(f"# {name}\n")
    for title in (
        "How it works",
        "What travels, what stays",
        "Options",
        "When it helps, and when not",
        "Try it",
    ):
        assert f"\n## {title}\n" in card
    for option in options(cls):
        (row,) = re.findall(rf"^\| `method\.{option.name}` \|.*$", card, re.MULTILINE)
        assert f"`{shown(option.default)}`" in row
    for entry in cls.up:
        assert f"- from `{entry}`: " in card
    assert f"[`{name}`]({name}.md)" in pages["methods/index.md"]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_card_is_a_run(name):
    program, command, *words = shlex.split(cards.example(name))
    assert program == "fedtailor"
    keys = [word for word in words if "=" in word]
    others = [word for word in words if "=" not in word]
    assert command == ("compare" if others else "run")
    assert name in others or f"method={name}" in keys
    for method in others or [name]:
        Config.load(None, [f"method={method}", *(key for key in keys if not key.startswith("method="))])


def test_places_are_those_of_the_results_page():
    places = natural()
    first, *_ = places["local"]
    assert first.gain == 0
    for data in range(len(places["fedavg"])):
        title = places["fedavg"][data].data
        there = [place for own in places.values() for place in own if place.data == title]
        assert sorted(place.rank for place in there) == list(range(1, len(there) + 1))
        assert {place.methods for place in there} == {len(there)}
        ranked = sorted((place for place in there if place.gain is not None), key=lambda place: place.rank)
        gains = [place.gain or 0.0 for place in ranked]
        assert gains == sorted(gains, reverse=True)


def test_a_method_that_diverged_did_not_help(tmp_path):
    page = tmp_path / "natural.md"
    page.write_text(
        "## Some data\n\n3 clients; rmse, mean ± standard deviation of 2 seeds.\n\n"
        "| method | mean over clients | pooled | gain over alone | worse off than alone |\n|---|---:|---:|---:|---:|\n"
        "| local | 2.0 ± 0.1 | 2.0 | +0.0000 | 0 |\n| fedafk | diverged | diverged | diverged | 3 |\n"
    )
    (place,) = natural(page)["fedafk"]
    assert (place.rank, place.methods, place.gain, place.helped) == (2, 2, None, False)
    text = cards.card(methods.classes["fedafk"], [place], {})
    assert "Not better than training alone on Some data." in text


def test_every_command_has_a_section_with_its_options():
    page = commands.page()
    for name, command in commands.every_command().items():
        section = page.split(f"## fedtailor {name}\n", 1)[1].split("\n## ", 1)[0]
        assert (command.help or "").split("\n\n")[0].split("\n")[0][:40] in section
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(f"`{word}`" in section for word in parameter.opts)


def test_every_option_has_a_row():
    page = options_page.page()
    keys = [o.name for o in options(Settings)] + [f"data.{o.name}" for o in options(DataSettings)]
    for kind in ("data", "partition", "net", "robust", "attack"):
        for name, cls in CHOICES[kind].classes.items():
            assert f"\n### {name}\n" in page
            keys += [f"{kind}.{o.name}" for o in options(cls)]
    for key in keys:
        assert f"| `{key}` |" in page
    assert all(f"(../methods/{name}.md#options)" in page for name in NAMES)


def test_what_leaves_a_client_is_listed_for_every_method():
    table = leaves.methods_table()
    for name in NAMES:
        (row,) = [line for line in table.splitlines() if line.startswith(f"| [`{name}`]")]
        assert all(f"`{entry}`" in row for entry in methods.classes[name].up)
