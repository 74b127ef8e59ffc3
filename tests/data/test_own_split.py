"""A user's own division into training and test samples, by flag, by time and by group."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fedtailor import Config, Federation, FedTailorError, Simulation
from fedtailor.data.partition import hold_out
from fedtailor.data.pool import Pool

RNG = np.random.default_rng(0)


def table(**columns: object) -> pd.DataFrame:
    n = 60
    frame = {
        "site": ["a", "b", "c"] * (n // 3),
        "v": RNG.normal(size=n),
        "mark": np.arange(n) / 7,
        "y": [0, 1] * (n // 2),
    }
    return pd.DataFrame(frame | columns)


def marks(split: object) -> list[float]:
    return sorted((split.x[:, 1] * 7).round().tolist())  # type: ignore[attr-defined]


def test_a_client_without_test_rows_trains_on_all_its_rows_and_is_not_scored():
    part = ["train" if site == "c" or i % 6 < 3 else "test" for i, site in enumerate(table()["site"])]
    federation = Federation.from_table(table(part=part), client="site", label="y", split="part", standardize=False)
    assert [(len(c.train), len(c.test)) for c in federation.clients] == [(10, 10), (10, 10), (20, 0)]
    held_out = [i for i, where in enumerate(part) if where == "test"]
    assert sorted(marks(federation.clients[0].test) + marks(federation.clients[1].test)) == held_out
    run = Simulation(federation, "fedrep", "mlp", rounds=2).run()
    assert run.scores[2].total == 0
    assert np.isfinite(run.metrics[-1]["accuracy_mean"])


def test_a_client_with_test_rows_only_is_refused():
    part = ["test" if site == "b" else "train" if i % 2 else "test" for i, site in enumerate(table()["site"])]
    with pytest.raises(FedTailorError, match=r"1 of 3 clients have no training sample by the data's own split.*'b'"):
        Federation.from_table(table(part=part), client="site", label="y", split="part")


def test_the_split_holds_for_every_partition(tmp_path):
    x, y, test = RNG.normal(size=(80, 3)), np.arange(80) % 4, np.arange(80) % 5 == 0
    np.savez(tmp_path / "a.npz", x=x.astype(np.float32), y=y, test=test)
    for partition in ("iid", "dirichlet", "natural"):
        more = ["partition.minimum=5"] if partition == "dirichlet" else []
        if partition == "natural":
            np.savez(tmp_path / "a.npz", x=x.astype(np.float32), y=y, test=test, client=np.arange(80) // 40)
        words = ["data=arrays", f"data.path={tmp_path / 'a.npz'}", f"partition={partition}", "clients=2", *more]
        federation = Config.load(words=words).federation()
        found = torch.cat([c.test.x for c in federation.clients])
        assert sorted(found[:, 0].tolist()) == sorted(x[test, 0].astype(np.float32).tolist()), partition


def test_clients_named_in_arrays_are_the_clients(tmp_path):
    client = np.array(["x", "y"] * 20)
    np.savez(
        tmp_path / "a.npz", x=RNG.normal(size=(40, 3)).astype(np.float32), y=np.array(["no", "yes"] * 20), client=client
    )
    config = Config.load(words=["data=arrays", f"data.path={tmp_path / 'a.npz'}"])
    federation = config.federation()
    assert [c.name for c in federation.clients] == ["x", "y"]
    assert federation.labels == ("no", "yes")


def test_weights_reach_the_clients(tmp_path):
    frame = table(w=np.arange(60.0))
    federation = Federation.from_table(frame, client="site", label="y", weight="w", standardize=False)
    for client in federation.clients:
        assert client.train.weight is not None
        assert client.train.weight.tolist() == marks(client.train)


@pytest.mark.parametrize("as_dates", [False, True])
def test_the_latest_rows_are_held_out(as_dates):
    when = RNG.permutation(60)
    column = [str(np.datetime64("2024-01-01") + int(day)) for day in when] if as_dates else when
    frame = table(when=column)
    federation = Federation.from_table(frame, client="site", label="y", time="when", standardize=False)
    for client in federation.clients:
        order = [when[int(m)] for m in marks(client.train)], [when[int(m)] for m in marks(client.test)]
        assert (len(order[0]), len(order[1])) == (15, 5)
        assert max(order[0]) < min(order[1])


def test_groups_are_not_torn_apart():
    patient = np.arange(60) // 12
    federation = Federation.from_table(
        table(patient=patient), client="site", label="y", group="patient", standardize=False
    )
    for client in federation.clients:
        train, test = ({int(m) // 12 for m in marks(split)} for split in (client.train, client.test))
        assert train
        assert test
        assert not train & test
        assert len(client.test) == 4  # five groups of four rows: one is nearest to a quarter


def test_one_group_trains():
    pool = Pool(np.zeros((5, 1)), np.zeros(5, int), 1, group=np.zeros(5, int))
    deal = hold_out([np.arange(5)], 0.5, np.random.default_rng(0), pool=pool)
    assert (len(deal.train[0]), len(deal.test[0])) == (5, 0)


def test_a_label_of_many_numbers_needs_a_word():
    frame = pd.DataFrame({"site": ["a", "b"] * 150, "v": RNG.normal(size=300), "price": np.arange(300) * 3})
    with pytest.raises(FedTailorError, match=r"300 different numbers.*data\.task=regression.*data\.task=multiclass"):
        Federation.from_table(frame, client="site", label="price")
    assert Federation.from_table(frame, client="site", label="price", task="regression").kind == "regression"


def test_labels_that_are_texts_are_named_everywhere():
    x = RNG.normal(size=(20, 3)).astype(np.float32)
    dealt = Federation.from_arrays(x, np.array(["no", "yes"] * 10), clients=2, partition="iid")
    assert dealt.labels == ("no", "yes")
    given = Federation.from_clients({"p": (x, ["b", "c"] * 10), "q": (x, ["a", "b"] * 10)})  # type: ignore[arg-type]
    assert given.labels == ("a", "b", "c")
    assert set(given.clients[1].train.y.tolist()) == {0, 1}
