"""Plain values and tensors in one anonymous file in memory; only its descriptor passes between processes.

The sender writes each tensor once, for any number of receivers. A receiver reads into memory of its own.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

LENGTH = 8  # bytes of the length of the JSON text


class TensorFile:
    """A received file: `plain`, and the tensors by number, each read on access."""

    def __init__(self, file: int) -> None:
        self.file = file
        size = int.from_bytes(os.pread(file, LENGTH, 0), "little")
        self.plain, self.layout = json.loads(os.pread(file, size, LENGTH))
        self.start = LENGTH + size

    def __getitem__(self, number: int) -> Tensor:
        dtype, shape, offset = self.layout[number]
        return read_tensor(self.file, shape, getattr(torch, dtype), self.start + offset)

    def close(self) -> None:
        os.close(self.file)


def pack(plain: Any, tensors: Iterable[Tensor]) -> int:
    """Write a file and return its descriptor, which the caller sends and closes."""
    tensors = [t.detach().cpu().contiguous() for t in tensors]
    layout, end = [], 0
    for tensor in tensors:
        layout.append((str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end))
        end += tensor.nbytes
    text = json.dumps([plain, layout]).encode()
    file = _anonymous_file()
    start = _whole(os.pwritev, file, memoryview(len(text).to_bytes(LENGTH, "little") + text), 0)
    for tensor, (_, _, offset) in zip(tensors, layout, strict=True):
        write_tensor(file, tensor, start + offset)
    return file


def send(line: socket.socket, file: int) -> None:
    socket.send_fds(line, [b"p"], [file])


def receive(line: socket.socket) -> TensorFile | None:
    """Return the next file, or None when the other side is gone."""
    try:
        _, files, _, _ = socket.recv_fds(line, 1, 1)
    except ConnectionResetError:
        return None
    return TensorFile(files[0]) if files else None


def write_tensor(file: int, tensor: Tensor, offset: int) -> None:
    """Write the values of a contiguous CPU tensor."""
    _whole(os.pwritev, file, _bytes(tensor), offset)


def read_tensor(file: int, shape: Sequence[int], dtype: torch.dtype, offset: int) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    _whole(os.preadv, file, _bytes(tensor), offset)
    return tensor


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedtailor")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


def _whole(move: Any, file: int, memory: memoryview, offset: int) -> int:
    """Read or write all of `memory`: one system call moves at most 2 GiB."""
    done = 0
    while done < len(memory):
        moved = move(file, [memory[done:]], offset + done)
        if moved == 0:
            raise EOFError("a tensor file was cut short")
        done += moved
    return done
