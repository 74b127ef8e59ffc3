"""Image files decoded once into a memory-mapped file of uint8 pixels, so that folders larger than memory can be trained on."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedtailor.data.npy import map_npy
from fedtailor.errors import FedTailorError

# Formats that Pillow may detect, whatever a file's name says: some others start programs, such as Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def decoded(files: Sequence[Path], root: Path, size: int, channels: int) -> np.ndarray:
    """Return the files' pixels, (n, channels, height, width), decoded now or cached below `root`/.decoded."""
    name = f"{_fingerprint(files, size, channels)}.npy"
    folders = [root / ".decoded", _cache() / "decoded"]
    kept = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if kept is None:
        kept = _writable(folders) / name
        _decode_into(kept, files, size, channels)
    try:
        return map_npy(kept)
    except FedTailorError as error:
        raise FedTailorError(f"The decoded images are damaged: {error} Delete that file and try again.") from None


def read_image(file: Path, size: int, channels: int) -> np.ndarray:
    """Decode one image file to uint8 (channels, height, width); `size` 0 keeps its size."""
    return _open(file, size, channels)


def pixels(image: Image.Image, name: str, size: int, channels: int) -> np.ndarray:
    """Convert one image to uint8 (channels, height, width); `size` 0 keeps its size, `name` is used in errors."""
    if image.mode.startswith(("I", "F")):
        raise FedTailorError(
            f"{name} has more than 8 bits a pixel (mode {image.mode}), which would be clipped. Convert it to 8 bits first."
        )
    try:
        image = image.convert("L" if channels == 1 else "RGB")
    except _BROKEN as error:
        raise _unreadable(name, error) from None
    if size and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    grid = np.asarray(image, np.uint8)
    return grid[None] if channels == 1 else grid.transpose(2, 0, 1)


# What Pillow raises for files that are cut off, are no images, or claim an absurd size.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
)
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def _unreadable(name: str, error: Exception) -> FedTailorError:
    return FedTailorError(f"{name} cannot be read as an image: it is cut off, damaged or something else ({error}).")


def _open(file: Path, size: int, channels: int) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                return pixels(image, str(file), size, channels)
    except _BOMBS:
        raise FedTailorError(
            f"{file} has more pixels than the limit of {Image.MAX_IMAGE_PIXELS:,}. Make the image smaller first."
        ) from None
    except _BROKEN as error:
        raise _unreadable(str(file), error) from None


def _decode_into(target: Path, files: Sequence[Path], size: int, channels: int) -> None:
    """Write all pixels to a temporary file and rename it when complete, so that no reader sees half a file."""
    first = _open(files[0], size, channels)
    needed, free = len(files) * first.nbytes, shutil.disk_usage(target.parent).free
    if needed > free:
        raise FedTailorError(
            f"Decoded, the {len(files):,} images take {needed / 1e9:,.1f} GB, but {target.parent} has {free / 1e9:,.1f} GB left. "
            "Make room, set data.root to another folder, or data.size to a smaller size."
        )
    handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), *first.shape)}
            np.lib.format.write_array_header_1_0(stream, header)
            for file in files:
                image = _open(file, size, channels)
                if image.shape != first.shape:
                    raise FedTailorError(
                        f"{file} is {_sides(image)} pixels but {files[0]} is {_sides(first)}. "
                        "Set data.size to resize all images to one size."
                    )
                stream.write(image.tobytes())
        os.chmod(temporary, files[0].stat().st_mode & 0o666)  # as readable as the images are
        os.replace(temporary, target)
    except OSError as error:
        raise FedTailorError(f"The decoded images could not be written to {target.parent} ({error}).") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def _sides(image: np.ndarray) -> str:
    return f"{image.shape[2]}×{image.shape[1]}"


def _fingerprint(files: Sequence[Path], size: int, channels: int) -> str:
    digest = hashlib.blake2b(f"{size} {channels}\n".encode(), digest_size=16)
    for file in files:
        status = file.stat()
        digest.update(f"{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedtailor"


def _writable(folders: Sequence[Path]) -> Path:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return folder
        except OSError:
            continue
    places = " or ".join(map(str, folders))
    raise FedTailorError(
        f"Decoded images need a folder that can be written: neither {places} can. Set data.root to one that can."
    )
