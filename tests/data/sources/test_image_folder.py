"""Folders of images and the file of decoded pixels behind them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedtailor.data.sources  # noqa: F401
from fedtailor.data import images
from fedtailor.data.pool import Pool, sources
from fedtailor.errors import FedTailorError

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(root: Path, source: str = "folder", **options: Any) -> Pool:
    return sources.build(source, options).read(root)


def draw(file: Path, size: tuple[int, int] = (5, 4), grey: bool = False) -> np.ndarray:
    """Write a random picture of (width, height) and return it with channels first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    grid = rng.integers(0, 256, (size[1], size[0]) if grey else (size[1], size[0], 3), np.uint8)
    Image.fromarray(grid).save(file)
    return grid[None] if grey else grid.transpose(2, 0, 1)


def test_class_folders(tmp_path: Path) -> None:
    top = tmp_path / "pets"
    expected = [draw(top / name) for name in ("cat/a.png", "cat/b.BMP", "dog/c.png")]
    (top / "dog" / "notes.txt").write_text("not an image")
    (top / "dog" / "._c.png").write_bytes(b"left by a file manager")
    (top / "empty").mkdir()
    pool = read(tmp_path, path="pets")
    assert np.array_equal(pool.x, expected)
    assert isinstance(pool.x, np.memmap)
    assert pool.y.tolist() == [0, 0, 1]
    assert (pool.labels, pool.classes, pool.test, pool.owner) == (("cat", "dog"), 2, None, None)
    assert pool.mean == (0.5, 0.5, 0.5)


