"""What sites tell of their data, and the federation that a server makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedtailor.data.sites import Site, common_to, federation_of
from fedtailor.errors import FedTailorError

FIRST = Site(0, "north", (5,), "float32", 2, ("no", "yes"), 0, (0.5,), (0.5,), train=30, test=10)
SECOND = replace(FIRST, client=1, name="south", train=10)


def test_a_site_describes_a_federation_of_one_and_nothing_of_its_samples(federation):
    alone = replace(federation, clients=[federation.clients[2]])
    site = Site.of(alone, 2)
    assert (site.client, site.train, site.test, site.shape, site.classes) == (2, 20, 4, (5,), 3)
    assert Site.read(site.plain()) == site
    stand_in = site.stand_in()
    assert (len(stand_in.clients[0].train), stand_in.at_hand, alone.at_hand) == (20, False, True)
    assert stand_in.clients[0].train.x.numel() == 0
    assert stand_in.task == alone.task


def test_the_server_has_the_clients_in_the_order_of_their_numbers():
    federation = federation_of([SECOND, FIRST])
    assert [(c.name, len(c.train), len(c.test)) for c in federation.clients] == [("north", 30, 10), ("south", 10, 10)]
    assert [c.name for c in federation_of([FIRST, replace(SECOND, name="north")]).clients] == ["north-0", "north-1"]


def test_label_names_are_joined_and_scales_weighted():
    odd = replace(SECOND, labels=("maybe", "yes"), mean=(0.1,), std=(0.9,))
    common = common_to([FIRST, odd])
    assert (common.labels, common.classes) == (("maybe", "no", "yes"), 3)
    assert common.mean == pytest.approx((0.4,))
    assert common.std == pytest.approx((0.6,))
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
        (replace(SECOND, client=0), "2 sites say that they are client 0"),
        (replace(SECOND, client=3), "should be 0 to 1"),
    ],
)
def test_sites_that_do_not_fit_together_are_named(other, said):
    with pytest.raises(FedTailorError, match=said):
        federation_of([FIRST, other])


@pytest.mark.parametrize(
    "lie",
    [{"train": -1}, {"train": 10**15}, {"dtype": "object"}, {"shape": "wide"}, {"classes": None}, {"name": "x" * 999}],
)
def test_words_of_another_party_are_checked(lie):
    with pytest.raises(ValueError, match=r"."):
        Site.read({**FIRST.plain(), **lie})
    with pytest.raises(ValueError, match=r"."):
        Site.read(["not", "a", "site"])
