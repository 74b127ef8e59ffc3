"""What a server remembers of its sites."""

from __future__ import annotations

import pytest
import torch

from fedtailor.data.description import Description
from fedtailor.data.sites import SiteDescription
from fedtailor.deploy.known_sites import KnownSites
from fedtailor.errors import FedTailorError

SITE = SiteDescription(0, "north", 30, 10, Description((5,), 2, labels=("no", "yes")))


def test_sites_and_hellos_are_remembered_until_they_are_forgotten(tmp_path):
    KnownSites(tmp_path).record([SITE], {0: {"labels": torch.ones(2)}})
    again = KnownSites(tmp_path)
    assert again.sites == [SITE]
    assert torch.equal(again.hellos[0]["labels"], torch.ones(2))
    again.forget()
    assert (KnownSites(tmp_path).sites, KnownSites(tmp_path).hellos) == (
        [],
        None,
    )  # also by a server that is killed right then


@pytest.mark.parametrize("text", ["", "[{}]", "[" * 100_000, "5"])
def test_a_damaged_memory_is_named_with_the_way_out(tmp_path, text):
    KnownSites(tmp_path).record([SITE], {})
    (tmp_path / "sites.json").write_text(text)
    with pytest.raises(FedTailorError, match=r"cannot be read .* Delete it: the sites will be asked again"):
        KnownSites(tmp_path)