def test_grey_and_size(tmp_path: Path) -> None:
    grid = draw(tmp_path / "a" / "0.png", (8, 8), grey=True)
    draw(tmp_path / "b" / "1.png", (6, 3))
    pool = read(tmp_path, path=str(tmp_path), channels=1, size=8)
    assert pool.x.shape == (2, 1, 8, 8)
    assert np.array_equal(pool.x[0], grid)
    assert pool.mean == (0.5,)
    reference = np.asarray(Image.open(tmp_path / "b" / "1.png").convert("L").resize((8, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(pool.x[1, 0], reference)


@pytest.mark.parametrize(
    ("parts", "held_out"),
    [
        (("train", "test"), {"test"}),
        (("train", "val"), {"val"}),
        (("Train", "val", "test"), {"test"}),
        (("train", "other"), None),
    ],
)
def test_official_parts(tmp_path: Path, parts: tuple[str, ...], held_out: set[str] | None) -> None:
    for part in parts:
        for label in ("x", "y"):
            draw(tmp_path / "set" / part / label / f"{part}.png")
    pool = read(tmp_path, path="set")
    if held_out is None:  # then these are classes
        assert pool.labels == ("other", "train")
        assert pool.test is None
    else:
        assert pool.labels == ("x", "y")
        assert pool.test is not None
        expected = [part in held_out for part in sorted(parts) for _ in range(2)]
        assert pool.test.tolist() == expected


def test_client_folders(tmp_path: Path) -> None:
    expected = [
        draw(tmp_path / "set" / name)
        for name in ("test/ann/x/0.png", "train/ann/x/0.png", "train/ann/y/1.png", "train/bob/y/2.png")
    ]
    pool = read(tmp_path, path="set", client_folders=True)
    assert np.array_equal(pool.x, expected)
    assert pool.owners == ("ann", "bob")
    assert pool.owner is not None
    assert pool.owner.tolist() == [0, 0, 0, 1]
    assert pool.y.tolist() == [0, 0, 1, 1]
    assert pool.test is not None
    assert pool.test.tolist() == [True, False, False, False]


def test_tiny_imagenet_and_flowers(tmp_path: Path) -> None:
    for label in ("n01", "n02"):
        draw(tmp_path / "tiny-imagenet-200" / "train" / label / "images" / f"{label}_0.JPEG", (64, 64))
        (tmp_path / "tiny-imagenet-200" / "train" / label / f"{label}_boxes.txt").write_text("0")
        draw(tmp_path / "flowers102-64" / label / "image_1.jpg", (64, 64))
    draw(tmp_path / "tiny-imagenet-200" / "val" / "images" / "val_0.JPEG", (64, 64))
    for source in ("tiny-imagenet", "flowers102"):
        pool = read(tmp_path, source)
        assert pool.x.shape == (2, 3, 64, 64)
        assert pool.labels == ("n01", "n02")
        assert pool.test is None
    with pytest.raises(FedTailorError, match=r"(?s)tiny-imagenet-200.*data get tiny-imagenet"):
        read(tmp_path / "nowhere", "tiny-imagenet")
    with pytest.raises(FedTailorError, match=r"(?s)flowers102-64.*CLASS being"):
        read(tmp_path / "nowhere", "flowers102")


def test_decoded_once_and_again_when_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path / "set" / "a" / "0.png")
    draw(tmp_path / "set" / "b" / "1.png")
    opened: list[Path] = []
    original = images._open
    monkeypatch.setattr(images, "_open", lambda file, *rest: (opened.append(file), original(file, *rest))[1])

    def decodes(**options: Any) -> bool:
        opened.clear()
        read(tmp_path, path="set", **options)
        return bool(opened)

    assert decodes()
    assert not decodes()
    assert decodes(channels=1)
    assert decodes(size=3)
    os.utime(tmp_path / "set" / "a" / "0.png", ns=(1, 1))
    assert decodes()
    draw(tmp_path / "set" / "a" / "2.png")
    assert decodes()
    assert not decodes()
    kept = list((tmp_path / ".decoded").iterdir())
    assert len(kept) == 5
    assert all(file.suffix == ".npy" for file in kept)


def test_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    expected = draw(tmp_path / "set" / "a" / "0.png")
    root = tmp_path / "file"
    root.write_text("a file is no folder, not even for an administrator")
    pool = read(root, path=str(tmp_path / "set"))
    assert np.array_equal(pool.x[0], expected)
    assert len(list((tmp_path / "cache" / "fedtailor" / "decoded").iterdir())) == 1


def test_a_damaged_cache_file_is_named(tmp_path: Path) -> None:
    draw(tmp_path / "set" / "a" / "0.png")
    read(tmp_path, path="set")
    kept = next((tmp_path / ".decoded").iterdir())
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(FedTailorError, match=f"{kept.name}.*Delete that file"):
        read(tmp_path, path="set")


@pytest.mark.parametrize("how", ["truncated", "text", "empty"])
@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "webp"])
def test_bad_images(tmp_path: Path, how: str, ending: str) -> None:
    draw(tmp_path / "set" / "a" / "0.png", (40, 40))
    bad = tmp_path / "set" / "b" / f"1.{ending}"
    draw(bad, (40, 40))
    whole = bad.read_bytes()
    bad.write_bytes({"truncated": whole[: len(whole) // 2], "text": b"hello", "empty": b""}[how])
    with pytest.raises(FedTailorError, match=f"1.{ending} cannot be read as an image"):
        read(tmp_path, path="set")
    assert list((tmp_path / ".decoded").iterdir()) == []


def test_sizes_that_differ(tmp_path: Path) -> None:
    draw(tmp_path / "set" / "a" / "0.png", (5, 4))
    draw(tmp_path / "set" / "a" / "1.png", (6, 4))
    with pytest.raises(FedTailorError, match=r"1\.png is 6×4 pixels but .*0\.png is 5×4.*data\.size"):
        read(tmp_path, path="set")
    assert read(tmp_path, path="set", size=5).x.shape == (2, 3, 5, 5)


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    Image.fromarray(np.full((3, 3), 40_000, np.uint16)).save(tmp_path / "set" / "a" / "0.png")
    with pytest.raises(FedTailorError, match=r"0\.png has more than 8 bits"):
        read(tmp_path, path="set")


def test_folders_that_are_not(tmp_path: Path) -> None:
    with pytest.raises(FedTailorError, match=r"set data\.path"):
        read(tmp_path)
    with pytest.raises(FedTailorError, match="'nowhere' does not exist"):
        read(tmp_path, path="nowhere")
    draw(tmp_path / "flat" / "0.png")
    with pytest.raises(FedTailorError, match="flat holds no images laid out as CLASS/image"):
        read(tmp_path, path="flat")
    with pytest.raises(FedTailorError, match=r"0.png is not a folder"):
        read(tmp_path, path="flat/0.png")


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
def test_only_image_formats_are_opened(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", never)
    (tmp_path / "x" / "cat").mkdir(parents=True)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "x" / "cat" / name).write_bytes(eps)
    with pytest.raises(FedTailorError, match=rf"{name} cannot be read as an image"):
        read(tmp_path, path="x")


def test_an_image_of_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path / "x" / "cat" / "a.png", (15, 10))
    for most in (100, 50):  # Pillow warns of the one and raises for the other
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(
            FedTailorError, match=rf"a\.png has more pixels than the limit of {most}\. Make the image smaller"
        ):
            read(tmp_path, path="x")


def test_images_that_do_not_fit_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path / "x" / "cat" / "a.png")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(FedTailorError, match=r"Decoded, the 1 images take .*Make room"):
        read(tmp_path, path="x")
