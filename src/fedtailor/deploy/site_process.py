"""A site's process: it polls the server for messages, serves them one after the other, and runs only what is installed here."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedtailor.deploy.connection import STRANGE, Connection
from fedtailor.deploy.site import SiteNode
from fedtailor.deploy.site_data import Unfit
from fedtailor.deploy.site_folder import SiteFolder
from fedtailor.engines.allocator import keep_freed_memory
from fedtailor.engines.flower.messages import BadMessage, read_call
from fedtailor.engines.work import Work
from fedtailor.errors import FedTailorError

log = logging.getLogger("fedtailor")

PAUSE = 0.1, 1.0  # seconds between two polls for work, soon after the last message and later
RETRY = 1.0, 15.0  # seconds between two attempts to reach the server, at first and at most
TAKEN, STRANGER = 409, 401  # HTTP status for a key in use, and for an unknown one


class SiteProcess:
    """Serves one site until its federation's run is finished. All its state is on disk, so another process can take over."""

    def __init__(self, folder: Path, server: str = "", say: Callable[[str], None] = print) -> None:
        self.place = SiteFolder.open(folder)
        self.server = server or self.place.server
        self.say = say
        self.node: SiteNode | None = None
        self.unsent: Message | None = None  # a reply that the network did not let through yet
        self.run: tuple[Any, str] = (None, "")  # federation and config of `node`

    def serve(self) -> None:
        """Connect to the server, now or once it is up, and serve it until it says that the run is finished."""
        keep_freed_memory()
        pause, logged = RETRY[0], ""
        while True:
            try:
                with Connection(self.server, self.place.folder) as line:
                    self.say(f"{self.place.name} is connected to {self.server}.")
                    pause, logged = RETRY[0], ""
                    if self._answer_all(line):
                        return
            except FedTailorError:
                raise
            except Exception as problem:  # the server may be down, restarting, or not one of ours
                reason = _reason(problem, self.server)
                if reason != logged:
                    self.say(f"{reason} Trying again until it answers; Ctrl-C stops.")
                    logged = reason
            sleep(pause)
            pause = min(2 * pause, RETRY[1])

    def _answer_all(self, line: Connection) -> bool:
        last, done = monotonic(), False
        self._send(line)
        while not done:
            message = line.receive()
            if message is None:
                sleep(PAUSE[0] if monotonic() - last < 30 else PAUSE[1])
                continue
            self.unsent, done = self._answer(message)
            with suppress(httpx.HTTPError) if done else nullcontext():  # a finished server may be gone already
                self._send(line)
            last = monotonic()
        return True

    def _send(self, line: Connection) -> None:
        """Send the reply that is due, if any; where the network fails it is kept for the next connection: the server waits for it."""
        reply, self.unsent = self.unsent, None
        if reply is not None:
            try:
                line.send(reply)
            except httpx.TransportError:
                self.unsent = reply
                raise

    def _answer(self, message: Message) -> tuple[Message, bool]:
        """Answer one message; an error goes to the server in one line, and to the log here in full."""
        try:
            plain, _ = read_call(message.content, "cpu")
            if plain["work"] is Work.END:
                if self.node is not None:
                    self.node.sum_file.forget()
                self.say(f"The federation's run is finished. The personal model is in {self.place.folder / 'models'}.")
                return Message(message.content, reply_to=message), True
            return Message(self._node(plain).answer(message.content), reply_to=message), False
        except (FedTailorError, BadMessage) as problem:
            log.warning("refused: %s", problem)
            reason = problem.to_server if isinstance(problem, Unfit) else str(problem)
        except Exception as problem:
            log.error(traceback.format_exc())
            reason = f"{type(problem).__name__}: {problem}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason[:2000]), reply_to=message), False

    def _node(self, plain: dict[str, Any]) -> SiteNode:
        """Return the site's part in the run of a message."""
        run = plain.get("federation"), json.dumps(plain.get("config"))
        if self.node is None or run != self.run:
            self.node = None  # free another run's data before this one's is read
            self.node = SiteNode.open(self.place, plain.get("federation"), plain.get("config"))
            self.run = run
        return self.node


def _reason(problem: Exception, server: str) -> str:
    """Return why the server cannot be reached; raise where trying again cannot help."""
    if not isinstance(problem, httpx.HTTPStatusError):
        return f"The server {server} cannot be reached ({problem})."
    answer = problem.response.text[:300]
    if problem.response.status_code == TAKEN:
        raise FedTailorError(f"The server turned this site away: {answer}. Is it running twice?")
    with suppress(ValueError):
        answer = json.loads(answer).get("detail", answer)
    if problem.response.status_code == STRANGER and STRANGE in answer:
        raise FedTailorError(f"The server {server} turned this site away: {answer}.")
    return f"The server {server} answers: {answer}."
