"""The server makes its new state of what came up; where clients are not to be trusted, a reply that would break it is left out."""

from __future__ import annotations

from fedtailor.engines import Engine
from fedtailor.learning import Reply, Server, State
from fedtailor.methods import Method
from fedtailor.randomness import seeded


def gather(method: Method, server: Server, replies: list[Reply], engine: Engine) -> list[Reply]:
    """Have the method gather the replies; the answer are those that were used."""
    if not engine.doubts:
        _gather(method, server, replies)
        return replies
    before = _copied(server.state)
    try:
        _gather(method, server, replies)
        return replies
    except Exception:
        sound = [reply for reply in replies if _usable(method, server, reply, engine, before)]
        if len(sound) == len(replies):
            raise  # no reply by itself is to blame, so the method is
    _start_over(server, before)
    if sound:
        _gather(method, server, sound)
    return sound


def _usable(method: Method, server: Server, reply: Reply, engine: Engine, before: State) -> bool:
    _start_over(server, before)
    try:
        _gather(method, server, [reply])
    except Exception as problem:
        engine.reject(
            reply.client, f"round {server.round}: the server cannot use it ({type(problem).__name__}: {problem})"
        )
        return False
    return True


def _gather(method: Method, server: Server, replies: list[Reply]) -> None:
    with seeded(server.protocol.seed, *server.keys):  # dropout of nets that train at the server
        method.gather(server, replies)


def _start_over(server: Server, state: State) -> None:
    server.begin(server.round)
    server.state = _copied(state)


def _copied(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}
