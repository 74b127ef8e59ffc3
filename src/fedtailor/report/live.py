"""A live report of a run that is under way, served to this machine only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR
from threading import BoundedSemaphore, Lock, Timer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedtailor.analysis.results import Result, read_run
from fedtailor.errors import FedTailorError
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.report.material import load_material
from fedtailor.report.page import as_json, content, page
from fedtailor.report.sections import Section, sections

HERE = "127.0.0.1"  # reachable from this machine only
FILES = ("config.toml", "metrics.jsonl", "clients.jsonl", "status.json", "labels.json")
PATIENCE = 10.0  # seconds for a client to send a request, and to receive a page
MOST_AT_ONCE = 32

Stamp = tuple[object, ...]


@dataclass
class Watched:
    """Run folders, read again only where a file has changed."""

    paths: Sequence[Path]
    command: str
    _known: dict[Path, tuple[Stamp, Result]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def now(self) -> tuple[str, list[Section]]:
        """Return a stamp that changes with the report, and the report as of now."""
        with self._lock:
            material = load_material(self.paths, read=self._read)
            stamps = sorted((str(r.path), _stamp(r.path)) for r in material.results)
        return sha256(repr(stamps).encode()).hexdigest()[:16], sections(material, self.command)

    def _read(self, path: Path) -> Result:
        stamp = _stamp(path)
        if path not in self._known or self._known[path][0] != stamp:
            self._known[path] = (stamp, read_run(path))
        return self._known[path][1]


class PageHandler(BaseHTTPRequestHandler):
    """Serve the page and its changes, only to requests for this machine's own name."""

    timeout = PATIENCE  # for a client that stops reading

    def __init__(self, watched: Watched, *given: Any) -> None:
        self.watched = watched
        super().__init__(*given)

    def setup(self) -> None:
        super().setup()
        # One limit for the whole request: an occasional byte would satisfy the socket's own timeout.
        self._hurry = Timer(PATIENCE, self._hang_up)
        self._hurry.daemon = True
        self._hurry.start()

    def finish(self) -> None:
        self._hurry.cancel()
        with suppress(OSError):
            super().finish()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(SHUT_RDWR)

    def do_GET(self) -> None:
        self._hurry.cancel()
        asked = urlsplit(self.path)
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in (HERE, "localhost"):
            self._send(403, "text/plain", "Ask for 127.0.0.1.")
        elif asked.path not in ("/", "/content.json"):
            self._send(404, "text/plain", "There is only one page here: /")
        else:
            self._report(asked.path, parse_qs(asked.query).get("since", [""])[0])

    def _report(self, path: str, since: str) -> None:
        try:
            stamp, said = self.watched.now()
        except FedTailorError as error:
            self._send(503, "text/plain; charset=utf-8", str(error))
            return
        if path == "/":
            self._send(200, "text/html; charset=utf-8", page(said, stamp))
        elif since == stamp:
            self._send(204, "text/plain", "")
        else:
            self._send(200, "application/json", as_json(content(said, stamp)))

    def _send(self, code: int, kind: str, body: str) -> None:
        data = body.encode()
        with suppress(OSError):  # a tab closed while it loads is no error
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line per request would bury what the user wants to see."""


class WatchServer(ThreadingHTTPServer):
    """Answer a few requests at a time; surplus connections are closed and may retry."""

    def __init__(self, watched: Watched, port: int) -> None:
        self._free = BoundedSemaphore(MOST_AT_ONCE)
        super().__init__((HERE, port), partial(PageHandler, watched))

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that left in the middle; report anything else as usual."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def serve(paths: Sequence[Path], command: str, port: int = 0) -> WatchServer:
    """Return a server, ready to be started, on this port or any free one."""
    watched = Watched(paths, command)
    watched.now()  # a folder without a run is reported before anything is served
    try:
        return WatchServer(watched, port)
    except (OSError, OverflowError) as error:
        raise FedTailorError(
            f"Port {port} cannot be used ({error}). Choose another with --port, or 0 for any."
        ) from None


def _stamp(path: Path) -> Stamp:
    """Return what changes with a run: its files, and its state, since a killed process writes nothing."""
    found = (path / name for name in FILES)
    return (RunFolder(path).state, *((s.st_mtime_ns, s.st_size) for s in (f.stat() for f in found if f.exists())))
