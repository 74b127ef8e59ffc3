"""Download public data sets from their official addresses into the data root.

Not done with pooch, the usual library, because it cannot continue an interrupted download.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import shutil
import ssl
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import fedtailor.data.sources  # noqa: F401  names and aliases are registered by the import
from fedtailor.data.pool import sources
from fedtailor.errors import FedTailorError

Progress = Callable[[int, int, str], None]

TRIES = 4
PAUSE = 1.0  # seconds before the second try, doubled for each further one
TIMEOUT = 30.0
CHUNK = 1 << 18


@dataclass(frozen=True)
class RemoteFile:
    """The files of a data set with their MD5 sums, their addresses, and the folder they end up in. Archives contain that folder."""

    folder: str
    addresses: tuple[str, ...]
    files: dict[str, str]
    archive: bool = False


# The sums are those published with the data sets (on CIFAR's and Fashion-MNIST's own pages) or checked by torchvision and torchtext.
OFFICIAL: dict[str, RemoteFile] = {
    "mnist": RemoteFile(
        "mnist",
        # The first home, yann.lecun.com, no longer serves the files; these are copies byte for byte.
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": RemoteFile(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": RemoteFile(
        "cifar-10-batches-bin",
        ("https://www.cs.toronto.edu/~kriz/",),
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        archive=True,
    ),
    "cifar100": RemoteFile(
        "cifar-100-binary",
        ("https://www.cs.toronto.edu/~kriz/",),
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        archive=True,
    ),
    "tiny-imagenet": RemoteFile(
        "tiny-imagenet-200",
        ("http://cs231n.stanford.edu/",),
        {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
        archive=True,
    ),
    "agnews": RemoteFile(
        "ag_news_csv",
        ("https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",),
        {"train.csv": "b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "d52ea96a97a2d943681189a97654912d"},
    ),
}


def get(
    name: str,
    root: Path,
    *,
    base_url: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Fetch a data set and return its folder; complete files are kept, partial downloads are continued.

    `base_url` names a mirror that holds the same files; `progress` is called with (bytes so far, total bytes, file), and `say` with
    what is kept, and why a file is fetched.
    """
    known = sources.find(name).name
    if known not in OFFICIAL:
        raise FedTailorError(
            f"'{known}' has no public address to fetch it from. Can be fetched: {', '.join(OFFICIAL)}."
        )
    remote = OFFICIAL[known]
    if base_url is not None and not re.match(r"https?://", base_url):
        raise FedTailorError(f"'{base_url}' is not an address: it must begin with http:// or https://.")
    addresses = remote.addresses if base_url is None else (base_url.rstrip("/") + "/",)
    target = root / remote.folder
    if remote.archive and target.is_dir():
        say(f"{target} is there already: nothing is fetched. To fetch it again, delete it.")
        return target
    place = root if remote.archive else target
    try:
        place.mkdir(parents=True, exist_ok=True)
        for file, md5 in remote.files.items():
            reason = _reason(place / file, md5)
            say(f"{file} {reason}." if reason else f"{file} is there already, with the official checksum: it is kept.")
            if reason:
                _fetch(addresses, place / file, md5, target, progress or (lambda done, total, file: None))
            if remote.archive:
                _unpack(place / file, target)
    except OSError as error:
        raise FedTailorError(f"The data set '{known}' could not be written below {root} ({error}).") from None
    return target


def _reason(file: Path, md5: str) -> str:
    """Say why a file must be fetched; empty if it is there as it should be."""
    part = _partial(file)
    if file.is_file():
        found = _md5(file)
        return (
            "" if found == md5 else f"is there but its MD5 sum is {found}, not the official {md5}: it is fetched again"
        )
    if part.exists():
        return f"is there in part ({part.stat().st_size:,} bytes, of an interrupted download): the rest is fetched"
    if file.suffix == ".gz" and file.with_suffix("").exists():
        return f"is missing ({file.stem} is there unpacked, but only the packed file has an official checksum): it is fetched"
    return "is missing: it is fetched"


def _partial(file: Path) -> Path:
    return file.with_name(file.name + ".part")


def _fetch(addresses: tuple[str, ...], file: Path, md5: str, target: Path, progress: Progress) -> None:
    part = _partial(file)
    tried = []
    for address in addresses:
        failure = _persist(address + file.name, part, progress)
        if not failure:
            break
        tried.append(f"  {address}{file.name}: {failure}")
    else:
        where = f"unpack it so that {target} holds its files" if file.parent != target else f"put it into {target}"
        raise FedTailorError(
            f"{file.name} could not be fetched. Tried:\n"
            + "\n".join(tried)
            + "\nRun the command again to continue where it stopped, "
            f"or fetch the file some other way and {where}."
        )
    found = _md5(part)
    if found != md5:
        part.unlink()
        raise FedTailorError(
            f"{file.name} from {address} is not the official file: its MD5 sum is {found}, not {md5}. It was deleted; try again."
        )
    part.replace(file)


def _persist(url: str, part: Path, progress: Progress) -> str:
    """Transfer with retries; return the reason of the last failure, or '' on success."""
    reason = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            _transfer(url, part, progress)
            return ""
        except urllib.error.HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            if error.code == 416:  # the partial file is not a prefix of the server's file
                part.unlink(missing_ok=True)
            elif error.code < 500 and error.code not in (408, 429):
                return reason
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, ConnectionError, TimeoutError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
    return reason


def _transfer(url: str, part: Path, progress: Progress) -> None:
    """Append the missing bytes of `url` to `part`; a server without range requests sends the whole file again."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(
        url, headers={"User-Agent": "fedtailor"} | ({"Range": f"bytes={have}-"} if have else {})
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
        continued = reply.status == 206 and reply.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if continued else 0
        total = done + int(reply.headers.get("Content-Length") or 0)
        with part.open("ab" if continued else "wb") as stream:
            while block := reply.read(CHUNK):
                stream.write(block)
                done += len(block)
                progress(done, total, part.name.removesuffix(".part"))
    # Short reads raise nothing: a connection dropped midway looks like the end of the file.
    if done < total:
        raise ConnectionError(f"the connection was closed after {done} of {total} bytes")


def _md5(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unpack(archive: Path, target: Path) -> None:
    """Unpack beside `target` and rename when complete, so that half an archive is never taken for a data set."""
    if not hasattr(tarfile, "data_filter"):
        raise FedTailorError("Unpacking archives safely needs Python 3.11.4 or newer.")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as scratch:
        try:
            if archive.suffix == ".zip":
                _unzip(archive, scratch)
            else:
                with tarfile.open(archive) as tar:
                    tar.extractall(scratch, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            archive.unlink()
            raise FedTailorError(
                f"{archive.name} was refused and deleted: it is damaged or unsafe to unpack ({error})."
            ) from None
        inside = Path(scratch) / target.name
        if not inside.is_dir():
            archive.unlink()
            raise FedTailorError(f"{archive.name} was refused and deleted: it does not hold the folder {target.name}.")
        shutil.move(inside, target)
    archive.unlink()


def _unzip(archive: Path, folder: str) -> None:
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                raise zipfile.BadZipFile(f"the member {name!r} lies outside the archive's folder")
        packed.extractall(folder)
