"""Flower's SuperLink inside the server's own process: only the calls that a site's node needs, over mutual TLS.

Flower's own program serves three interfaces on one port: one for nodes, one that starts runs and registers nodes without
authentication, and one for the apps it runs. Here only the first exists, so nothing can be started, listed, stopped or registered
from outside.
"""

from __future__ import annotations

import binascii
import logging
import socket
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from flwr.app import Error, Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, ErrorCode, Status
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.task_pb2 import TaskStatus
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.object_store.object_store import NoObjectInStoreError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware, authenticate_node
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.types import ASGIApp, Receive, Scope, Send

from fedtailor.deploy.connection import INSTANCE, STRANGE
from fedtailor.deploy.keys import public_key
from fedtailor.errors import FedTailorError

log = logging.getLogger("fedtailor")

CALLS = tuple(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "pull-object",
        "push-object",
        "confirm-message-received",
    )
)
SPARE = 1_000_000  # bytes allowed per message beside its arrays
PATIENCE = 30.0  # seconds for the server to start and to stop


class SuperLink:
    """Serves the nodes whose certificates are given, by name, within its context; `grid` sends them messages.

    A node is known by its key while this process lives. There is no database: after a restart the run resumes from a checkpoint and
    nodes announce themselves again.
    """

    def __init__(self, keys: Path, sites: Mapping[str, Path], host: str, port: int, limit: int) -> None:
        """`keys` holds the server's key and certificate and the authority's certificate; `limit` bounds the bytes of one reply."""
        store = Store()
        self.state = Messages(NoOpFederationManager(), store)
        self.nodes: dict[int, str] = {}  # node -> name of its site
        self.known: dict[bytes, int] = {}  # public key -> node
        for name, file in sites.items():
            key = public_key_to_bytes(public_key(file))
            self.known[key] = node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
            self.nodes[node] = name
        self.grid = Grid(self.state, store, limit + SPARE)
        self.socket = _listening(host, port)
        self.port: int = self.socket.getsockname()[1]
        config = uvicorn.Config(
            AccessControl(self, _fleet(self.state), limit + SPARE),
            ssl_certfile=str(keys / "server.crt"),
            ssl_keyfile=str(keys / "server.key"),
            ssl_ca_certs=str(keys / "ca.crt"),
            ssl_cert_reqs=ssl.CERT_REQUIRED,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), name="link", daemon=True)

    def __enter__(self) -> Self:
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # every failed handshake would log a traceback
        self.thread.start()
        deadline = time.monotonic() + PATIENCE
        while self.thread.is_alive() and not self.server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self.server.started:
            raise FedTailorError(f"The server could not be started on port {self.port}.")
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=2.0)
        self.server.force_exit = True
        self.thread.join(timeout=PATIENCE)
        self.socket.close()


class Store(InMemoryObjectStore):
    """Flower's object store, in which messages share common objects."""

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Register a message's objects atomically: in Flower's own, another thread may delete one that was just found."""
        with self.lock_store:
            return super().preregister(run_id, object_tree)


class Messages(InMemoryLinkState):
    """Flower's state of nodes and messages; a node that did not get its message whole gets it again when it asks for the next one.

    Flower's own hands a message over once: where the network loses it, or the site is killed while it arrives, the server would wait
    for the reply in vain.
    """

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        with self.lock:
            for id, message in self.message_ins_store.items():
                if message.metadata.dst_node_id == node_id and self._unconfirmed(id):
                    message.metadata.delivered_at = ""
        return super().get_message_ins(node_id, limit, run_id=run_id)

    def _unconfirmed(self, id: str) -> bool:
        """Whether the message's objects are still held, as they are until the node confirms that it has them."""
        try:
            self.object_store.get_object_tree(id)
        except NoObjectInStoreError:
            return False
        return True


