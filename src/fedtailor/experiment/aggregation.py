"""Aggregation: the server computes its new state from the replies, leaving out those that would spoil it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedtailor.engines import Engine
from fedtailor.engines.readonly import version
from fedtailor.experiment.guard import Fault, faults, finite
from fedtailor.experiment.notices import Notices
from fedtailor.learning import Payload, Reply, Server
from fedtailor.methods import Method
from fedtailor.privacy.client_dp import ClientDP
from fedtailor.randomness import seeded


class Aggregation:
    """Aggregates replies by the method's rule; whatever clients send, the server's state stays finite."""

    def __init__(
        self, method: Method, server: Server, engine: Engine, notices: Notices, few: int, dp: ClientDP | None
    ) -> None:
        self.method = method
        self.server = server
        self.engine = engine
        self.notices = notices
        self.few = few
        self.dp = dp  # if some entries are protected

    def aggregate(self, replies: Sequence[Reply], sent: Mapping[int, Payload]) -> list[Reply]:
        """Make the server's new state; return the replies that were used. `sent` has what each client was sent."""
        found: dict[int, Fault] = {}
        if self.dp is not None:
            replies, refused = self.dp.take(self.server, replies, sent)
            found = {client: Fault(reason) for client, reason in refused.items()}
        found |= faults(replies, sent, self.server.protocol.guard, self.few)
        used = [reply for reply in replies if reply.client not in found]
        if used:
            found |= self._aggregated(used)
        elif self.dp is not None:
            self._aggregate_nothing(self.dp)
        if self.dp is not None:
            self.dp.settle(self.server)
        for client in found:
            self.engine.reject(client)
        self.notices.left_out(self.server.round, found)
        return [reply for reply in used if reply.client not in found]

    def _aggregated(self, replies: list[Reply]) -> dict[int, Fault]:
        """Aggregate; return the replies that were left out because they alone would fail or spoil the state."""
        before = _Before(self.server, copy=not self.engine.trusts_clients)
        problem = self._problem(replies)
        if problem is None:
            return {}
        found: dict[int, Fault] = {}
        for reply in replies:
            before.restore(problem)
            alone = self._problem([reply])
            if alone is not None:
                found[reply.client] = Fault(_reason(alone))
        before.restore(problem)
        sound = [reply for reply in replies if reply.client not in found]
        if _is_own_mistake(problem, sound, replies, self.engine):
            raise problem
        again = self._problem(sound) if found and sound else None
        if again is not None:
            before.restore(again)
        if again is not None or not found:  # each is sound by itself, but not all together
            found = {reply.client: Fault(_reason(again or problem)) for reply in replies}
        return found

    def _aggregate_nothing(self, dp: ClientDP) -> None:
        """Publish noise alone in a round without replies, which would tell that nobody was there otherwise."""
        before = _Before(self.server, copy=not self.engine.trusts_clients)
        problem = self._problem([])
        if problem is None:
            return
        before.restore(problem)  # a method may need replies for its other entries
        for name in dp.names:
            if name in self.server.state:
                self.server.average([], name, "clients")

    def _problem(self, replies: list[Reply]) -> Exception | None:
        try:
            with seeded(self.server.protocol.seed, *self.server.keys):  # dropout of nets that train at the server
                self.method.aggregate(self.server, replies)
        except Exception as problem:
            return problem
        spoilt = [name for name, tensor in self.server.state.items() if not finite(tensor)]
        return _NotFinite(f"with it the server's {', '.join(map(repr, spoilt[:3]))} is not finite") if spoilt else None


class _NotFinite(ArithmeticError):
    """The aggregated state is not finite."""


class _Before:
    """The server's state before replies are aggregated.

    Methods replace tensors by new ones, so keeping the old ones is enough. A few write into a tensor, because it holds the models of all
    clients; undoing that needs a copy, which is made where clients are not trusted.
    """

    def __init__(self, server: Server, *, copy: bool) -> None:
        self.server = server
        self.copy = copy
        self.state = {name: tensor.clone() if copy else tensor for name, tensor in server.state.items()}
        self.versions = {name: version(tensor) for name, tensor in self.state.items()}

    def restore(self, problem: Exception) -> None:
        """Restore the state, or raise the problem where it cannot be restored."""
        if any(version(tensor) != self.versions[name] for name, tensor in self.state.items()):
            raise problem
        self.server.begin(self.server.round)
        self.server.state = {name: tensor.clone() if self.copy else tensor for name, tensor in self.state.items()}


def _is_own_mistake(problem: Exception, sound: list[Reply], replies: list[Reply], engine: Engine) -> bool:
    """Return whether the method itself fails, not one client's reply: with each reply alone, or with none alone."""
    if isinstance(problem, _NotFinite) or 0 < len(sound) < len(replies):
        return False
    return engine.trusts_clients or len(replies) > 1  # of a single reply nobody can tell


def _reason(problem: Exception) -> str:
    if isinstance(problem, _NotFinite):
        return str(problem)
    return f"the server cannot use it ({type(problem).__name__}: {problem})"
