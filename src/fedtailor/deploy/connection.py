"""A site's connection to the federation's server: a Flower node's calls, without Flower's node, which would run any app it receives."""

from __future__ import annotations

import secrets
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx
from flwr.app import Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedtailor.deploy.keys import private_key
from fedtailor.errors import FedTailorError

INSTANCE = "fedtailor-instance"  # the header that identifies a site's process
STRANGE = "it is not signed by a site of this federation"  # the server's reply to an unknown key
HEARTBEAT = 10.0  # seconds; a node that is silent for twice as long counts as offline
PAUSES = 0.2, 0.5, 1.0, 2.0  # seconds before a failed call is repeated
PULL_WAIT = 600.0  # seconds for the objects of one message


class Connection:
    """Receives messages from the server and sends replies, each call signed with the site's key.

    Raises httpx.HTTPError when the server cannot be reached or no longer knows this node; then enter the context again.
    """

    def __init__(self, server: str, folder: Path) -> None:
        key = private_key(folder / "node.key")
        try:
            trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
            trust.load_cert_chain(folder / "node.crt", folder / "node.key")
        except (OSError, ssl.SSLError) as error:
            raise FedTailorError(
                f"'{folder}' needs ca.crt, node.crt and node.key as the server made them ({error})."
            ) from None
        self.public_key = public_key_to_bytes(key.public_key())
        self.client = FleetHttpClient(
            f"https://{server}",
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key()), Instance()],
            verify=trust,
            retry_invoker=Persistent(),  # type: ignore[arg-type]
        )
        self.node = Node()
        self._gone = threading.Event()

    def __enter__(self) -> Self:
        response = self.client.ActivateNode(
            ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=HEARTBEAT)
        )
        self.node = Node(node_id=response.node_id)
        self._gone = threading.Event()
        threading.Thread(target=self._beat, args=(self.node, self._gone), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gone.set()
        with suppress(httpx.HTTPError):
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))

    def receive(self) -> Message | None:
        """Return the next message with its content, or None if there is none."""
        response = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        run_id = response.messages_list[0].metadata.run_id
        tree = response.message_object_trees[0]

        def confirm(id: str) -> None:
            request = ConfirmMessageReceivedRequest(node=self.node, run_id=run_id, message_object_id=id)
            self.client.ConfirmMessageReceived(request)

        pull = make_pull_object_fn_protobuf(self.client.PullObject, self.node, run_id)
        message = pull_and_inflate_object_from_tree(
            tree, pull, confirm, return_type=Message, max_time=PULL_WAIT, initial_backoff=0.1
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def send(self, reply: Message) -> None:
        """Send a reply, or an error in its place."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            response = self.client.PushMessages(
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                )
            )
            put = make_push_object_fn_protobuf(
                self.client.PushObject, self.node, reply.metadata.run_id, response.session_id
            )

            def push(id: str, content: bytes) -> None:
                with suppress(ObjectPushError):  # the server has it already, or has let go of a reply that is whole
                    put(id, content)

            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(response.objects_to_push))

    def _beat(self, node: Node, gone: threading.Event) -> None:
        while not gone.wait(HEARTBEAT / 2):
            with suppress(httpx.HTTPError):
                self.client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT))


class Persistent:
    """Makes a call again that did not get through, signed anew. All calls may be made twice."""

    def invoke(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Send until it gets through, a few times; Flower's client calls this in place of its own `RetryInvoker`."""
        for pause in PAUSES:
            with suppress(httpx.TransportError):
                return send()
            time.sleep(pause)
        return send()


class Instance:
    """Identifies this process to the server, so that two with the same key do not take each other's messages."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, {INSTANCE: self.token})
        return call_next(context)
