"""Messages to the nodes of a Flower federation, and which node holds which client."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
from flwr.app import Message
from flwr.common.constant import ErrorCode

from fedtailor.data.sites import SiteDescription
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.memory import growing_by
from fedtailor.engines.flower.messages import (
    BadMessage,
    check_weight,
    in_a_line,
    read_outcome,
    read_site,
    refusing,
    write_call,
)
from fedtailor.engines.work import Work
from fedtailor.learning import Payload

log = logging.getLogger("fedtailor")

PAUSE = 0.05, 3.0  # seconds between two polls for replies, at first and at most
PARTING = 5.0  # seconds for the sites to learn that the run is finished
RETRY = 30.0  # seconds until a node that did not identify itself is asked again
MISSES = 2  # messages in a row that a node may leave unanswered before it is no longer waited for
SILENCE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
COPIES = 6  # of the largest reply, that Flower may hold while it unpacks one
ROOM = 1 << 30  # bytes that it may hold beside them


class Silence(BadMessage):
    """Flower's own reply in place of a node that does not reply."""


class Refusal(BadMessage):
    """What a site says in place of an answer that it will not or cannot give."""


class Transport:
    """Sends messages to the nodes that hold the clients, and collects their replies.

    A node that leaves `MISSES` messages in a row unanswered is no longer waited for. It gets no more work; in the background it is asked
    to describe itself, and takes part again once it does.
    """

    def __init__(
        self,
        grid: Any,
        owners: Mapping[int, int | None],
        said: Mapping[str, Any],
        *,
        timeout: float,
        limit: int,
        device: str,
    ) -> None:
        """`owners` maps a node to the client whose key it has (None: a newcomer's); `said` goes with every message.

        `timeout` is in seconds; a reply of more than `limit` bytes is not unpacked.
        """
        self.grid = grid
        self.owners = owners
        self.said = dict(said)
        self.timeout = timeout
        self.limit = limit
        self.device = device
        self.online: set[int] = set()
        self.sites: dict[int, SiteDescription] = {}  # node -> its description of itself
        self.asked: dict[int, tuple[str, float]] = {}  # node -> id and time of the request to describe itself
        self.failed: dict[int, tuple[float, str]] = {}  # node -> when it last failed to describe itself, and why
        self.misses: Counter[int] = Counter()  # node -> messages in a row that it left unanswered

    @property
    def nodes(self) -> dict[int, int]:
        """Client -> its node, of nodes that reply. A node's key decides which client it is, not its description."""
        return {
            site.client: node for node, site in self.sites.items() if site.client is not None and not self._silent(node)
        }

    def ask(self, work: Work, round: int, plain: Mapping[str, Any], payloads: Mapping[int, Payload]) -> Answers:
        """Have clients do one kind of work; return their outcomes, and why others have none."""
        self.meet(payloads)
        return self.ask_nodes(work, round, plain, payloads, self.nodes)

    def ask_nodes(
        self,
        work: Work,
        round: int,
        plain: Mapping[str, Any],
        payloads: Mapping[int, Payload],
        nodes: Mapping[int, int],
    ) -> Answers:
        to = {node: i for i, node in nodes.items() if i in payloads}
        messages = {node: self._message(work, round, plain, payloads[i], node) for node, i in to.items()}
        outcomes: dict[int, Outcome] = {}
        missing = {i: self._absence(i) for i in payloads if i not in to.values()}
        answers, troubles = self.exchange(messages)
        for node, answer in answers.items():
            try:
                with refusing("it"):
                    check_weight(answer.content, self.limit, " (max_reply_mb)")
                    outcomes[to[node]] = read_outcome(answer.content, self.device)
            except BadMessage as problem:
                troubles[node] = f"an answer that cannot be used: {problem}"
        return dict(sorted(outcomes.items())), missing | {to[node]: trouble for node, trouble in troubles.items()}

    def meet(self, wanted: Iterable[int] | None = None) -> None:
        """Ask nodes that came online or fell silent for their descriptions; forget those that are gone.

        Wait only for nodes that are asked for the first time, and only while one of the wanted clients (None: any) has no node.
        """
        self._forget_all_but(set(self.grid.get_node_ids()))
        due = [node for node in self._unsure() if node not in self.asked and not self._lately(node)]
        new = {node for node in due if node not in self.failed and node not in self.misses}
        messages = {node: self._message(Work.DESCRIBE, 0, {}, {}, node) for node in due}
        self.asked |= {node: (id, time.monotonic()) for id, node in self._push(messages).items()}
        for node in set(due) - self.asked.keys():
            self._doubt(node, "the message could not be sent")
        began = time.monotonic()
        self._hear()
        while new & self.asked.keys() and (wanted is None or not set(wanted) <= self.nodes.keys()):
            self._pause(time.monotonic() - began)
            self._hear()

    def part(self) -> None:
        """Tell the sites that the run has finished, without waiting long."""
        self.timeout = min(self.timeout, PARTING)
        online = sorted(self.sites.keys() & set(self.grid.get_node_ids()))
        self.exchange({node: self._message(Work.END, 0, {}, {}, node) for node in online})

    def exchange(self, messages: Mapping[int, Message]) -> tuple[dict[int, Message], dict[int, str]]:
        """Send one message to each node; return replies by node, and what went wrong by node."""
        answers: dict[int, Message] = {}
        waiting = self._push(messages)
        troubles = {node: "the message could not be sent" for node in messages if node not in waiting.values()}
        silent: set[int] = set()
        began = time.monotonic()
        while waiting and (passed := time.monotonic() - began) < self.timeout:
            for id, node in list(waiting.items()):
                try:
                    answer = self._pull(id)
                except BadMessage as problem:
                    troubles[node] = str(problem)
                    silent |= {node} if isinstance(problem, Silence) else set()
                else:
                    if answer is None:
                        continue
                    answers[node] = answer
                del waiting[id]
            if waiting:
                self._pause(passed)
        self._count_misses(messages.keys(), silent | set(waiting.values()))
        return answers, troubles | dict.fromkeys(waiting.values(), f"no answer in {self.timeout:g} s")

    def _push(self, messages: Mapping[int, Message]) -> dict[str, int]:
        """Send messages; return message id -> node, of those that could be sent."""
        ids = list(self.grid.push_messages(list(messages.values()))) if messages else []
        # There are no ids at all if the messages were too large together.
        return {id: node for id, node in zip(ids, messages, strict=False) if id}

    def _pull(self, id: str) -> Message | None:
        """Return the reply to a message, if it has arrived; raise BadMessage if it is unusable.

        Flower unpacks what it fetches, and fails on malformed data. Each reply is fetched by itself, so that one cannot take the others
        with it; and memory is bounded, since a few bytes can be made to unpack to terabytes.
        """
        try:
            with growing_by(COPIES * self.limit + ROOM):
                found = [m for m in self.grid.pull_messages([id]) if m.metadata.reply_to_message_id == id]
        except httpx.HTTPError:  # the server's own failure, not the site's
            raise
        except MemoryError:
            raise BadMessage("an answer that takes far more memory to unpack than max_reply_mb") from None
        except Exception as problem:
            raise BadMessage(
                f"an answer that cannot be unpacked ({type(problem).__name__}: {in_a_line(problem)})"
            ) from None
        if not found:
            return None
        (answer, *_) = found
        if answer.has_error():
            code, reason = answer.error.code, in_a_line(answer.error.reason)
            raise (Silence if code in SILENCE else Refusal)(reason)
        return answer

    def _hear(self) -> None:
        """Take in the descriptions that have arrived."""
        for node, (id, moment) in list(self.asked.items()):
            try:
                answer = self._pull(id)
                if answer is not None:
                    self._welcome(node, read_site(answer.content))
                elif time.monotonic() - moment >= self.timeout:  # Flower no longer waits for it either
                    self._doubt(node, f"no answer in {self.timeout:g} s")
            except Refusal as problem:
                self._doubt(node, str(problem), "refuses")
            except BadMessage as problem:
                self._doubt(node, f"it answers with something else ({problem})")

    def _welcome(self, node: int, site: SiteDescription) -> None:
        if site.client != self.owners[node]:
            raise BadMessage(f"it has the key of client {self.owners[node]}, but says that it is client {site.client}")
        if self._silent(node):
            log.info("%s answers again, and takes part from now on", self._name(node))
        self.sites[node] = site
        del self.asked[node], self.misses[node]
        self.failed.pop(node, None)

    def _doubt(self, node: int, trouble: str, does: str = "does not say which site it is") -> None:
        self.asked.pop(node, None)
        self.failed[node] = time.monotonic(), trouble
        if not self._silent(node):  # that was logged already
            log.warning("node %d (%s) %s: %s", node, self._owner(node), does, trouble)

    def _count_misses(self, asked: Iterable[int], silent: set[int]) -> None:
        for node in asked:
            if node not in silent:
                del self.misses[node]
                continue
            self.misses[node] += 1
            if self.misses[node] == MISSES:
                log.warning(
                    "%s has left %d messages in a row unanswered: it is asked in the background only, and no round waits for it until it "
                    "answers",
                    self._name(node),
                    MISSES,
                )

    def _silent(self, node: int) -> bool:
        return self.misses[node] >= MISSES

    def _unsure(self) -> list[int]:
        """Return online nodes that have not described themselves or do not reply."""
        return sorted(node for node in self.online if node not in self.sites or self._silent(node))

    def _lately(self, node: int) -> bool:
        return node in self.failed and time.monotonic() - self.failed[node][0] < RETRY

    def _forget_all_but(self, online: set[int]) -> None:
        self.online = online
        for known in (self.sites, self.asked, self.failed, self.misses):
            for gone in known.keys() - online:
                del known[gone]

    @property
    def troubles(self) -> dict[str, str]:
        """Why nodes that are online have not described themselves, by whose key they have."""
        return {self._owner(node): trouble for node, (_, trouble) in sorted(self.failed.items())}

    def _owner(self, node: int) -> str:
        client = self.owners[node]
        return "a new site" if client is None else f"client {client}"

    def _name(self, node: int) -> str:
        site = self.sites.get(node)
        return f"node {node}" if site is None else f"site {site.client} ({site.name})"

    def _absence(self, client: int) -> str:
        known = any(site.client == client for site in self.sites.values())
        return "it is asked in the background only until it answers" if known else "its node is not online"

    def _pause(self, passed: float) -> None:
        """Wait in proportion to the time already passed."""
        time.sleep(max(0.0, min(PAUSE[0] + passed / 10, PAUSE[1], self.timeout - passed)))

    def _message(self, work: Work, round: int, plain: Mapping[str, Any], payload: Payload, node: int) -> Message:
        kind = "train" if work.changes_state else "evaluate" if work.scores else "query"
        plain = {**self.said, **plain, "work": work, "round": round, "client": self.owners[node]}
        return Message(write_call(plain, payload), node, kind, ttl=self.timeout, group_id=str(round))


Answers = tuple[dict[int, Outcome], dict[int, str]]
