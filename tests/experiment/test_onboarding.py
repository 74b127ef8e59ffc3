"""A client that joins after training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedtailor import Config, Federation, FedTailorError, Simulation
from fedtailor.experiment.onboarding import as_member, onboard
from fedtailor.experiment.run import start
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedrep import FedRep
from fedtailor.methods.finetune import FedAvgFT
from fedtailor.nets.mlp import MLP

SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1}


def alone(federation: Federation, client: int) -> Federation:
    data = federation.clients[client]
    return Federation.from_clients([(data.train.x, data.train.y, data.test.x, data.test.y)])


def test_a_newcomer_trains_what_it_keeps_on_what_the_server_sends(federation):
    members = Federation.from_clients([(c.train.x, c.train.y, c.test.x, c.test.y) for c in federation.clients[:3]])
    simulation = Simulation(members, FedRep(), MLP(hidden=(6,)), rounds=3, **SETTINGS).run()
    server = simulation.server.state["body"].clone()
    newcomer = onboard(simulation, alone(federation, 3))
    everyone = Simulation(federation, FedRep(), MLP(hidden=(6,)), rounds=1, **SETTINGS)
    everyone.worker.fit(3, 1, {"body": server}, evaluate=False)
    vector = torch.cat([p.reshape(-1) for p in newcomer.model.parameters()])
    torch.testing.assert_close(vector, torch.cat([server, everyone.state(3)["head"]]), rtol=0, atol=1e-12)
    assert torch.equal(simulation.server.state["body"], server)
    assert newcomer.after.total == 4


def test_closing_steps_are_part_of_joining(federation):
    simulation = Simulation(federation, FedAvgFT(ft_epochs=3), MLP(hidden=(6,)), rounds=2, **SETTINGS).run()
    newcomer = onboard(simulation, alone(federation, 1))
    expected = simulation.state(1)["personal"]  # full batches: client 1 itself would do the same steps
    torch.testing.assert_close(
        torch.cat([p.reshape(-1) for p in newcomer.model.parameters()]), expected, rtol=0, atol=1e-12
    )


def test_with_fedavg_a_newcomer_takes_the_global_model(federation):
    simulation = Simulation(federation, FedAvg(), MLP(hidden=(6,)), rounds=2, **SETTINGS).run()
    newcomer = onboard(simulation, alone(federation, 0))
    assert torch.equal(
        torch.cat([p.reshape(-1) for p in newcomer.model.parameters()]), simulation.server.state["model"]
    )


def test_data_that_does_not_fit_is_refused(federation):
    simulation = Simulation(federation, FedAvg(), MLP(hidden=(6,)), rounds=1, **SETTINGS).run()
    x, y = np.zeros((8, 5), np.float32), np.arange(8) % 4
    with pytest.raises(FedTailorError, match="labels up to 3, but the run knows 3 classes"):
        onboard(simulation, Federation.from_clients([(x, y)]))
    with pytest.raises(FedTailorError, match="shape"):
        onboard(simulation, Federation.from_clients([(x[:, :4], y % 3)]))
    with pytest.raises(FedTailorError, match="one client"):
        onboard(simulation, federation)


def test_labels_are_matched_by_name(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["site,a,b,what"] + [f"s{i % 3},{rng.normal():.3f},{rng.normal():.3f},{'xyz'[i % 3]}" for i in range(90)]
    (tmp_path / "all.csv").write_text("\n".join(rows))
    (tmp_path / "new.csv").write_text("\n".join([rows[0], *(r for r in rows[1:] if not r.endswith("x"))]))
    table = {"client": "site", "label": "what"}
    federation = Federation.from_table(tmp_path / "all.csv", **table)
    simulation = Simulation(federation, "fedrep", "mlp", rounds=1).run()
    newcomers = Federation.from_table(tmp_path / "new.csv", **table)
    alone = replace(newcomers, clients=newcomers.clients[:1])
    with pytest.raises(FedTailorError, match=r"encoded by itself.*description=federation\.description"):
        onboard(simulation, alone)
    joined = Federation.from_table(tmp_path / "new.csv", **table, description=federation.description)
    assert joined.description == federation.description
    assert [set(c.train.y.tolist()) for c in joined.clients] == [{1}, {2}]  # y and z, as in the federation
    onboard(simulation, replace(joined, clients=joined.clients[:1]))


def test_arrays_with_named_labels_are_matched_by_name():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    seen = Federation.from_clients([(x, np.array(list("abcd") * 10))])
    new = Federation.from_clients([(x, np.array(list("dbdb") * 10))])
    assert new.clients[0].train.y.max() == 1
    assert set(as_member(new, seen).clients[0].train.y.tolist()) == {1, 3}


def test_the_command(fedtailor, tmp_path):
    words = ["rounds=2", "clients=4", "partition=iid", "net=mlp", "method=fedrep", "lr=0.1"]
    start(Config.load(words=words), tmp_path / "run")
    digits = Config.load(words=words).federation().clients[0].train
    np.savez(tmp_path / "new.npz", x=digits.x.numpy(), y=digits.y.numpy())
    told = fedtailor("onboard", "run", "--data", "new.npz", "-o", "new.safetensors", cwd=tmp_path)
    assert "Accuracy on its" in told
    assert "fc.weight" in load_file(tmp_path / "new.safetensors")
    assert "is there already" in fedtailor(
        "onboard", "run", "--data", "new.npz", "-o", "new.safetensors", code=2, cwd=tmp_path
    )
    for name in ("newcomer.safetensors", "newcomer-2.safetensors"):
        assert f"Model: {name}" in fedtailor("onboard", "run", "--data", "new.npz", cwd=tmp_path)
        assert (tmp_path / name).exists()


@pytest.mark.parametrize("hospitals", [("north", "south", "west"), (1, 2, 3)], ids=["names", "numbers"])
def test_a_new_clients_table_needs_no_column_of_clients(fedtailor, tmp_path, hospitals):
    rng = np.random.default_rng(0)
    rows = [f"{hospitals[i % 3]},{rng.normal():.3f},{rng.normal():.3f},{i % 2}" for i in range(90)]
    (tmp_path / "all.csv").write_text("\n".join(["hospital,a,b,sick", *rows]))
    (tmp_path / "with.csv").write_text("\n".join(["hospital,a,b,sick", *rows[::3]]))
    (tmp_path / "without.csv").write_text("\n".join(["a,b,sick", *(row.partition(",")[2] for row in rows[::3])]))
    words = ["data=table", f"data.path={tmp_path / 'all.csv'}", "data.client=hospital", "data.label=sick", "rounds=1"]
    start(Config.load(words=[*words, "engine=inline"]), tmp_path / "run")
    told = [
        fedtailor("onboard", "run", "--data", name, "-o", f"{name}.safetensors", cwd=tmp_path)
        for name in ("with.csv", "without.csv")
    ]
    assert told[0].splitlines()[:2] == told[1].splitlines()[:2]
    first, second = (load_file(tmp_path / f"{name}.csv.safetensors") for name in ("with", "without"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_fault_of_a_new_clients_table_is_still_told(fedtailor, tmp_path):
    (tmp_path / "all.csv").write_text("\n".join(["h,a,sick", *(f"{i % 3},{i % 7},{i % 2}" for i in range(60))]))
    (tmp_path / "new.csv").write_text("\n".join(["a,ill", *(f"{i % 7},{i % 2}" for i in range(20))]))
    words = ["data=table", f"data.path={tmp_path / 'all.csv'}", "data.client=h", "data.label=sick", "rounds=1"]
    start(Config.load(words=[*words, "engine=inline"]), tmp_path / "run")
    assert "has no column 'sick'" in fedtailor("onboard", "run", "--data", "new.csv", code=2, cwd=tmp_path)


def test_a_new_client_of_a_run_on_texts(fedtailor, tmp_path):
    rows = [f"{'ab'[i % 2]},{'fine' if i % 3 else 'poor'} work {i % 5},{'good' if i % 3 else 'bad'}" for i in range(60)]
    (tmp_path / "all.csv").write_text("\n".join(["who,said,mood", *rows]))
    (tmp_path / "new.csv").write_text(
        "\n".join(["mood,said", "good,work fine", "bad,poor", "good,fine", "bad,poor work"])
    )
    words = [
        "data=text-csv",
        f"data.path={tmp_path / 'all.csv'}",
        "data.label=mood",
        "data.text=said",
        "data.client=who",
    ]
    start(Config.load(words=[*words, "rounds=1", "engine=inline"]), tmp_path / "run")
    assert "Accuracy on its 1 test samples" in fedtailor("onboard", "run", "--data", "new.csv", cwd=tmp_path)
