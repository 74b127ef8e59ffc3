"""Attacks on a federation's server: the list of bench.torture against a server in this process, and all of it against real ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from bench.torture import network
from fedtailor.deploy.deploy_folder import HERE
from fedtailor.deploy.keys import certify_server, certify_site, make_authority
from fedtailor.deploy.superlink import SuperLink


@pytest.fixture
def target(tmp_path) -> Iterator[network.Target]:
    make_authority(tmp_path)
    certify_server(tmp_path, [HERE])
    site = tmp_path / "site"
    site.mkdir()
    certify_site(tmp_path, "0", site / "node.key", site / "node.crt")
    shutil.copyfile(tmp_path / "ca.crt", site / "ca.crt")
    with SuperLink(tmp_path, {"0": site / "node.crt"}, HERE, 0, 1_000_000) as link:
        yield network.Target(link.port, tmp_path / "ca.crt", site, tmp_path)


def test_an_outsider_reaches_nothing(target):
    assert network.unserved(target) == ""
    tries = list(network.knocks(target))
    assert len(tries) > 20
    assert [text for text in tries if text] == []


def test_a_registered_sites_key_opens_nothing_but_its_own_calls(target):
    tries = list(network.insiders(target))
    assert len(tries) > 100
    assert [text for text in tries if text] == []
    assert network.unserved(target) == ""


@pytest.mark.network
def test_a_federation_under_attack_by_flowers_own_programs_and_by_hand():
    results = network.run(0.2)
    assert all(result.tries for result in results)
    assert [failure for result in results for failure in result.failures] == []
