"""Reading is bounded: small files that unfold to much, and numbers that ask for much, are refused by name with the limit."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedtailor.data.sources  # noqa: F401
from fedtailor import limits
from fedtailor.data.federation import Federation
from fedtailor.data.pool import Pool, sources
from fedtailor.data.sources.files import file_bytes, unpacked_bytes, zip_members
from fedtailor.errors import FedTailorError

MB = 10**6


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 4 MB, so that a bomb of a few MB is one."""
    monkeypatch.setattr(limits, "GB", MB)


def read(root: Path, source: str, **options: Any) -> Pool:
    return sources.build(source, options).read(root)


def npz(file: Path, data: bytes, kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("x.npy", data)
    return file


def test_a_gzipped_bomb(tmp_path: Path, small_limit: None) -> None:
    (tmp_path / "mnist").mkdir()
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 9000, 28, 28) + bytes(9000 * 784)))
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(b"")
    with pytest.raises(FedTailorError, match=r"train-images-idx3-ubyte\.gz: .*the limit is 4 GB.*FEDTAILOR_MAX_GB=8"):
        read(tmp_path, "mnist")
    several = b"".join(gzip.compress(bytes(MB)) for _ in range(3))
    (tmp_path / "a.gz").write_bytes(several)
    assert len(unpacked_bytes(tmp_path / "a.gz")) == 3 * MB


def test_a_zip_bomb_and_one_that_lies(tmp_path: Path, small_limit: None) -> None:
    file = npz(tmp_path / "a.npz", bytes(5 * MB))
    with pytest.raises(FedTailorError, match=r"a\.npz: 5\.0 GB where the limit is 4 GB.*FEDTAILOR_MAX_GB=5\."):
        read(tmp_path, "arrays", path=str(file))
    file.write_bytes(file.read_bytes().replace(struct.pack("<I", 5 * MB), struct.pack("<I", 100)))
    with pytest.raises(FedTailorError, match=r"a\.npz cannot be read"):
        zip_members(file)


def test_a_member_is_not_unpacked_beyond_what_it_says(tmp_path: Path) -> None:
    file = npz(tmp_path / "a.npz", bytes(50 * MB))
    file.write_bytes(file.read_bytes().replace(struct.pack("<I", 50 * MB), struct.pack("<I", 100)))
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(FedTailorError):
        zip_members(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * MB


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_than_numpys(tmp_path: Path, kind: int) -> None:
    npz(tmp_path / "a.npz", b"x", kind)
    with pytest.raises(FedTailorError, match=r"a\.npz: 'x\.npy' is compressed in a way .*np\.savez_compressed"):
        read(tmp_path, "arrays", path=str(tmp_path / "a.npz"))


def test_an_unknown_compression(tmp_path: Path) -> None:
    file = npz(tmp_path / "a.npz", b"x", zipfile.ZIP_STORED)
    with zipfile.ZipFile(file) as archive:
        start = archive.start_dir
    data = bytearray(file.read_bytes())
    data[8] = data[start + 10] = 99
    file.write_bytes(data)
    with pytest.raises(FedTailorError, match=r"number 99"):
        read(tmp_path, "arrays", path=str(file))


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", Path("/dev/zero")):
        with pytest.raises(FedTailorError, match="is not a file"):
            file_bytes(path)
    with pytest.raises(FedTailorError, match="is not a file"):
        read(tmp_path, "table", path=str(tmp_path / "pipe.csv"))


def test_a_label_or_token_that_asks_for_the_moon(tmp_path: Path) -> None:
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 2, 2**31])
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(FedTailorError, match=r"a\.npz: y: 2,147,483,649 classes.*100,000.*FEDTAILOR_MAX_CLASSES"):
        read(tmp_path, "arrays", path=str(tmp_path / "a.npz"))
    with pytest.raises(FedTailorError, match="FEDTAILOR_MAX_CLASSES"):
        Federation.from_clients([(x, y)])
    tokens = np.array([[1, 2], [3, 2**33]])
    np.savez(tmp_path / "a.npz", x=tokens, y=np.array([0, 1]))
    with pytest.raises(FedTailorError, match=r"a\.npz.*8,589,934,593 tokens.*FEDTAILOR_MAX_TOKENS"):
        read(tmp_path, "arrays", path=str(tmp_path / "a.npz"))
    with pytest.raises(FedTailorError, match="FEDTAILOR_MAX_TOKENS"):
        Federation.from_clients([(tokens, np.array([0, 1]))])
    (tmp_path / "train").mkdir()
    np.savez(tmp_path / "train" / "0.npz", data=np.array({"x": tokens, "y": np.array([0, 1])}, dtype=object))
    with pytest.raises(FedTailorError, match=r"0\.npz.*FEDTAILOR_MAX_TOKENS"):
        read(tmp_path, "pfllib", path=str(tmp_path))


