"""A site's process between the server's messages and the network's failures."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import httpx

from fedtailor.deploy import site_process
from fedtailor.deploy.deploy_folder import DeployFolder
from fedtailor.deploy.settings import with_overrides
from fedtailor.deploy.site_process import SiteProcess


class Line:
    """Connections in turn: the first hands a message over and breaks when the reply is sent, the second asks for no work twice."""

    sent: tuple[str, ...] = ()
    entered = 0

    def __init__(self, server: str, folder: Path) -> None:
        Line.entered += 1
        self.number = Line.entered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def receive(self) -> str:
        return "fit" if self.number == 1 else "bye"

    def send(self, reply: str) -> None:
        if self.number == 1:
            raise httpx.ReadError("the line is gone")
        Line.sent += (reply,)


def test_a_reply_that_does_not_get_through_is_sent_on_the_next_connection(tmp_path, monkeypatch):
    folder = DeployFolder.create(tmp_path / "f", *with_overrides({}, ["data=digits", "clients=2"]), ["127.0.0.1"])
    process = SiteProcess(folder.site(0), say=lambda text: None)
    monkeypatch.setattr(site_process, "Connection", Line)
    monkeypatch.setattr(site_process, "RETRY", (0.0, 0.0))

    monkeypatch.setattr(process, "_answer", lambda message: (f"reply to {message}", message == "bye"))
    process.serve()
    assert Line.entered == 2
    assert Line.sent == ("reply to fit", "reply to bye")
