"""What is put into a tensor file comes out of it, and it is the receiver's own."""

from __future__ import annotations

import os
import socket

import pytest
import torch

from fedtailor.engines import tensor_file


def test_values_and_tensors_come_out_as_they_went_in():
    tensors = [
        torch.randn(3, 4),
        torch.tensor(2.5, dtype=torch.float64),
        torch.empty(0),
        torch.arange(6).view(2, 3).t(),  # not contiguous
        torch.tensor([True, False]),
    ]
    here, there = socket.socketpair()
    file = tensor_file.pack({"loss": 0.1 + 0.2, "nan": float("nan"), "name": "é"}, tensors)
    tensor_file.send(here, file)
    os.close(file)
    received = tensor_file.receive(there)
    assert received.plain["loss"] == 0.1 + 0.2
    assert received.plain["name"] == "é"
    for number, tensor in enumerate(tensors):
        assert torch.equal(received[number], tensor)
        assert received[number].dtype == tensor.dtype
    received[0].zero_()  # what was read is a copy
    assert torch.equal(received[0], tensors[0])
    received.close()


def test_a_line_that_was_closed_brings_nothing():
    here, there = socket.socketpair()
    here.close()
    assert tensor_file.receive(there) is None


def test_one_file_goes_to_many_and_a_short_one_is_noticed():
    file = tensor_file.pack([], [torch.arange(5)])
    for _ in range(2):
        here, there = socket.socketpair()
        tensor_file.send(here, file)
        received = tensor_file.receive(there)
        assert received[0].tolist() == [0, 1, 2, 3, 4]
        received.close()
    os.truncate(file, os.fstat(file).st_size - 8)
    with pytest.raises(EOFError, match="cut short"):
        tensor_file.TensorFile(file)[0]
    os.close(file)