def test_a_column_of_many_words(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(60_000)]
    pd.DataFrame({"label": [0, 1] * 30_000, "word": words}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(
        FedTailorError, match=r"t\.csv: 60,000 rows.*60,000 different texts in 'word'.*FEDTAILOR_MAX_GB=15"
    ):
        read(tmp_path, "table", path=str(tmp_path / "t.csv"), features=["word"])


def test_few_bytes_that_become_a_wide_table(tmp_path: Path, small_limit: None) -> None:
    header = ",".join(["label", *map(str, range(2000))])
    (tmp_path / "t.csv").write_text(header + "\n" + "1\n" * 2000)
    with pytest.raises(FedTailorError, match=r"t\.csv: .*FEDTAILOR_MAX_GB"):
        read(tmp_path, "table", path=str(tmp_path / "t.csv"))


def test_a_gzipped_table(tmp_path: Path, small_limit: None) -> None:
    frame = pd.DataFrame({"label": [0, 1], "a": [1.0, 2.0]})
    frame.to_csv(tmp_path / "t.csv.gz", index=False)
    assert len(read(tmp_path, "table", path=str(tmp_path / "t.csv.gz"))) == 2
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"label,a\n" + b"1,2\n" * MB + b"1,3\n" * MB))
    with pytest.raises(FedTailorError, match=r"t\.csv\.gz: .*FEDTAILOR_MAX_GB"):
        read(tmp_path, "table", path=str(tmp_path / "t.csv.gz"))


def test_a_parquet_file_that_says_one_thing_many_times(tmp_path: Path, small_limit: None) -> None:
    pytest.importorskip("pyarrow")
    pd.DataFrame({"label": np.zeros(MB, np.int64)}).to_parquet(tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 10_000
    with pytest.raises(FedTailorError, match=r"t\.parquet: 8\.0 GB.*FEDTAILOR_MAX_GB"):
        read(tmp_path, "table", path=str(tmp_path / "t.parquet"))


def test_a_long_text_that_many_rows_share_is_kept_once(tmp_path: Path, small_limit: None) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int32)), pa.array(["z" * 10_000]))
    table = pa.table({"label": [0, 1] * 5000, "text": text})
    parquet.write_table(table, tmp_path / "t.parquet", store_schema=False)
    assert parquet.read_table(tmp_path / "t.parquet").nbytes > 100 * MB
    with pytest.raises(FedTailorError, match=r"t\.parquet: column 'text' holds long texts \('zzz.*data\.ignore=text"):
        read(tmp_path, "table", path=str(tmp_path / "t.parquet"), features=["text"])


def test_a_pickle_of_nothing_but_empty_things(small_limit: None) -> None:
    from fedtailor.data.pickles import read_pickle

    with pytest.raises(FedTailorError, match=r"f\.npz: .*FEDTAILOR_MAX_GB"):
        read_pickle(b"\x80\x02" + b"}" * 20_000 + b".", "f.npz")


def test_flags_must_be_flags(tmp_path: Path) -> None:
    x, y = np.zeros((2, 2), np.float32), np.array([0, 1])
    for test in (np.array(["a", "b"]), np.array([0, 7]), np.array([0.0, np.nan])):
        np.savez(tmp_path / "a.npz", x=x, y=y, test=test)
        with pytest.raises(FedTailorError, match=r"a\.npz: test must be true or false"):
            read(tmp_path, "arrays", path=str(tmp_path / "a.npz"))


def test_any_byte_order_is_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, x=np.arange(8, dtype=">i4").reshape(4, 2), y=np.array([0, 1, 0, 1], ">u2"))
    (tmp_path / "a.npz").write_bytes(stream.getvalue())
    pool = read(tmp_path, "arrays", path=str(tmp_path / "a.npz"))
    federation = Federation.from_pool(pool, "iid", 2)
    assert federation.vocabulary == 8
