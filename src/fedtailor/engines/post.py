"""Messages to the nodes of a Flower federation, and who is where."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from flwr.app import Message

from fedtailor.data.sites import Site
from fedtailor.engines.base import Outcome
from fedtailor.engines.letters import BadLetter, read_outcome, read_site, weight, write_call
from fedtailor.learning import Payload

log = logging.getLogger("fedtailor")

PAUSE = 0.05, 3.0  # seconds between two looks for answers, at first and at most
PARTING = 5.0  # seconds for the sites to hear that the run is finished
RETRY = 30.0  # seconds until a node that did not say who it is gets asked again
KINDS = {
    "fit": "train",
    "sync": "train",
    "finish": "train",
    "score": "evaluate",
}  # by a work's first word; others are queries


class Post:
    """Knows which node holds which client, and asks the nodes."""

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
        """`owners` says whose key a node has; `said` goes with every message.

        Answers are waited for so many seconds; one of more than `limit` bytes is not unpacked.
        """
        self.grid = grid
        self.owners = owners
        self.said = dict(said)
        self.timeout = timeout
        self.limit = limit
        self.device = device
        self.sites: dict[int, Site] = {}  # node -> what it said of itself
        self.failed: dict[int, float] = {}  # node -> when it last failed to say who it is

    @property
    def nodes(self) -> dict[int, int]:
        """Client -> node. Whose key a node has decides which client it is, not what it says."""
        return {site.client: node for node, site in self.sites.items() if site.client is not None}

    def ask(self, work: str, round: int, plain: Mapping[str, Any], payloads: Mapping[int, Payload]) -> Answers:
        """Have clients do one kind of work: what they answer, and why others do not."""
        self.meet()
        return self.ask_nodes(work, round, plain, payloads, self.nodes)

    def ask_nodes(
        self, work: str, round: int, plain: Mapping[str, Any], payloads: Mapping[int, Payload], nodes: Mapping[int, int]
    ) -> Answers:
        to = {node: i for i, node in nodes.items() if i in payloads}
        letters = {
            node: self._letter(work, round, {**plain, "work": work, "round": round, "client": i}, payloads[i], node)
            for node, i in to.items()
        }
        outcomes: dict[int, Outcome] = {}
        missing = {i: "its node is not online" for i in payloads if i not in to.values()}
        answers, troubles = self.exchange(letters)
        for node, answer in answers.items():
            try:
                outcomes[to[node]] = self._opened(answer)
            except BadLetter as problem:
                troubles[node] = f"an answer that cannot be used: {problem}"
        return dict(sorted(outcomes.items())), missing | {to[node]: trouble for node, trouble in troubles.items()}

    def meet(self) -> None:
        """Ask nodes that have come online who they are; forget those that have gone."""
        online = set(self.grid.get_node_ids())
        for gone in self.sites.keys() - online:
            del self.sites[gone]
        lately = {node for node, moment in self.failed.items() if time.monotonic() - moment < RETRY}
        letters = {
            node: self._letter("describe", 0, {"work": "describe", "client": self.owners[node]}, {}, node)
            for node in sorted(online - self.sites.keys() - lately)
        }
        answers, troubles = self.exchange(letters)
        for node, answer in answers.items():
            try:
                site = read_site(answer.content)
            except BadLetter as problem:
                troubles[node] = f"it answers with something else ({problem})"
                continue
            if site.client == self.owners[node]:
                self.sites[node] = site
            else:
                troubles[node] = (
                    f"it has the key of client {self.owners[node]}, but says that it is client {site.client}"
                )
        for node, trouble in troubles.items():
            self.failed[node] = time.monotonic()
            log.warning("node %d does not say which site it is: %s", node, trouble)

    def part(self) -> None:
        """Tell the sites that the run is finished; who does not hear it is not waited for long."""
        self.timeout = min(self.timeout, PARTING)
        online = sorted(self.sites.keys() & set(self.grid.get_node_ids()))
        self.exchange({node: self._letter("bye", 0, {"work": "bye"}, {}, node) for node in online})

    def exchange(self, letters: Mapping[int, Message]) -> tuple[dict[int, Message], dict[int, str]]:
        """Send one message to each node; answers by node, and what went wrong by node."""
        answers: dict[int, Message] = {}
        ids = self.grid.push_messages(list(letters.values())) if letters else []
        waiting = {id: node for id, node in zip(ids, letters, strict=True) if id}
        troubles = {node: "the message could not be sent" for node in letters if node not in waiting.values()}
        began = time.monotonic()
        while waiting and (passed := time.monotonic() - began) < self.timeout:
            for answer in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(answer.metadata.reply_to_message_id, None)
                if node is not None and answer.has_error():
                    troubles[node] = str(answer.error.reason)
                elif node is not None:
                    answers[node] = answer
            if waiting:
                time.sleep(min(PAUSE[0] + passed / 10, PAUSE[1]))  # never much longer than it has taken already
        return answers, troubles | dict.fromkeys(waiting.values(), f"no answer in {self.timeout:g} s")

    def _letter(self, work: str, round: int, plain: Mapping[str, Any], payload: Payload, node: int) -> Message:
        kind = KINDS.get(work.partition("+")[0], "query")
        return Message(write_call({**self.said, **plain}, payload), node, kind, ttl=self.timeout, group_id=str(round))

    def _opened(self, answer: Message) -> Outcome:
        size = weight(answer.content)
        if size > self.limit:
            raise BadLetter(f"it weighs {size:,} bytes, and {self.limit:,} are allowed (max_reply_mb)")
        return read_outcome(answer.content, self.device)


Answers = tuple[dict[int, Outcome], dict[int, str]]
