"""Attacks on a federation over the network, by an outsider who has only the authority's certificate and by a hostile site.

The server and its honest sites are real processes on the loopback network, and their run has to finish with the numbers that it would
have had without attacks.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message, Metadata, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from bench.torture import Result
from fedtailor.deploy.connection import INSTANCE
from fedtailor.deploy.deploy_folder import HERE, DeployFolder
from fedtailor.deploy.keys import certify_site, make_authority, private_key
from fedtailor.deploy.local import start_site, stop
from fedtailor.deploy.settings import with_overrides
from fedtailor.deploy.superlink import CALLS
from fedtailor.experiment.run import start
from fedtailor.experiment.run_folder import RunFolder, read_lines

ATTACKER = 2  # the site that turns hostile
WORDS = ["data=digits", "data.fraction=0.3", "net=mlp", "net.hidden=[8]", "checkpoint_every=1", "clients=3"]
FLOWER = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


@dataclass(frozen=True)
class Target:
    """A server that is being attacked, and what the attackers hold."""

    port: int
    ca: Path  # everybody in a federation has the authority's certificate
    site: Path  # the folder of a registered site
    scratch: Path


def outsiders(target: Target) -> Iterator[str]:
    """Try to reach anything without a certificate of this federation; an empty text stands for a failed attack."""
    yield from knocks(target)
    yield from _flower_commands(target)


def knocks(target: Target) -> Iterator[str]:
    """Call the server without encryption, without a certificate, and with one that another authority signed."""
    for path in (*CALLS, "/v1/control/list-runs", "/v1/control/start-run", "/docs", "/"):
        yield _reached(path, *_call(target, path, b"", context=None))
    bare = ssl.create_default_context(cafile=str(target.ca))
    careless = ssl._create_unverified_context()
    for context in (bare, careless, _forged(target)):
        for path in (CALLS[0], "/v1/control/list-nodes", "/v1/control/register-node", "/v1/control/start-run"):
            yield _reached(path, *_call(target, path, b"", context=context))


def insiders(target: Target) -> Iterator[str]:
    """Try, with a registered site's key, what a site must not: other interfaces, other sites' names, and garbage."""
    key, context = private_key(target.site / "node.key"), _own(target)
    signed = _signed(key)
    for method, path in PROTOBUF_REQUEST_TYPES:
        if path not in CALLS:
            yield _reached(path, *_call(target, path, b"", context, signed, method))
    for path in ("/docs", "/openapi.json", "/health", "/v1/fleet/../control/list-runs", "/v1/fleet//pull-messages"):
        yield _reached(path, *_call(target, path, b"", context, signed, "GET"))
    public = public_key_to_bytes(key.public_key())
    stranger, _ = generate_key_pairs()
    late = _signed(key, now() - timedelta(hours=1))
    forged = {**_signed(stranger), FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode()}
    calm = ActivateNodeRequest(public_key=public, heartbeat_interval=10).SerializeToString()
    for headers in ({}, late, forged, _signed(stranger), {**signed, FLEET_HTTP_SIGNATURE_HEADER: "!"}):
        yield _reached("an unsigned call", *_call(target, CALLS[0], calm, context, headers))
    for node in (1, 2, 2**63, 0):  # 1 is the server's own
        other = Node(node_id=node)
        message = Message(metadata=Metadata(src_node_id=node, dst_node_id=1, reply_to_message_id="x", run_id=1))
        for path, request in (
            ("deactivate-node", DeactivateNodeRequest(node_id=node)),
            ("pull-messages", PullMessagesRequest(node=other)),
            ("push-messages", PushMessagesRequest(node=other, messages_list=[message])),
            ("pull-object", PullObjectRequest(node=other, run_id=1, object_id="0" * 64)),
            ("push-object", PushObjectRequest(node=other, run_id=1, object_id="0" * 64, object_content=b"x")),
            ("send-node-heartbeat", SendNodeHeartbeatRequest(node=other, heartbeat_interval=10)),
        ):
            body = request.SerializeToString()
            yield _reached(f"{path} for node {node}", *_call(target, f"/v1/fleet/{path}", body, context, signed))
    for path in CALLS:
        yield _reached(f"garbage to {path}", *_call(target, path, os.urandom(300), context, signed))
        yield _reached(
            f"a gigabyte to {path}", *_call(target, path, b"", context, {**signed, "content-length": "1" + "0" * 10})
        )
        chunked = {**signed, "transfer-encoding": "chunked"}
        yield _reached(f"a body of untold size to {path}", *_call(target, path, b"0\r\n\r\n", context, chunked))


def run(share: float) -> list[Result]:
    """Attack a federation while it runs; `share` shortens the run, not the list of attacks."""
    with tempfile.TemporaryDirectory() as scratch:
        return _attacked(Path(scratch), max(2, round(10 * share)))


def _attacked(scratch: Path, rounds: int) -> list[Result]:
    port = free_port()
    settings, config = with_overrides(
        {}, [*WORDS, "method=fedavg", f"rounds={rounds}", f"port={port}", f"listen={HERE}", "timeout=60"]
    )
    folder = DeployFolder.create(scratch / "federation", settings, config, [HERE])
    folder.logs.mkdir()
    with (folder.logs / "serve.out").open("wb") as out:
        server = subprocess.Popen(_command("serve", folder.path), stdout=out, stderr=subprocess.STDOUT)
    started = [server, *(start_site(folder.site(i), port, folder.logs / f"{i}.log") for i in range(3) if i != ATTACKER)]
    try:
        target = Target(port, folder.keys / "ca.crt", folder.site(ATTACKER), scratch)
        _wait_for(lambda: "2 of 3 sites" in (folder.logs / "serve.out").read_text(), 60)
        outside = Result.of("an outsider with ca.crt reaches nothing", outsiders(target))
        inside = Result.of("a registered site's key opens nothing but a site's own calls", insiders(target))
        alive = Result.of("the server outlives the attacks, and serves the site whose key was used", [unserved(target)])
        started.append(start_site(folder.site(ATTACKER), port, folder.logs / f"{ATTACKER}.log"))
        _wait_for(lambda: server.poll() is not None, 120)
    finally:
        stop(started)
    end = Result.of("the attacked run ends with the numbers of peace", [_differs(folder, scratch)])
    return [outside, inside, alive, end]


def unserved(target: Target) -> str:
    """Make a site's first call correctly, to show that the attacks did reach the server."""
    key = private_key(target.site / "node.key")
    call = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=10)
    status, answer = _call(target, CALLS[0], call.SerializeToString(), _own(target), _signed(key))
    return "" if status == 200 else f"a proper call gets {status} {answer}"


