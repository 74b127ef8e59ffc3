"""What Flower starts at a site, anew for every message: it hands the message to the site's own process, which has the data at hand.

Nothing here imports PyTorch, which would take longer than many a message's work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Wire

from fedtailor.errors import FedTailorError

DONE = b"done"

app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """Pass one message of the federation's server on, and the answer back."""
    return Message(ask(context.run_config, context.node_config, message.content), reply_to=message)


def ask(run_config: Mapping[str, Any], node_config: Mapping[str, Any], content: RecordDict) -> RecordDict:
    """Have the site's process answer; it is started if there is none."""
    place = Path(str(node_config.get("folder", "."))).resolve()
    configs = json.dumps([dict(run_config), dict(node_config)]).encode()
    letter = recorddict_to_proto(content).SerializeToString()
    try:
        verdict, reply = _exchange(place, configs, letter)
    except (OSError, EOFError):  # there is none, or it was about to end
        _start(place)
        try:
            verdict, reply = _exchange(place, configs, letter)
        except (OSError, EOFError):
            raise FedTailorError(f"The site's process ended while it worked. {log_of(place)} may say why.") from None
    if verdict != DONE:
        raise FedTailorError(reply.decode())
    return recorddict_from_proto(Wire.FromString(reply))


def address_of(place: Path) -> Path:
    """The file that says where a site's process listens."""
    return place / "resident.txt"


def log_of(place: Path) -> Path:
    return place / "resident.log"


def _exchange(place: Path, configs: bytes, letter: bytes) -> tuple[bytes, bytes]:
    with Client(address_of(place).read_text()) as line:
        line.send_bytes(configs)
        line.send_bytes(letter)
        return line.recv_bytes(), line.recv_bytes()


def _start(place: Path) -> None:
    """The parent of this process is Flower's, and lasts as long as the node: the site's process ends with it."""
    command = [sys.executable, "-m", "fedtailor.deploy.resident", str(place), str(os.getppid())]
    with log_of(place).open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise FedTailorError(f"The site's process did not start. {log_of(place)} says why.")