class Grid:
    """Sends messages to nodes and collects their replies, within the process that serves the nodes."""

    def __init__(self, state: InMemoryLinkState, store: Store, limit: int) -> None:
        self.state = state
        self.store = store
        self.limit = limit
        self.run_id = state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (run,) = state.get_run_info(run_ids=[self.run_id])
        assert run.primary_task_id is not None
        # Running while this process does: a claimed task would need heartbeats, and end when the machine sleeps.
        state.task_store[run.primary_task_id].status.CopyFrom(TaskStatus(status=Status.RUNNING))
        TaskIdentity.run_id, TaskIdentity.task_id = self.run_id, run.primary_task_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self.sent: dict[int, int] = {}  # node -> bytes it has sent since its last message from here
        self.arriving: dict[str, Message] = {}  # id of a message -> its reply, of which objects may be missing

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are online."""
        return self.state.get_nodes(self.run_id)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages for delivery; return their ids, empty for one that cannot be delivered."""
        with no_object_id_recompute():
            return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have arrived completely, each once."""
        found = []
        for id in message_ids:
            if id not in self.arriving:
                self._fetch(id)
            if id in self.arriving and (reply := self._assembled(self.arriving[id])) is not None:
                del self.arriving[id]
                found.append(reply)
        return found

    def _push(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = id = message.object_id
        session = self.state.start_session(self.run_id)
        objects, tree = get_all_nested_objects(message), get_object_tree(message)
        self.sent[message.metadata.dst_node_id] = 0
        # Messages share objects, and another node may be releasing one. In Flower's order: a node that asks for its messages takes the
        # state's lock and then the store's, and would wait for this thread for ever if it were the other way round.
        with self.state.lock, self.store.lock_store:
            stored, missing = self.state.store_message_and_object_tree(
                remove_content_from_message(message), tree, session
            )
            for object_id in missing:
                self.state.store_object(self.run_id, session, object_id, objects[object_id].deflate())
        return id if stored else ""

    def _fetch(self, id: str) -> None:
        with self.state.lock:
            self.state._check_stored_messages({id})  # drops a message that has expired
            if id not in self.state.message_ins_store:
                return
            replies = self.state.get_message_res(message_ids={id}, run_id=self.run_id)
        for reply in replies:
            self.state.delete_messages(message_ins_ids={id})
            self.arriving[id] = reply

    def _assembled(self, reply: Message) -> Message | None:
        """Return the reply with its content once all its objects are here; whatever is wrong with them becomes its error."""
        id = reply.metadata.message_id
        store = self.store
        if reply.has_error():
            store.delete(id)
            return reply
        try:
            ids = {node.object_id for node in iterate_object_tree(store.get_object_tree(id))}
            contents = {object_id: store.get(object_id) or b"" for object_id in ids}
            size = sum(map(len, contents.values()))
            if size > self.limit:
                raise ValueError(f"it weighs {size:,} bytes, and {self.limit:,} are allowed (max_reply_mb)")
            if not all(contents.values()):
                return None
            store.delete(id)
            whole = inflate_object_from_contents(id, contents)
            assert isinstance(whole, Message)
            reply.content = whole.content
        except Exception as problem:  # a hostile reply may be broken in any way
            store.delete(id)
            reply.__dict__["_content"] = None
            reason = f"an answer that cannot be used: {type(problem).__name__}: {problem}"
            reply.error = Error(ErrorCode.MESSAGE_UNAVAILABLE, reason)
        return reply


class AccessControl:
    """Admits what a node with an admitted key may send: one of the known calls, signed, of bounded size.

    Everything is checked on the request's headers, before its body is read. Of two processes with the same key, the one that announced
    itself last is served.
    """

    def __init__(self, link: SuperLink, app: ASGIApp, limit: int) -> None:
        self.link = link
        self.app = app
        self.limit = limit
        self.instances: dict[int, str] = {}  # node -> its process

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            self._check(request)
        except HTTPException as refusal:
            log.warning("refused a call of %s: %s", request.url.path[:100], refusal.detail)
            await Response(refusal.detail, refusal.status_code)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _check(self, request: Request) -> None:
        path, headers = request.url.path, request.headers
        if request.method != "POST" or path not in CALLS:
            raise HTTPException(404, "there is no such call here")
        node = self._signer(request)
        size = headers.get("content-length", "")
        if not size.isdecimal() or "transfer-encoding" in headers:
            raise HTTPException(411, "the size of a call has to be given")
        name, instance = self.link.nodes[node], headers.get(INSTANCE, "")
        if path.endswith("/activate-node"):
            self.instances[node] = instance
            self.link.state.deactivate_node(node)  # a killed site need not wait until its heartbeat is missed
        elif self.instances.get(node) != instance:
            raise HTTPException(409, f"another process has the key of site {name} and has taken its place")
        sent = self.link.grid.sent
        total = int(size) + (sent.get(node, 0) if "/push-" in path else 0)
        if int(size) > self.limit or total > 2 * self.limit:  # twice: a failed call may be repeated
            raise HTTPException(413, f"site {name} sends more than {self.limit:,} bytes (max_reply_mb)")
        if "/push-" in path:
            sent[node] = total

    def _signer(self, request: Request) -> int:
        """Return the node whose key signed the call, by Flower's own check, which runs again on the content once that is read."""
        try:
            key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            node = self.link.known[key]
        except (KeyError, binascii.Error):
            raise HTTPException(401, STRANGE) from None
        request.state.protobuf_request = ActivateNodeRequest(public_key=key)
        authenticate_node(request)
        return node


def _fleet(state: InMemoryLinkState) -> FastAPI:
    """Flower's handlers of nodes' calls."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=_own_messages_only),
        ],
    )
    app.state.linkstate_factory = SimpleNamespace(state=lambda: state)
    app.state.enable_supernode_auth = True
    app.include_router(fleet_router)
    return app


async def _own_messages_only(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Refuse a node's message that names another node as its sender."""
    call = request.state.protobuf_request
    if isinstance(call, PushMessagesRequest):
        senders = {message.metadata.src_node_id for message in call.messages_list}
        if senders != {call.node.node_id} or len(call.messages_list) != 1:
            raise HTTPException(403, "a node sends one message at a time, in its own name")
    return await call_next(request)


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise FedTailorError(
            f"Port {port} of {host} cannot be listened on ({error}). Is the server running already?"
        ) from None
