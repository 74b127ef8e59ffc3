"""What sites tell of their data, what they have in common, and the federation that a server makes of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from fedtailor.data.description import Column, Description
from fedtailor.data.sites import (
    ASPECTS,
    SiteDescription,
    aspects,
    common_to,
    disclosed,
    federation_of,
    unfit,
    united,
)
from fedtailor.errors import FedTailorError

FIRST = SiteDescription(0, "north", 30, 10, Description((5,), 2, labels=("no", "yes")))
SECOND = replace(FIRST, client=1, name="south", train=10)

STAGE = Column("stage", "category", ("I", "II", "III"))
AGE = Column("age", "number", mean=60.0, std=10.0)
PATIENTS = Description((6,), 2, labels=("alive", "dead"), label="outcome", columns=(STAGE, AGE))
NORTH = SiteDescription(0, "north", 30, 10, PATIENTS)


def but(site: SiteDescription, **changes: Any) -> SiteDescription:
    assert site.data is not None
    return replace(site, data=replace(site.data, **changes))


def table(client: int, name: str, *columns: Column, **changes: Any) -> SiteDescription:
    width = sum(column.width for column in columns)
    return replace(NORTH, client=client, name=name, data=replace(PATIENTS, shape=(width,), columns=columns, **changes))


# -- what a site discloses -------------------------------------------------------------------------------------------------------------


def test_a_site_describes_a_federation_of_one_and_nothing_of_its_samples(federation):
    alone = replace(federation, clients=[federation.clients[2]])
    site = SiteDescription.of(alone, 2)
    assert (site.client, site.train, site.test, site.data.shape, site.data.classes) == (2, 20, 4, (5,), 3)
    assert SiteDescription.read(site.plain()) == site
    stand_in = federation_of([replace(site, client=0)])
    assert (len(stand_in.clients[0].train), stand_in.at_hand, alone.at_hand) == (20, False, True)
    assert stand_in.clients[0].train.x.numel() == 0
    assert stand_in.task == alone.task
    fits = SiteDescription.of(alone, 2, None)
    assert (fits.data, fits.hidden, fits.train) == (None, (), 20)


def test_what_may_not_be_disclosed_is_not_in_what_leaves_the_site():
    data = replace(PATIENTS, columns=(STAGE, replace(AGE, indicator=True)), shape=(7,), notes=("'Ada' is left out",))
    assert aspects(data) == ("columns", "categories", "scaling", "labels")
    assert disclosed(data, ASPECTS) == replace(data, notes=())
    assert disclosed(data, ("categories", "scaling", "labels", "vocabulary")) is None
    told = {
        "categories": ("II", "III"),
        "scaling": ("60.0", "10.0"),
        "labels": ("alive", "dead", "outcome"),
    }
    for hidden, words in told.items():
        said = disclosed(data, [aspect for aspect in ASPECTS if aspect != hidden])
        text = str(said.plain())
        assert Description.read(said.plain()) == said
        assert not any(word in text for word in words), hidden
        assert all(word in text for other in told if other != hidden for word in told[other])
    texts = Description((8,), 2, dtype="int32", tokens=("secret", "words"), vocabulary=4)
    assert "vocabulary" in aspects(texts)
    assert "secret" not in str(disclosed(texts, ("columns", "categories", "scaling", "labels")))
    assert aspects(FIRST.data) == ("labels",)  # arrays: their shape and type are always told


def test_sites_that_hide_something_cannot_agree_by_themselves():
    hiding = replace(
        NORTH, client=1, name="south", data=disclosed(PATIENTS, ["columns"]), hidden=("categories", "labels")
    )
    with pytest.raises(
        FedTailorError, match=r"policy of site 1 \(south\) .* its categories and labels \(may_describe\)"
    ):
        common_to([NORTH, hiding])
    assert federation_of([NORTH, replace(hiding, data=None)], PATIENTS).description == PATIENTS


# -- what sites have in common ---------------------------------------------------------------------------------------------------------


def test_the_server_has_the_clients_in_the_order_of_their_numbers():
    federation = federation_of([SECOND, FIRST])
    assert [(c.name, len(c.train), len(c.test)) for c in federation.clients] == [("north", 30, 10), ("south", 10, 10)]
    assert [c.name for c in federation_of([FIRST, replace(SECOND, name="north")]).clients] == ["north-0", "north-1"]


def test_label_names_are_joined_and_scales_are_medians():
    odd = but(SECOND, labels=("maybe", "yes"), mean=(0.1,), std=(0.9,))
    common = common_to([FIRST, odd])
    assert (common.labels, common.classes) == (("maybe", "no", "yes"), 3)
    assert common.mean == pytest.approx((0.3,))
    assert common.std == pytest.approx((0.7,))
    unsorted = but(FIRST, labels=("yes", "no"))
    assert common_to([unsorted, replace(unsorted, client=1)]).labels == ("yes", "no")  # equal ones stay as they are
    nameless = [but(FIRST, labels=(), classes=3), but(SECOND, labels=(), classes=5)]
    assert common_to(nameless).classes == 5


def test_columns_meet_by_name_whatever_their_order_and_their_scales_are_medians():
    ages = [(60.0, 10.0, False), (70.0, 12.0, True), (1e300, 1e-300, False)]
    columns = [replace(AGE, mean=m, std=s, indicator=i) for m, s, i in ages]
    back = replace(STAGE, values=("III", "II", "I"))
    sites = [table(0, "a", STAGE, columns[0]), table(1, "b", columns[1], back), table(2, "liar", columns[2], STAGE)]
    common = common_to(sites)
    assert common.columns == (STAGE, replace(AGE, mean=70.0, std=10.0, indicator=True))
    assert common.shape == (7,)
    assert Description.read(common.plain()) == common


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            [replace(STAGE, values=("II", "III", "IV")), AGE],
            r"columns 'stage' do not have the same values: 'I' only at site 0 \(north\); 'IV' only at site 1 \(south\)",
        ),
        ([STAGE], r"do not have the same columns: 'age' only at site 0 \(north\)"),
        ([STAGE, AGE, Column("dose", "number")], r"the same columns: 'dose' only at site 1 \(south\)"),
        (
            [STAGE, Column("age", "category", ("old",))],
            r"'age' is a number at site 0 .* and a category at site 1 \(south\)",
        ),
    ],
)
def test_tables_that_mean_something_else_are_refused_by_name(other, said):
    with pytest.raises(FedTailorError, match=said):
        common_to([NORTH, table(1, "south", *other)])


def test_most_sites_are_believed_over_one_in_the_words_of_a_refusal():
    odd = table(2, "west", replace(STAGE, values=("I", "II")), AGE)
    with pytest.raises(FedTailorError, match=r"'III' not at site 2 \(west\)"):
        common_to([NORTH, replace(NORTH, client=1, name="south"), odd])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (but(SECOND, shape=(6,)), r"site 1 \(south\) are float32 of shape \(6,\), and those of site 0 \(north\)"),
        (but(SECOND, dtype="uint8"), "uint8"),
        (replace(NORTH, client=1), r"samples of site 1 \(north\) are table, and those of site 0 \(north\) arrays"),
        (but(SECOND, labels=()), "only one has names"),
        (but(SECOND, kind="regression", classes=1, labels=()), "task of site 1 .south. is regression with 1 labels"),
        (but(SECOND, label="relapse"), r"label column of site 1 \(south\) is 'relapse'"),
        (replace(SECOND, client=0), "2 sites say that they are client 0"),
        (replace(SECOND, client=3), "should be 0 to 1"),
    ],
)
def test_sites_that_do_not_fit_together_are_named(other, said):
    with pytest.raises(FedTailorError, match=said):
        federation_of([FIRST, other])


def test_texts_with_different_vocabularies_are_refused():
    data = Description((8,), 2, dtype="int32", labels=("no", "yes"), tokens=("good", "bad"), vocabulary=4)
    sites = [SiteDescription(i, f"s{i}", 30, 10, data) for i in range(2)]
    assert common_to(sites) == data
    with pytest.raises(FedTailorError, match="different vocabularies"):
        common_to([sites[0], but(sites[1], tokens=("bad", "good"))])
    ids = but(sites[1], tokens=(), vocabulary=4)
    with pytest.raises(FedTailorError, match="arrays, and those of site 0"):
        common_to([sites[0], ids])


def test_tasks_must_be_alike_and_possible():
    many = but(FIRST, kind="multilabel", labels=(), classes=3)
    assert federation_of([many, replace(many, client=1)]).task.kind == "multilabel"
    with pytest.raises(FedTailorError, match="multilabel with 4 labels, and that of site 0"):
        federation_of([many, but(replace(many, client=1), classes=4)])
    binary = but(FIRST, kind="binary")
    with pytest.raises(FedTailorError, match="A binary task has two classes"):
        federation_of([binary, but(replace(binary, client=1), labels=("neg", "pos"))])
    for wrong in ({"kind": "ranking"}, {"kind": 3}, {"kind": "binary", "classes": 3, "labels": []}):
        with pytest.raises(ValueError, match="task"):
            SiteDescription.read({**FIRST.plain(), "data": {**FIRST.plain()["data"], **wrong}})


def test_one_site_cannot_ruin_the_scaling_of_the_others():
    pixels = but(FIRST, shape=(3, 4, 4), dtype="uint8", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    others = [but(replace(pixels, client=i, name=f"{i}"), mean=(0.5,)) for i in (1, 2)]  # one number: for every channel
    liar = but(replace(pixels, client=3, name="liar", train=10**9), mean=(0.0, 1.0, 0.0), std=(0.001,))
    common = common_to([pixels, *others, liar])
    assert common.mean == (0.45, 0.5, 0.5)
    assert common.std == (0.2, 0.3, 0.25)
    assert Description.read(common.plain()) == common  # what goes with every message passes at the sites


def test_names_stay_distinct_whatever_sites_call_themselves():
    trio = [FIRST, replace(SECOND, name="north"), replace(SECOND, client=2, name="north-0")]
    assert [c.name for c in federation_of(trio).clients] == ["north-0", "north-1", "north-0-2"]


def test_sites_cannot_together_name_more_labels_than_are_allowed():
    many = [tuple(f"{i}-{k}" for k in range(30_000 + i)) for i in range(2)]
    sites = [but(site, labels=own, classes=len(own)) for site, own in zip((FIRST, SECOND), many, strict=True)]
    with pytest.raises(FedTailorError, match=r"60,001 labels together, and 50,000 are allowed"):
        federation_of(sites)


def test_the_largest_lies_are_refused_in_short_words_and_little_time():
    values = tuple(f"{k}{'x' * 150}" for k in range(100_000))
    wide = [Column(f"c{k}", "number") for k in range(100_000)]
    began = time.monotonic()
    for liar in (table(2, "x" * 200, replace(STAGE, values=values), AGE), table(2, "liar", STAGE, *wide)):
        with pytest.raises(FedTailorError, match=r"site 2 \(") as refusal:
            common_to([NORTH, replace(NORTH, client=1), liar])
        assert len(str(refusal.value)) < 700
    assert time.monotonic() - began < 20  # a comparison of all with all would take hours


# -- a site's data and a description that was given --------------------------------------------------------------------------------------


def test_data_that_fits_a_description_may_have_fewer_values_classes_and_any_scale():
    own = table(
        0,
        "n",
        Column("stage", "category", ("II",)),
        replace(AGE, mean=5.0, indicator=True),
        labels=("dead",),
        classes=1,
    )
    assert unfit(PATIENTS, own.data) == ""


@pytest.mark.parametrize(
    ("own", "said", "public"),
    [
        (
            table(0, "n", replace(STAGE, values=("II", "Ada's")), AGE),
            "its column 'stage' has the value 'Ada's', where 'I', 'II', 'III' were expected",
            "its column 'stage' has values that are not expected: 1 of them",
        ),
        (table(0, "n", AGE), "it has no column 'stage'", None),
        (table(0, "n", STAGE, Column("age", "category")), "its column 'age' is a category where a number", None),
        (
            but(NORTH, labels=("alive", "lost"), classes=2),
            "it has the label 'lost', where 'alive', 'dead' were expected",
            "it has labels that are not expected: 1 of them",
        ),
        (but(NORTH, label="fate"), "its label column is 'fate' where 'outcome'", "its label column is another one"),
        (but(NORTH, kind="binary"), "its task is binary where multiclass was expected", None),
        (FIRST, "its samples are arrays where table was expected", None),
    ],
)
def test_how_data_does_not_fit_is_said_in_full_and_without_values(own, said, public):
    assert unfit(PATIENTS, own.data).startswith(said)
    assert unfit(PATIENTS, own.data, ()).startswith(public or said)
    assert "Ada" not in unfit(PATIENTS, own.data, ("columns", "labels"))


def test_numbers_of_labels_and_token_ids_must_be_known():
    ids = Description((8,), 2, dtype="int32", vocabulary=100)
    assert unfit(ids, replace(ids, vocabulary=50, classes=1)) == ""
    assert "token ids up to 100" in unfit(ids, replace(ids, vocabulary=101))
    assert "labels up to 2, where 2 classes" in unfit(ids, replace(ids, classes=3))
    assert "names, which were not expected" in unfit(ids, replace(ids, labels=("a", "b")))


# -- a description for people to check ---------------------------------------------------------------------------------------------------


def test_what_refused_sites_said_is_united():
    south = table(
        1, "south", replace(AGE, mean=70.0), replace(STAGE, values=("II", "III", "IV")), Column("dose", "number")
    )
    shy = replace(NORTH, client=2, name="shy", data=None, hidden=("columns",))
    found, notes = united([NORTH, south, shy])
    assert found.columns == (replace(STAGE, values=("I", "II", "III", "IV")), replace(AGE, mean=65.0))
    assert found.shape == (7,)
    assert Description.read(found.plain()) == found
    assert notes == [
        "The data of site 2 (shy) is not in it: its policy hides it.",
        "Columns that only some sites have are left out: 'dose' only at site 1 (south).",
    ]
    with pytest.raises(FedTailorError, match="No site disclosed"):
        united([shy])
    with pytest.raises(FedTailorError, match="no column in common"):
        united([table(0, "a", AGE), table(1, "b", STAGE)])
    with pytest.raises(FedTailorError, match="number at site 0"):
        united([NORTH, table(1, "south", STAGE, Column("age", "category", ("old",)))])


# -- lies --------------------------------------------------------------------------------------------------------------------------------

LIES = {
    "train": (-1, 0, 10**12, 1.5, True, "30", None),
    "test": (-1, 10**12),
    "name": ("", "x" * 201, "a\nb", "\x1b[2J", "\ud800", 5),
    "client": (-1, 10**9, "0"),
    "hidden": (["secrets"], "labels", [["labels"]], ["labels"] * 6, None),
    "data": ([], "table", 5, {}, {"columns": []}),
}
DATA_LIES = {
    "dtype": ("object", "__class__", None, []),
    "shape": ("wide", [], [0], [-5], [2**20, 2**20], [1] * 9, [5.0], [7]),
    "classes": (None, 0, 2**34, float("nan")),
    "labels": (["no"], ["no", "no"], ["no", "y\n"], ["no", "x" * 201], ["no", 1], "no"),
    "label": (None, 5, "a\nb", "x" * 201),
    "vocabulary": (-1, 10**12),
    "tokens": (["a", "a"], [""], [5], "words", ["a"], ["x" * 201]),
    "mean": ([float("nan")], [1e30], [-0.1], [], [0.5, 0.5], 0.5, [10**400]),
    "std": ([float("nan")], [0.0], [1e-30], [-0.5], [float("inf")]),
    "columns": ({}, [5], [{}], [None] * 100_001, "stage"),
}
COLUMN_LIES = {
    "name": (5, "x" * 201, "a\nb", "age", "\ud800"),
    "kind": ("text", None, []),
    "values": (["I", "I"], "I", [5], ["x" * 201], [f"{k}" for k in range(100_001)], ["a\n"]),
    "mean": (float("nan"), 1e301, "0", None, 10**400, True),
    "std": (float("nan"), 0.0, -1.0, 5e-324, float("inf"), [1.0]),
    "indicator": (1, None, "yes"),
}


@pytest.mark.parametrize(("field", "lie"), [(field, lie) for field, lies in LIES.items() for lie in lies])
def test_every_field_of_a_sites_description_is_checked(field, lie):
    with pytest.raises(ValueError, match=f"its {field}|what it keeps|a description has the fields"):
        SiteDescription.read({**FIRST.plain(), field: lie})


@pytest.mark.parametrize(("field", "lie"), [(field, lie) for field, lies in DATA_LIES.items() for lie in lies])
def test_every_field_of_the_described_data_is_checked(field, lie):
    plain = NORTH.plain()
    with pytest.raises(ValueError, match=r"its|a column|fields|a sample of shape"):
        SiteDescription.read({**plain, "data": {**plain["data"], field: lie}})


@pytest.mark.parametrize(("field", "lie"), [(field, lie) for field, lies in COLUMN_LIES.items() for lie in lies])
def test_every_field_of_a_described_column_is_checked(field, lie):
    plain = NORTH.plain()
    plain["data"]["columns"] = [{**plain["data"]["columns"][0], field: lie}, plain["data"]["columns"][1]]
    with pytest.raises(ValueError, match=r"its|a column|of its|values of a category"):
        SiteDescription.read(plain)


@pytest.mark.parametrize("plain", [["not", "a", "site"], None, {}, {**FIRST.plain(), "more": 1}])
def test_a_description_has_its_fields_and_no_others(plain):
    with pytest.raises(ValueError, match="has the fields"):
        SiteDescription.read(plain)
