from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_type_hints

import pytest

from fedtailor import FedTailorError
from fedtailor.registry import Registry, build, option, options


@dataclass(frozen=True)
class Thing:
    """A thing."""

    size: int = option(3, "how large", at_least=1, at_most=9)
    kind: Literal["round", "square"] = option("round", "which form")
    rate: float = option(0.5, "how fast", above=0.0)
    on: bool = option(True, "whether it is on")


def test_values_are_converted_and_checked():
    assert build(Thing, {"size": "4", "on": "false", "rate": 1}) == Thing(4, "round", 1.0, False)
    for values, message in (
        ({"size": 10}, "x.size = 10 is not allowed: expected int ≥ 1 and ≤ 9 (how large)"),
        ({"kind": "squar"}, "expected round | square (which form). Did you mean 'square'?"),
        ({"rate": 0}, "expected float > 0"),
        ({"siez": 1}, "Unknown key 'x.siez'. Did you mean 'size'? Allowed: size, kind, rate, on."),
        ({"on": "maybe"}, "x.on = 'maybe' is not allowed: expected bool"),
    ):
        with pytest.raises(FedTailorError) as error:
            build(Thing, values, "x")
        assert message in str(error.value)


def test_options_tell_name_type_default_and_meaning():
    first = options(Thing)[0]
    assert (first.name, first.type, first.default, first.meaning) == ("size", "int ≥ 1 and ≤ 9", 3, "how large")


def test_annotations_are_read_once(monkeypatch):
    @dataclass(frozen=True)
    class Fresh:
        size: int = option(3, "how large", at_least=1, at_most=9)
        on: bool = option(True, "whether it is on")

    read = []
    monkeypatch.setattr("fedtailor.registry.get_type_hints", lambda cls: read.append(cls) or get_type_hints(cls))
    for size in (1, 2):
        assert build(Fresh, {"size": str(size), "on": "false"}) == Fresh(size, False)
    assert read == [Fresh]


def test_names_are_found_in_any_spelling():
    registry: Registry = Registry("thing")
    registry.register("fedavg-ft", "FedAvg+FT")(Thing)
    assert {registry.find(n) for n in ("fedavg-ft", "FedAvg+FT", "FEDAVG_FT", "FedAvg FT")} == {Thing}
    with pytest.raises(FedTailorError, match=r"There is no thing 'fedavg-fd'\. Did you mean 'fedavg-ft'"):
        registry.find("fedavg-fd")


@dataclass(frozen=True)
class Wide:
    """A thing without bounds of its own."""

    count: int = option(1, "how many")
    rate: float | None = option(None, "how fast")
    widths: tuple[int, ...] = option((1,), "how wide each", at_least=1, at_most=9)
    name: str = option("", "what it is called")


@pytest.mark.parametrize(
    "values",
    [
        *({"rate": float(x)} for x in ("nan", "inf", "-inf", "1e13")),
        *({"count": n} for n in (10**13, -(10**400), 10**5000, True, float("nan"), "nan", {}, [])),
        *({"widths": w} for w in ([0], [1, 10], [float("inf")], 50, True, "x", "4,x", {})),
        *({"name": n} for n in ("a" * 5000, "a\0", "\ud800", 5)),
    ],
)
def test_what_no_option_can_be_is_refused_in_words(values):
    with pytest.raises(FedTailorError, match="is not allowed: expected") as error:
        build(Wide, values, "x")
    assert len(str(error.value)) < 300


def test_a_name_that_is_no_text_is_refused():
    things: Registry = Registry("thing")
    things.register("wide")(Wide)
    for name in (5, None, ["wide"], Wide):
        with pytest.raises(FedTailorError, match=r"thing = .* is not a name\. Known: wide\."):
            things.build(name, {})
    with pytest.raises(FedTailorError, match="does not exist"):
        things.find("a" * 3000 + ".py")


@dataclass(frozen=True)
class Listed:
    """A thing with lists."""

    widths: tuple[int, ...] = option((1,), "how wide each")
    names: tuple[str, ...] = option((), "what they are called")
    share: float | tuple[float, float] = option(1.0, "one, or from and to")
    weights: Literal["none", "balanced"] | tuple[float, ...] = option("none", "how much each counts")


@pytest.mark.parametrize(
    ("key", "typed", "expected"),
    [
        *(("widths", typed, (128,)) for typed in (128, "128", "[128]", [128], (128,))),
        *(("widths", typed, (128, 64)) for typed in ("128,64", "128, 64", "[128, 64]", [128, 64])),
        ("widths", [], ()),
        *(("names", typed, ("sex", "age")) for typed in ("sex,age", "[sex, age]", "['sex', \"age\"]", ["sex", "age"])),
        *(("names", typed, ("2020",)) for typed in (2020, "2020", [2020])),
        *(("share", typed, (0.1, 1.0)) for typed in ("0.1,1", "[0.1, 1]", [0.1, 1])),
        ("share", 0.5, 0.5),
        *(("weights", typed, (1.0, 2.0)) for typed in ("1,2", [1, 2])),
        ("weights", "balanced", "balanced"),
    ],
)
def test_lists_are_taken_as_a_person_types_them(key, typed, expected):
    assert getattr(build(Listed, {key: typed}), key) == expected


def test_types_are_named_in_words():
    assert [o.type for o in options(Listed)] == [
        "list of int",
        "list of str",
        "float | [float, float]",
        "none | balanced | list of float",
    ]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\nclass A(:", "'mine.py' cannot be imported: line 2: SyntaxError: invalid syntax."),
        (
            "import fedtailor\n\nfedtailor.nothing",
            "line 3: AttributeError: module 'fedtailor' has no attribute 'nothing'.",
        ),
        ("import no_such_package", "line 1: ModuleNotFoundError: No module named 'no_such_package'."),
        ("x = 1", "must register exactly one net (it registers 0): decorate one class, such as with @ft.nets.register"),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_is_told_with_its_line(code, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(FedTailorError) as error:
        Registry("net").find("mine.py")
    assert said in str(error.value)