def _differs(folder: DeployFolder, scratch: Path) -> str:
    """Return how the run differs from one without attacks: the third site replies correctly, so nothing may have changed."""
    start(folder.settings()[1], scratch / "peace")
    quiet, attacked = (
        [(r["accuracy"], r["replied"], r["train_loss"]) for r in read_lines(run / "metrics.jsonl")]
        for run in (scratch / "peace", folder.run)
    )
    if RunFolder(folder.run).state != "finished":
        return f"the run is {RunFolder(folder.run).state}: {(folder.logs / 'serve.out').read_text()[-2000:]}"
    return "" if quiet == attacked else f"{quiet} became {attacked}"


def _flower_commands(target: Target) -> Iterator[str]:
    """Try Flower's own programs, as its documentation describes them."""
    home = target.scratch / "flwr"
    home.mkdir(exist_ok=True)
    connection = f'[superlink.x]\naddress = "{HERE}:{target.port}"\nroot-certificates = "{target.ca}"\n'
    (home / "config.toml").write_text(connection)
    app = target.scratch / "app"
    app.mkdir(exist_ok=True)
    (app / "evil.py").write_text(EVIL.format(proof=target.scratch / "executed"))
    (app / "LICENSE").write_text("x")
    (app / "pyproject.toml").write_text(EVIL_APP)
    key = target.scratch / "own.pub"
    key.write_bytes(public_key_to_bytes(generate_key_pairs()[1]))
    environment = {**os.environ, **FLOWER, "FLWR_HOME": str(home)}
    for words in (
        ["list", "x"],
        ["supernode", "list", "x"],
        ["supernode", "register", str(key), "x"],
        ["run", str(app), "x"],
    ):
        ran = subprocess.run([_program("flwr"), *words], env=environment, capture_output=True, text=True, timeout=120)
        yield f"flwr {words[0]} went through: {ran.stdout[-300:]}" if ran.returncode == 0 else ""
    node = [_program("flower-supernode"), "--root-certificates", str(target.ca), "--superlink", f"{HERE}:{target.port}"]
    node += ["--max-retries", "0", "--host", HERE, "--port", str(free_port())]
    with subprocess.Popen(node, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tried:
        _wait_for(lambda: tried.poll() is not None, 20)  # it may keep trying
        stop([tried])
        assert tried.stdout is not None
        yield "a node of an outsider got in" if "SuperNode ID" in tried.stdout.read() else ""
    yield "an outsider's file was executed" if (target.scratch / "executed").exists() else ""


EVIL = """
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

open({str(proof)!r}, "w").close()
app, server = ClientApp(), ServerApp()
""".replace("{str(proof)!r}", "r'{proof}'")

EVIL_APP = """
[project]
name = "evil"
version = "1.0.0"
description = "x"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]
[tool.flwr.app]
publisher = "evil"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "evil:server"
clientapp = "evil:app"
"""


def _call(
    target: Target,
    path: str,
    body: bytes,
    context: ssl.SSLContext | None,
    headers: dict[str, str] | None = None,
    method: str = "POST",
) -> tuple[int, str]:
    """Return status and body of one request; status 0 if the connection was refused before any response."""
    line: http.client.HTTPConnection
    if context is None:
        line = http.client.HTTPConnection(HERE, target.port, timeout=5)
    else:
        line = http.client.HTTPSConnection(HERE, target.port, timeout=5, context=context)
    given = {"content-type": PROTOBUF_MEDIA_TYPE, "content-length": str(len(body)), **(headers or {})}
    if "transfer-encoding" in given:
        del given["content-length"]
    try:
        line.putrequest(method, path)
        for name, value in given.items():
            line.putheader(name, value)
        line.endheaders(body)
        answer = line.getresponse()
        return answer.status, answer.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        line.close()


def _reached(what: str, status: int, answer: str) -> str:
    return f"{what}: {status} {answer[:100]}" if 200 <= status < 400 else ""


def _own(target: Target) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(target.ca))
    context.load_cert_chain(target.site / "node.crt", target.site / "node.key")
    return context


def _forged(target: Target) -> ssl.SSLContext:
    """Make a certificate with a site's contents, signed by another authority."""
    folder = target.scratch / "forged"
    folder.mkdir(exist_ok=True)
    make_authority(folder)
    certify_site(folder, "0", folder / "node.key", folder / "node.crt")
    context = ssl.create_default_context(cafile=str(target.ca))
    context.load_cert_chain(folder / "node.crt", folder / "node.key")
    shutil.rmtree(folder)
    return context


def _signed(key: object, moment: object = None) -> dict[str, str]:
    stamp = (moment or now()).isoformat()  # type: ignore[attr-defined]
    public = public_key_to_bytes(key.public_key())  # type: ignore[attr-defined]
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, stamp.encode())).decode(),  # type: ignore[arg-type]
        TIMESTAMP_HEADER: stamp,
        INSTANCE: "attacker",
    }


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "fedtailor", "deploy", *map(str, words)]


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _wait_for(what: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.1)


def free_port() -> int:
    with socket.create_server((HERE, 0)) as line:
        return int(line.getsockname()[1])
