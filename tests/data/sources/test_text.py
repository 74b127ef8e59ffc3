"""Texts become token ids."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtailor.data.sources  # noqa: F401
from fedtailor.data.description import Description
from fedtailor.data.encode import described, encoded_samples
from fedtailor.data.pool import Pool, sources
from fedtailor.data.sources.text import text_pool, tokens
from fedtailor.errors import FedTailorError

TRAIN = '"1","A cat","sat, on a mat."\n"4","Dogs","say ""woof""; a dog\'s life!"\n"2","","A\nline <br />break"\n'
TEST = '"3","The cat","and a zebra"\n'


def write(root: Path, train: str = TRAIN, test: str = TEST) -> None:
    (root / "ag_news_csv").mkdir(exist_ok=True)
    (root / "ag_news_csv" / "train.csv").write_text(train, encoding="utf-8")
    (root / "ag_news_csv" / "test.csv").write_text(test, encoding="utf-8")


def read(root: Path, source: str = "agnews", **options: Any) -> Pool:
    return sources.build(source, options).read(root)


def test_tokens() -> None:
    assert tokens('Dogs say "Woof"; a dog\'s (good) life!<br />Is it? 3.5') == (
        "dogs say woof a dog ' s ( good ) life ! is it ? 3 . 5".split()  # noqa: SIM905
    )
    assert tokens(" \t\n") == []


def fitted(pool: Pool) -> tuple[np.ndarray, Description]:
    """What a net reads if the official test part is the test part."""
    rows = np.arange(len(pool)) if pool.test is None else np.flatnonzero(~pool.test)
    description = described(pool, rows)
    return encoded_samples(pool, description), description


@pytest.mark.parametrize(("limit", "kept"), [(100, ("b", "a", "c", "d")), (4, ("b", "a"))])
def test_the_most_frequent_tokens_are_kept(limit: int, kept: tuple[str, ...]) -> None:
    pool = text_pool(["b a b", "c a b", "d", "e e e"], np.array([0, 1, 0, 1]), ("x", "y"), None, 3, limit)
    description = described(pool, np.arange(3))
    assert (description.tokens, description.vocabulary) == (kept, len(kept) + 2)
    assert encoded_samples(pool, description)[3].tolist() == [1, 1, 1]  # "e" is in no training row


def test_a_token_that_no_file_can_hold_is_unknown() -> None:
    pool = text_pool([f"a {'z' * 201} \x07"], np.array([0]), ("x",), None, 3, 100)
    assert pool.tokens == ("a",)
    assert pool.x.tolist() == [[2, 1, 1]]


def test_agnews(tmp_path: Path) -> None:
    write(tmp_path)
    pool = read(tmp_path, length=12)
    words = [
        tokens(text)
        for text in ("A cat sat, on a mat.", "Dogs say woof a dog's life!", "A line break", "the cat and a zebra")
    ]
    counts = Counter(word for document in words[:3] for word in document)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    expected = np.zeros((4, 12), int)
    for row, document in enumerate(words):
        for column, word in enumerate(document[:12]):
            expected[row, column] = ranked.index(word) + 2 if word in ranked else 1
    x, description = fitted(pool)
    assert np.array_equal(x, expected)
    assert x.dtype == np.int32
    assert pool.y.tolist() == [0, 3, 1, 2]
    assert pool.test is not None
    assert pool.test.tolist() == [False, False, False, True]
    assert (pool.classes, description.vocabulary) == (4, len(ranked) + 2)
    assert x.max() < description.vocabulary


def test_length_and_cap(tmp_path: Path) -> None:
    write(tmp_path)
    whole, cut = read(tmp_path), read(tmp_path, length=3)
    words = [[pool.tokens[i - 2] for i in pool.x[:, :3].ravel()] for pool in (cut, whole)]
    assert words[0] == words[1]
    assert cut.x.shape == (4, 3)
    (x, _), (capped, description) = fitted(whole), fitted(read(tmp_path, vocabulary=4))
    assert description.vocabulary == 4
    assert np.array_equal(capped, np.where(x > 3, 1, x))
    assert read(tmp_path).x.shape == (4, 200)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ("", "no rows"),
        ('"1","a","b"\n"5","a","b"\n', "row 2 has class '5'"),
        ('"0","a","b"\n', "class '0'"),
        ('"x","a","b"\n', "class 'x'"),
        ('"1","a","b"\n"2","a"\n', "line 2: 2 columns"),
        ('"1","a","b"\n"2","cut off in the mid', "cannot be read as CSV"),
        ("1\n", "line 1: 1 columns"),
        ("\n", "line 1: 0 columns"),
        ('"1","a","' + "b" * 200_000 + '"', "cannot be read as CSV"),
    ],
)
def test_bad_files(tmp_path: Path, train: str, says: str) -> None:
    write(tmp_path, train)
    with pytest.raises(FedTailorError, match=f"train.csv.*{says}"):
        read(tmp_path)


def test_not_text_and_missing(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "ag_news_csv" / "test.csv").write_bytes(b'"1","\xff\xfe\x00","b"\n')
    with pytest.raises(FedTailorError, match=r"test\.csv cannot be read as CSV"):
        read(tmp_path)
    (tmp_path / "ag_news_csv" / "test.csv").unlink()
    with pytest.raises(FedTailorError, match=r"(?s)test\.csv.*fedtailor data get agnews"):
        read(tmp_path)


def test_own_file_with_a_header(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("id,said,mood\n1,hello you,glad\n2,go away,angry\n3,hello,glad\n")
    pool = read(tmp_path, "text-csv", path="own.csv", columns=["mood", "said"], length=2)
    assert pool.labels == ("angry", "glad")
    assert pool.y.tolist() == [1, 0, 1]
    assert fitted(pool)[0].tolist() == [[2, 5], [4, 3], [2, 0]]
    assert pool.test is None
    with pytest.raises(FedTailorError, match=r"own\.csv has no column 'text'.*id, said, mood"):
        read(tmp_path, "text-csv", path="own.csv", columns=["mood", "text"])
    with pytest.raises(FedTailorError, match="at least one text column"):
        read(tmp_path, "text-csv", path="own.csv", columns=["mood"])


def test_own_folder_without_a_header(tmp_path: Path) -> None:
    write(tmp_path, "10,a b\n9,c\n", "2,a\n")
    pool = read(tmp_path, "text-csv", path="ag_news_csv", length=2)
    assert pool.labels == ("2", "9", "10")
    assert pool.y.tolist() == [2, 1, 0]
    assert pool.test is not None
    assert pool.test.tolist() == [False, False, True]
    (tmp_path / "ag_news_csv" / "test.csv").unlink()
    with pytest.raises(FedTailorError, match=r"test\.csv cannot be read"):
        read(tmp_path, "text-csv", path="ag_news_csv")


REVIEWS = "author,title,body,stars\nann,Good,I like it,5\nbob,Bad,no,1\nann,Fine,quite good,5\ncy,Odd,what is it,1\n"


def test_columns_by_name_and_a_column_of_clients(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(REVIEWS)
    named = {"path": "own.csv", "label": "stars", "text": "title,body"}
    pool = read(tmp_path, "text-csv", **named, client="author", length=4)
    assert pool.labels == ("1", "5")
    assert pool.y.tolist() == [1, 0, 1, 0]
    assert pool.owners == ("ann", "bob", "cy")
    assert pool.owner is not None
    assert pool.owner.tolist() == [0, 1, 0, 2]
    short = read(tmp_path, "text-csv", path="own.csv", columns=["stars", "title", "body"], length=4)
    assert np.array_equal(pool.x, short.x)
    assert short.owner is None
    assert read(tmp_path, "text-csv", **{**named, "text": "body"}, length=4).x.tolist() != short.x.tolist()
    assert sources.build("text-csv", {**named, "client": "author"}).fitting_partition == "natural"
    assert sources.build("text-csv", named).fitting_partition == "dirichlet"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"label": "stars"}, "Name the columns together"),
        ({"text": "body"}, "Name the columns together"),
        ({"client": "author"}, "Name the columns together"),
        ({"label": "stars", "text": "body", "columns": "stars,body"}, "give the one or the other"),
        (
            {"label": "star", "text": "body"},
            r"own\.csv has no column 'star'. Did you mean 'stars'\? Its first line names: author",
        ),
        ({"label": "stars", "text": "body", "client": "author"}, r"own\.csv, line 6: the column 'author' is empty"),
    ],
)
def test_columns_that_are_not_there_are_told(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    (tmp_path / "own.csv").write_text(f"{REVIEWS},Who,nobody,1\n")
    with pytest.raises(FedTailorError, match=says):
        read(tmp_path, "text-csv", path="own.csv", **options)
