"""Downloads against a small local server that can misbehave."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedtailor.data import download
from fedtailor.data.download import OFFICIAL, RemoteFile, get
from fedtailor.errors import FedTailorError

CONTENT = np.random.default_rng(0).bytes(700_000)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True
        self.drops = 0  # so many replies end halfway
        self.errors: list[int] = []  # answered first

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        content = self.server.files.get(self.path.rpartition("/")[2])
        if self.server.errors or content is None:
            self.send_error(self.server.errors.pop(0) if self.server.errors else 404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.drops:
            self.server.drops -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "PAUSE", 0.001)
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def one_file(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    server.files["train.csv"] = CONTENT
    monkeypatch.setitem(OFFICIAL, "agnews", RemoteFile("ag_news_csv", (), {"train.csv": md5(CONTENT)}))
    return server


def packed(server: Server, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes], kind: str = "tar") -> None:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=stream, mode="w:gz") as tar:
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    file = "set.zip" if kind == "zip" else "set.tar.gz"
    server.files[file] = stream.getvalue()
    monkeypatch.setitem(OFFICIAL, "cifar10", RemoteFile("cifar", (), {file: md5(stream.getvalue())}, archive=True))


def test_whole(one_file: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    folder = get("ag_news", tmp_path, base_url=one_file.url, progress=lambda *step: seen.append(step))
    assert folder == tmp_path / "ag_news_csv"
    assert (folder / "train.csv").read_bytes() == CONTENT
    assert [file.name for file in folder.iterdir()] == ["train.csv"]
    assert seen[-1] == (len(CONTENT), len(CONTENT), "train.csv")
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    get("agnews", tmp_path, base_url=one_file.url)
    assert len(one_file.asked) == 1  # what is there is not fetched again


def test_a_wrong_file_that_is_there_is_replaced(one_file: Server, tmp_path: Path) -> None:
    (tmp_path / "ag_news_csv").mkdir()
    (tmp_path / "ag_news_csv" / "train.csv").write_bytes(CONTENT[:100])
    assert (get("agnews", tmp_path, base_url=one_file.url) / "train.csv").read_bytes() == CONTENT


def test_it_says_why_a_file_is_fetched_or_kept(one_file: Server, tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "ag_news_csv" / "train.csv"
    for before, name, why in (
        (None, None, "train.csv is missing: it is fetched."),
        (CONTENT, "train.csv", "train.csv is there already, with the official checksum: it is kept."),
        (
            CONTENT[:100],
            "train.csv",
            f"is there but its MD5 sum is {md5(CONTENT[:100])}, not the official {md5(CONTENT)}: it is",
        ),
        (
            CONTENT[:1100],
            "train.csv.part",
            "is there in part (1,100 bytes, of an interrupted download): the rest is fetched.",
        ),
    ):
        if before is not None:
            file.unlink()
            file.with_name(str(name)).write_bytes(before)
        get("agnews", tmp_path, base_url=one_file.url, say=said.append)
        assert why in said.pop()
        assert file.read_bytes() == CONTENT
    assert not said


def test_it_says_that_an_unpacked_file_cannot_be_checked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["images.gz"] = CONTENT
    monkeypatch.setitem(OFFICIAL, "mnist", RemoteFile("mnist", (), {"images.gz": md5(CONTENT)}))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "images").touch()
    said: list[str] = []
    get("mnist", tmp_path, base_url=server.url, say=said.append)
    assert said[0].startswith("images.gz is missing (images is there unpacked, but only the packed file has")


@pytest.mark.parametrize("ranges", [True, False])
def test_continued(one_file: Server, tmp_path: Path, ranges: bool) -> None:
    one_file.ranges = ranges
    (tmp_path / "ag_news_csv").mkdir()
    (tmp_path / "ag_news_csv" / "train.csv.part").write_bytes(CONTENT[:300_000])
    seen: list[int] = []
    folder = get("agnews", tmp_path, base_url=one_file.url, progress=lambda done, total, _: seen.append(total))
    assert (folder / "train.csv").read_bytes() == CONTENT
    assert one_file.asked == [("/train.csv", "bytes=300000-")]
    assert set(seen) == {len(CONTENT)}


def test_a_part_longer_than_the_file_is_started_again(one_file: Server, tmp_path: Path) -> None:
    (tmp_path / "ag_news_csv").mkdir()
    (tmp_path / "ag_news_csv" / "train.csv.part").write_bytes(CONTENT + b"more")
    assert (get("agnews", tmp_path, base_url=one_file.url) / "train.csv").read_bytes() == CONTENT


def test_dropped_midway_is_continued(one_file: Server, tmp_path: Path) -> None:
    one_file.drops = 2
    assert (get("agnews", tmp_path, base_url=one_file.url) / "train.csv").read_bytes() == CONTENT
    assert [asked for _, asked in one_file.asked] == [None, "bytes=350000-", "bytes=525000-"]


def test_dropped_for_ever_keeps_the_part(one_file: Server, tmp_path: Path) -> None:
    one_file.drops = 99
    with pytest.raises(FedTailorError, match=r"(?s)closed after .*Run the command again.*put it into"):
        get("agnews", tmp_path, base_url=one_file.url)
    part = tmp_path / "ag_news_csv" / "train.csv.part"
    assert CONTENT.startswith(part.read_bytes())
    one_file.drops = 0
    assert (get("agnews", tmp_path, base_url=one_file.url) / "train.csv").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(one_file: Server, tmp_path: Path) -> None:
    one_file.errors = [503, 429]
    assert (get("agnews", tmp_path, base_url=one_file.url) / "train.csv").read_bytes() == CONTENT


def test_corrupted_is_deleted(one_file: Server, tmp_path: Path) -> None:
    one_file.files["train.csv"] = b"?" + CONTENT[1:]
    with pytest.raises(FedTailorError, match=f"train.csv .* not {md5(CONTENT)}"):
        get("agnews", tmp_path, base_url=one_file.url)
    assert list((tmp_path / "ag_news_csv").iterdir()) == []


def test_not_found_is_not_asked_again(one_file: Server, tmp_path: Path) -> None:
    one_file.files.clear()
    with pytest.raises(FedTailorError, match=r"(?s)train\.csv: the server answers 404.*fetch the file some other way"):
        get("agnews", tmp_path, base_url=one_file.url)
    assert len(one_file.asked) == 1


def test_the_second_address_is_tried(one_file: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        addresses = (dead, f"{one_file.url}/")
        monkeypatch.setitem(OFFICIAL, "agnews", RemoteFile("ag_news_csv", addresses, {"train.csv": md5(CONTENT)}))
        assert (get("agnews", tmp_path) / "train.csv").read_bytes() == CONTENT
        with pytest.raises(FedTailorError, match=f"(?s)Tried:.*{dead}train.csv: .*refused"):
            get("agnews", tmp_path / "other", base_url=dead)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archive(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    packed(server, monkeypatch, {"cifar/a.bin": b"1", "cifar/deep/b.bin": b"22"}, kind)
    folder = get("cifar10", tmp_path, base_url=server.url)
    assert (folder / "deep" / "b.bin").read_bytes() == b"22"
    assert list(tmp_path.iterdir()) == [folder]  # neither the archive nor scratch folders stay
    said: list[str] = []
    get("cifar10", tmp_path, base_url=server.url, say=said.append)
    assert said == [f"{folder} is there already: nothing is fetched. To fetch it again, delete it."]
    assert len(server.asked) == 1


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("member", ["../evil", "cifar/../../evil", "/tmp/fedtailor-evil"])
def test_malicious_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, member: str
) -> None:
    root = tmp_path / "root"
    packed(server, monkeypatch, {"cifar/a.bin": b"1", member: b"evil"}, kind)
    if kind == "tar" and member.startswith("/"):  # the data filter strips the slash: it lands inside, and is harmless
        get("cifar10", root, base_url=server.url)
    else:
        with pytest.raises(FedTailorError, match=r"set\.(zip|tar\.gz) was refused"):
            get("cifar10", root, base_url=server.url)
        assert list(root.iterdir()) == []
    assert not list(tmp_path.rglob("evil"))
    assert not Path("/tmp/fedtailor-evil").exists()


def test_archive_with_a_link_outside(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(server, monkeypatch, {"cifar/a.bin": b"1"})
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        link = tarfile.TarInfo("cifar/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../.."
        tar.addfile(link)
    server.files["set.tar.gz"] = stream.getvalue()
    monkeypatch.setitem(
        OFFICIAL, "cifar10", RemoteFile("cifar", (), {"set.tar.gz": md5(stream.getvalue())}, archive=True)
    )
    with pytest.raises(FedTailorError, match="was refused"):
        get("cifar10", tmp_path, base_url=server.url)


def test_archive_of_something_else(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(server, monkeypatch, {"other/a.bin": b"1"})
    with pytest.raises(FedTailorError, match="does not hold the folder cifar"):
        get("cifar10", tmp_path, base_url=server.url)


def test_names() -> None:
    with pytest.raises(FedTailorError, match="Did you mean 'mnist'"):
        get("mnits", Path("x"))
    with pytest.raises(FedTailorError, match="'femnist' has no public address"):
        get("femnist", Path("x"))
    with pytest.raises(FedTailorError, match="must begin with http"):
        get("mnist", Path("x"), base_url="file:///etc")
    assert not Path("x").exists()


def test_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedTailorError, match="could not be written"):
        get("mnist", tmp_path / "file", base_url="http://127.0.0.1:9")


def test_every_sum_looks_like_one() -> None:
    for remote in OFFICIAL.values():
        assert all(len(bytes.fromhex(sum_)) == 16 for sum_ in remote.files.values())
        assert all(address.startswith("http") and address.endswith("/") for address in remote.addresses)
