"""Private states of many clients: recently used ones in memory, the others in a file on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping
from typing import IO

import torch

from fedtailor.engines.tensor_file import read_tensor, write_tensor
from fedtailor.learning import State

LIMIT = 1024**3  # bytes of states that one worker keeps in memory

Place = tuple[str, tuple[int, ...], torch.dtype, torch.device, int]  # name, shape, dtype, device, offset in the file


class States(MutableMapping[int, State]):
    """A mapping from client to state that holds at most `limit` bytes in memory, for any number of clients.

    The file has no name, so nothing is left behind however the process ends. A state of unchanged size overwrites its old place.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.warm: dict[int, State] = {}  # least recently used first
        self.cold: dict[int, list[Place]] = {}
        self.held = 0  # bytes in `warm`
        self._sizes: dict[int, int] = {}
        self._room: dict[int, tuple[int, int]] = {}  # client -> its stretch of the file
        self._end = 0
        self._file: IO[bytes] | None = None

    def __getitem__(self, client: int) -> State:
        state = self.warm.pop(client, None)
        if state is None:
            state = self._fetched(self.cold[client])
            self[client] = state
        else:
            self.warm[client] = state
        return state

    def __setitem__(self, client: int, state: State) -> None:
        if client in self:
            del self[client]
        self.warm[client] = state
        self._sizes[client] = sum(t.nbytes for t in state.values())
        self.held += self._sizes[client]
        while self.held > self.limit and len(self.warm) > 1:
            self._put_away(next(iter(self.warm)))

    def __delitem__(self, client: int) -> None:
        if client in self.warm:
            del self.warm[client]
            self.held -= self._sizes.pop(client)
        else:
            del self.cold[client]

    def __contains__(self, client: object) -> bool:
        return client in self.warm or client in self.cold

    def __iter__(self) -> Iterator[int]:
        yield from sorted({*self.warm, *self.cold})

    def __len__(self) -> int:
        return len(self.warm) + len(self.cold)

    def _put_away(self, client: int) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="fedtailor-states-")  # noqa: SIM115  (lives as long as this mapping)
        state = self.warm.pop(client)
        size = self._sizes.pop(client)
        self.held -= size
        offset, room = self._room.get(client, (0, -1))
        if room < size:
            offset, self._end = self._end, self._end + size
            self._room[client] = (offset, size)
        places: list[Place] = []
        for name, tensor in state.items():
            places.append((name, tuple(tensor.shape), tensor.dtype, tensor.device, offset))
            write_tensor(self._file.fileno(), tensor.detach().cpu().contiguous(), offset)
            offset += tensor.nbytes
        self.cold[client] = places

    def _fetched(self, places: list[Place]) -> State:
        assert self._file is not None
        file = self._file.fileno()
        return {
            name: read_tensor(file, shape, dtype, offset).to(device) for name, shape, dtype, device, offset in places
        }
