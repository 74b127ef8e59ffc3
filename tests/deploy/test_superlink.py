"""The locks of Flower's state and store, which the server and the nodes' requests take in the same order."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedtailor.deploy.superlink import Grid


def test_a_push_waits_for_the_state_without_holding_the_store() -> None:
    """A node that asks for its messages holds the state and then takes the store: a push that held the store would wait for ever."""
    state = SimpleNamespace(
        lock=threading.RLock(),
        start_session=lambda run: begun.set() or "session",
    )

    def stored(*_: object) -> tuple[bool, list[str]]:
        with state.lock:
            return False, []

    state.store_message_and_object_tree = stored
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    grid, begun = Grid.__new__(Grid), threading.Event()
    grid.state, grid.store, grid.run_id, grid.sent = state, SimpleNamespace(lock_store=threading.RLock()), 1, {}  # type: ignore[assignment]
    push = threading.Thread(target=grid._push, args=[Message(RecordDict(), 7, "query")], daemon=True)
    with state.lock:
        push.start()
        assert begun.wait(30)
        push.join(0.2)  # by now it waits for the state
        assert grid.store.lock_store.acquire(timeout=5)
        grid.store.lock_store.release()
    push.join(30)
    assert not push.is_alive()
