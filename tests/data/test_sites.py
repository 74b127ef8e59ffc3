"""What sites tell of their data, and the federation that a server makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedtailor.data.sites import SiteDescription, common_to, federation_of
from fedtailor.errors import FedTailorError

FIRST = SiteDescription(0, "north", (5,), "float32", 2, ("no", "yes"), 0, (0.5,), (0.5,), train=30, test=10)
SECOND = replace(FIRST, client=1, name="south", train=10)


def test_a_site_describes_a_federation_of_one_and_nothing_of_its_samples(federation):
    alone = replace(federation, clients=[federation.clients[2]])
    site = SiteDescription.of(alone, 2)
    assert (site.client, site.train, site.test, site.shape, site.classes) == (2, 20, 4, (5,), 3)
    assert SiteDescription.read(site.plain()) == site
    stand_in = site.stand_in()
    assert (len(stand_in.clients[0].train), stand_in.at_hand, alone.at_hand) == (20, False, True)
    assert stand_in.clients[0].train.x.numel() == 0
    assert stand_in.task == alone.task


def test_the_server_has_the_clients_in_the_order_of_their_numbers():
    federation = federation_of([SECOND, FIRST])
    assert [(c.name, len(c.train), len(c.test)) for c in federation.clients] == [("north", 30, 10), ("south", 10, 10)]
    assert [c.name for c in federation_of([FIRST, replace(SECOND, name="north")]).clients] == ["north-0", "north-1"]


def test_label_names_are_joined_and_scales_are_medians():
    odd = replace(SECOND, labels=("maybe", "yes"), mean=(0.1,), std=(0.9,))
    common = common_to([FIRST, odd])
    assert (common.labels, common.classes) == (("maybe", "no", "yes"), 3)
    assert common.mean == pytest.approx((0.3,))
    assert common.std == pytest.approx((0.7,))
    unsorted = replace(FIRST, labels=("yes", "no"))
    assert common_to([unsorted, replace(unsorted, client=1)]).labels == ("yes", "no")  # equal ones stay as they are
    nameless = [replace(FIRST, labels=(), classes=3), replace(SECOND, labels=(), classes=5)]
    assert common_to(nameless).classes == 5


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(SECOND, shape=(6,)), r"site 1 \(south\) are float32 of shape \(6,\) where those of site 0 \(north\)"),
        (replace(SECOND, dtype="uint8"), "uint8"),
        (replace(SECOND, labels=()), "only one has names"),
        (
            replace(SECOND, task="regression", classes=1, labels=()),
            "that of site 1 .south. is regression with 1 labels",
        ),
        (replace(SECOND, client=0), "2 sites say that they are client 0"),
        (replace(SECOND, client=3), "should be 0 to 1"),
    ],
)
def test_sites_that_do_not_fit_together_are_named(other, said):
    with pytest.raises(FedTailorError, match=said):
        federation_of([FIRST, other])


def test_tasks_must_be_alike_and_possible():
    many = replace(FIRST, task="multilabel", labels=(), classes=3)
    assert federation_of([many, replace(many, client=1)]).task.kind == "multilabel"
    with pytest.raises(FedTailorError, match="multilabel with 4 labels where that of site 0"):
        federation_of([many, replace(many, client=1, classes=4)])
    binary = replace(FIRST, task="binary")
    with pytest.raises(FedTailorError, match="A binary task has two classes"):
        federation_of([binary, replace(binary, client=1, labels=("neg", "pos"))])
    for wrong in ({"task": "ranking"}, {"task": 3}, {"task": "binary", "classes": 3, "labels": []}):
        with pytest.raises(ValueError, match="task"):
            SiteDescription.read({**FIRST.plain(), **wrong})


def test_one_site_cannot_ruin_the_scaling_of_the_others():
    pixels = replace(FIRST, shape=(3, 4, 4), dtype="uint8", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    others = [replace(pixels, client=i, name=f"{i}", mean=(0.5,)) for i in (1, 2)]  # one number: for every channel
    liar = replace(pixels, client=3, name="liar", mean=(0.0, 1.0, 0.0), std=(0.001,), train=10**9)
    common = common_to([pixels, *others, liar])
    assert common.mean == (0.45, 0.5, 0.5)
    assert common.std == (0.2, 0.3, 0.25)
    assert SiteDescription.read(common.plain()) == common  # what goes with every message passes at the sites


def test_names_stay_distinct_whatever_sites_call_themselves():
    trio = [FIRST, replace(SECOND, name="north"), replace(SECOND, client=2, name="north-0")]
    assert [c.name for c in federation_of(trio).clients] == ["north-0", "north-1", "north-0-2"]


def test_sites_cannot_together_name_more_labels_than_are_allowed():
    many = [tuple(f"{i}-{k}" for k in range(30_000 + i)) for i in range(2)]
    sites = [replace(site, labels=own, classes=len(own)) for site, own in zip((FIRST, SECOND), many, strict=True)]
    with pytest.raises(
        FedTailorError, match=r"60,001 labels together, and 50,000 are allowed. Most are of site 1 \(south\)"
    ):
        federation_of(sites)


LIES = {
    "train": (-1, 0, 10**12, 1.5, True, "30", None),
    "test": (-1, 10**12),
    "dtype": ("object", "__class__", None, []),
    "shape": ("wide", [], [0], [-5], [2**20, 2**20], [1] * 9, [5.0]),
    "classes": (None, 0, 2**34, float("nan")),
    "name": ("", "x" * 201, "a\nb", "\x1b[2J", "\ud800", 5),
    "labels": (["no"], ["no", "no"], ["no", "y\n"], ["no", "x" * 201], ["no", 1], "no"),
    "vocabulary": (-1, 10**12),
    "mean": ([float("nan")], [1e30], [-0.1], [], [0.5, 0.5], 0.5, [10**400]),
    "std": ([float("nan")], [0.0], [1e-30], [-0.5], [float("inf")]),
    "client": (-1, 10**9, "0"),
}


@pytest.mark.parametrize(("field", "lie"), [(field, lie) for field, lies in LIES.items() for lie in lies])
def test_every_field_of_a_description_is_checked(field, lie):
    with pytest.raises(ValueError, match=f"type in|(its|of its|of) (sample|{field.removesuffix('s')})|shape"):
        SiteDescription.read({**FIRST.plain(), field: lie})


@pytest.mark.parametrize("plain", [["not", "a", "site"], None, {}, {**FIRST.plain(), "more": 1}])
def test_a_description_has_its_fields_and_no_others(plain):
    with pytest.raises(ValueError, match="has the fields"):
        SiteDescription.read(plain)
