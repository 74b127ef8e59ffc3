"""A site's own process: it keeps PyTorch and the site's data in memory from one message to the next, and ends with Flower's node.

It keeps nothing else: what a method remembers is on disk after every message, so a new process carries on where this one was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Wire

from fedtailor.deploy.doorway import DONE, address_of
from fedtailor.deploy.node import Node
from fedtailor.engines.letters import BadLetter
from fedtailor.errors import FedTailorError

LOOK = 0.5  # seconds between two looks whether Flower's node is still there


class Resident:
    """Opens the site's data when the first message of a run comes, and again only for a run with other configs."""

    def __init__(self) -> None:
        self.configs = b""
        self.node: Node | None = None

    def serve(self, line: Connection) -> None:
        configs, letter = line.recv_bytes(), line.recv_bytes()
        try:
            answer = recorddict_to_proto(self._node(configs).answer(recorddict_from_proto(Wire.FromString(letter))))
            verdict, reply = DONE, answer.SerializeToString()
        except (FedTailorError, BadLetter) as problem:
            verdict, reply = b"failed", str(problem).encode()
        except Exception as problem:
            traceback.print_exc()
            verdict, reply = b"failed", f"{type(problem).__name__}: {problem}".encode()
        line.send_bytes(verdict)
        line.send_bytes(reply)

    def _node(self, configs: bytes) -> Node:
        if self.node is None or configs != self.configs:
            self.node = None  # the data of another run may go before this one's comes
            self.node = Node.open(*json.loads(configs))
            self.configs = configs
        return self.node


def main(place: Path, parent: int) -> None:
    """Listen in a folder that only this user can read, and say so once there is somebody to talk to."""
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    resident = Resident()
    with Listener() as listener:
        draft = place / f".{os.getpid()}.txt"
        draft.write_text(str(listener.address))
        os.replace(draft, address_of(place))
        print("ready", flush=True)
        os.dup2(2, 1)  # whoever started this process will not read on
        while True:
            try:
                with listener.accept() as line:
                    resident.serve(line)
            except (OSError, EOFError):  # whoever asked has gone
                continue


def end_with(parent: int) -> None:
    """Interrupt this process once another one has gone, even while it waits or trains."""
    while True:
        time.sleep(LOOK)
        try:
            os.kill(parent, 0)
        except PermissionError:
            continue
        except OSError:
            os.kill(os.getpid(), signal.SIGINT)
            return


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except KeyboardInterrupt:  # Ctrl-C, SIGTERM, or Flower's node has ended
        sys.exit(0)
