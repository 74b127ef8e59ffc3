"""Proxy data from another data set: resized, its foreign labels left out, misfits refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedtailor import Config, Federation, FedTailorError
from fedtailor.data.pool import Pool
from fedtailor.data.proxy import set_aside, with_proxy
from fedtailor.data.sources.table import Table, table_pool


def images(n: int, side: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, channels, side, side), dtype=np.uint8)


@pytest.fixture
def clients() -> Federation:
    return Federation.from_clients([(images(12, 8), np.arange(12) % 4)])


def test_images_are_resized_and_labels_the_clients_do_not_have_left_out(clients):
    pool = Pool(images(2100, 16, seed=1), np.arange(2100) % 6, classes=6)  # more than are resized at a time
    server = with_proxy(clients, pool).server
    kept = np.flatnonzero(pool.y < 4)
    assert server.y.tolist() == pool.y[kept].tolist()
    assert tuple(server.x.shape) == (1400, 3, 8, 8)
    assert server.x.dtype == torch.uint8
    for position in (0, 1399):
        channels = [
            Image.fromarray(c).resize((8, 8), Image.Resampling.BILINEAR) for c in pool.x[kept[position]]
        ]  # Pillow's bilinear filter smooths too
        expected = np.stack([np.asarray(c) for c in channels])
        assert np.abs(server.x[position].numpy().astype(int) - expected).max() <= 1
    assert with_proxy(clients, pool).clients is clients.clients


def test_samples_that_fit_are_taken_as_they_are(clients):
    pool = Pool(images(9, 8, seed=1), np.arange(9) % 3, classes=3)
    assert np.array_equal(with_proxy(clients, pool).server.x.numpy(), pool.x)


def test_misfits_are_refused(clients):
    with pytest.raises(FedTailorError, match="as many channels"):
        with_proxy(clients, Pool(images(6, 16, channels=1), np.arange(6) % 3, classes=3))
    with pytest.raises(FedTailorError, match="Samples must be alike"):
        with_proxy(clients, Pool(images(6, 8).astype(np.float32), np.arange(6) % 3, classes=3))
    with pytest.raises(FedTailorError, match="as many channels"):
        with_proxy(clients, Pool(np.zeros((6, 5), np.float32), np.arange(6) % 3, classes=3))


def test_a_config_names_the_proxy_data(tmp_path):
    np.savez(tmp_path / "mine.npz", x=images(30, 12, channels=1), y=np.arange(30) % 3)
    words = ["data=arrays", f"data.path={tmp_path / 'mine.npz'}", "clients=2", "partition=iid", "data.proxy=digits"]
    config = Config.load(words=words)
    server = config.federation().server
    assert tuple(server.x.shape[1:]) == (1, 12, 12)
    assert set(server.y.tolist()) == {0, 1, 2}
    assert Config.from_values(config.values()) == config
    with pytest.raises(FedTailorError, match="Did you mean 'digits'"):
        Config.load(words=[*words[:-1], "data.proxy=digts"]).federation()


def test_rows_of_a_table_set_aside_are_encoded_like_the_clients():
    frame = pd.DataFrame(
        {"a": np.arange(80.0) % 7, "sex": ["m", "f"] * 40, "site": ["p", "q"] * 40, "y": [0, 1, 1, 0] * 20}
    )
    pool, aside = set_aside(table_pool(frame, Table(label="y", client="site")), 0.25, np.random.default_rng(0))
    federation = with_proxy(Federation.from_pool(pool, "natural", 0), aside)
    a = federation.description.columns[0]
    assert torch.allclose(federation.server.x[:, 0].double() * a.std + a.mean, torch.from_numpy(aside.x[:, 0]))
    assert torch.equal(federation.server.x[:, 1].double(), torch.from_numpy(aside.x[:, 1] == 0).double())  # f
