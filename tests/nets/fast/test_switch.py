"""`fast = off` is plain PyTorch, and the same run up to rounding."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch

from fedtailor import Federation, Simulation
from fedtailor.learning import kernels
from fedtailor.nets import Task, build_net
from fedtailor.nets.fast import Conv2d, WideLinear, wide_linear
from fedtailor.nets.fast.winograd import _Convolution


@pytest.fixture(scope="module")
def images() -> Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 48)
    x = (rng.integers(0, 80, (48, 1, 28, 28)) + 40 * y[:, None, None, None]).astype(np.uint8)
    return Federation.from_clients([(x[:24], y[:24]), (x[24:], y[24:])])


def test_a_plain_net_has_no_fast_layer_and_the_same_weights():
    task = Task((1, 28, 28), 10)
    fast, plain = build_net("cnn", task, seed=4), build_net("cnn", task, seed=4, fast=False)
    kinds = (Conv2d, WideLinear)
    assert sum(isinstance(m, kinds) for m in fast.modules()) == 2
    assert not any(isinstance(m, kinds) for m in plain.modules())
    assert torch.equal(fast.all.vector, plain.all.vector)
    assert list(fast.plain().state_dict()) == list(plain.plain().state_dict())
    x = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fast(x), plain(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "fedafk"])
def test_off_is_the_same_run_up_to_rounding_and_takes_no_fast_path(images, method):
    def run(fast: str) -> Simulation:
        return Simulation(images, method, "cnn", rounds=2, lr=0.02, batch=8, engine="inline", fast=fast).run()

    auto = run("auto")
    refuse = {"side_effect": AssertionError("taken")}
    with (
        patch.object(kernels, "linear_step", **refuse),
        patch.object(wide_linear._Product, "apply", **refuse),
        patch.object(_Convolution, "apply", **refuse),
    ):
        off = run("off")
        with pytest.raises(AssertionError, match="taken"):
            run("auto")
    for name, tensor in auto.server.state.items():
        torch.testing.assert_close(tensor, off.server.state[name], rtol=0, atol=1e-5)
    assert not torch.equal(auto.server.state[name], off.server.state[name])
