"""A site's line to the server when the network loses calls: before they arrive, and after they were served."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedtailor.deploy import connection
from fedtailor.deploy.connection import Connection
from fedtailor.deploy.deploy_folder import HERE
from fedtailor.deploy.keys import certify_server, certify_site, make_authority
from fedtailor.deploy.superlink import SuperLink


@pytest.fixture
def link(tmp_path) -> Iterator[SuperLink]:
    make_authority(tmp_path)
    certify_server(tmp_path, [HERE])
    site = tmp_path / "site"
    site.mkdir()
    certify_site(tmp_path, "0", site / "node.key", site / "node.crt")
    shutil.copyfile(tmp_path / "ca.crt", site / "ca.crt")
    with SuperLink(tmp_path, {"0": site / "node.crt"}, HERE, 0, 1_000_000) as link:
        yield link


def lossy(line: Connection, served: bool) -> set[str]:
    """Have every call of the line fail the first time, before it is sent or when it has been served; return the paths that failed."""
    real: Callable[..., httpx.Response] = line.client._client.send
    seen: set[tuple[str, bytes]] = set()
    lost: set[str] = set()

    def send(request: httpx.Request, **options: Any) -> httpx.Response:
        call = request.url.path, request.content
        if call in seen:
            return real(request, **options)
        seen.add(call)
        if served:
            real(request, **options).close()
        lost.add(request.url.path.rpartition("/")[2])
        raise httpx.ReadError("the line is gone")

    line.client._client.send = send  # type: ignore[method-assign]
    return lost


@pytest.mark.parametrize("served", [False, True])
def test_calls_that_the_network_loses_are_made_again_and_nothing_is_lost(link, tmp_path, monkeypatch, served):
    monkeypatch.setattr(connection, "PAUSES", (0.01, 0.01))
    line = Connection(f"{HERE}:{link.port}", tmp_path / "site")
    lost = lossy(line, served)
    with line:
        (node,) = link.nodes
        content = RecordDict(
            {"call": ConfigRecord({"plain": "{}"}), "payload": ArrayRecord({"w": Array("float32", (1,), "x", b"1234")})}
        )
        (id,) = link.grid.push_messages([Message(content, node, "train", ttl=60.0)])
        message = next(filter(None, (line.receive() for _ in range(5))), None)
        assert message is not None
        assert message.content["call"] == content["call"]
        line.send(Message(message.content, reply_to=message))
        (reply,) = link.grid.pull_messages([id])
        assert not reply.has_error()
        assert reply.content["payload"]["w"].data == b"1234"
    calls = "activate-node pull-messages pull-object confirm-message-received push-messages push-object deactivate-node"
    assert lost >= set(calls.split())


def test_a_server_that_stays_away_is_told_after_a_few_tries(tmp_path, link, monkeypatch):
    monkeypatch.setattr(connection, "PAUSES", (0.01, 0.01))
    line = Connection(f"{HERE}:1", tmp_path / "site")
    with pytest.raises(httpx.ConnectError), line:
        pass
