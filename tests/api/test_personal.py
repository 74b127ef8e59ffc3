"""A run's models are used on raw samples: what they say is what the run scored, and what does not fit is told in words."""

from __future__ import annotations

import csv
import dataclasses
import logging
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import fedtailor as ft
from fedtailor.experiment.saved_models import SavedModels, describe_models
from fedtailor.methods import methods
from fedtailor.nets.cnn import CNN

QUICK = {"rounds": 2, "batch": 8, "engine": "inline", "callbacks": []}


def patients(rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    age = rng.integers(20, 90, rows).astype(float)
    sex = rng.choice(["f", "m"], rows)
    ill = (age + 20 * (sex == "m") + rng.normal(0, 10, rows) > 65).astype(int)
    age[::9] = np.nan
    frame = pd.DataFrame({"age": age, "sex": sex, "pressure": rng.normal(120, 15, rows).round(1)})
    frame["outcome"] = np.array(["healthy", "ill"])[ill]
    frame["site"] = rng.choice(["north", "south"], rows)
    frame["part"] = rng.choice(["train", "test"], rows, p=[0.7, 0.3])
    return frame


@pytest.fixture(scope="module")
def table_run(tmp_path_factory) -> ft.Run:
    folder = tmp_path_factory.mktemp("table")
    patients().to_csv(folder / "patients.csv", index=False)
    words = [f"data.path={folder / 'patients.csv'}", "data.client=site", "data.label=outcome", "data.split=part"]
    config = ft.Config.load(words=["data=table", *words, "rounds=3", "engine=inline", "lr=0.3"])
    ft.run(config, out=folder / "run", callbacks=[])
    (folder / "patients.csv").unlink()  # only the run's folder is left
    return ft.load(folder / "run")


def table_of(run: ft.Run) -> dict[str, dict[str, str]]:
    with (run.path / "clients.csv").open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def test_predictions_of_a_clients_test_rows_are_what_the_run_scored(table_run):
    frame = patients()
    for name in ("north", "south"):
        own = frame[(frame.site == name) & (frame.part == "test")]
        right = table_run.personal(name).predict(own.drop(columns=["outcome", "site", "part"])) == own.outcome
        row = table_of(table_run)[name]
        assert (len(own), right.mean()) == (int(row["test_samples"]), float(row["accuracy"]))
        assert right.mean() > 0.5


def test_the_same_model_by_name_number_and_class(table_run):
    frame = patients()
    north, again = table_run.personal("north"), table_run.personal(0)
    chances = north.predict_proba(frame)
    assert np.array_equal(chances, again.predict_proba(frame))
    assert chances.shape == (len(frame), 2)
    assert np.allclose(chances.sum(1), 1)
    assert north.labels == ("healthy", "ill")
    assert np.array_equal(north.predict(frame), np.array(north.labels)[chances.argmax(1)])
    assert repr(north).splitlines() == [
        "Personal model of north: Perceptron, 2,002 parameters",
        "  reads columns age, sex, pressure",
        "  predicts one of healthy, ill",
    ]
    x = north.description.features(torch.zeros(2, 3))
    assert torch.equal(north(x), north.module(x))


def test_a_table_is_read_by_names_from_any_file(table_run, tmp_path):
    frame = patients(30)
    model = table_run.personal("south")
    wanted = model.predict_proba(frame)
    frame[["pressure", "sex", "age"]].to_csv(tmp_path / "new.csv", index=False)
    frame.to_parquet(tmp_path / "new.parquet")
    assert np.array_equal(model.predict_proba(tmp_path / "new.csv"), wanted)
    assert np.array_equal(model.predict_proba(str(tmp_path / "new.parquet")), wanted)
    assert np.allclose(model.predict_proba(frame.iloc[:1]), wanted[:1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: f.rename(columns={"age": "Age"}), "the table has no column 'age', which the model needs."),
        (lambda f: f.assign(age="old"), "column 'age' must hold numbers, but has 'old'"),
        (lambda f: f.assign(age=np.inf), "column 'age' has infinite values"),
        (lambda f: f.iloc[:0], "the table has no rows"),
        (lambda f: pd.concat([f, f[["age"]]], axis=1), "more than one column 'age'"),
        (lambda f: f["age"].to_numpy(), "A table is a data frame or the path of a file, not a ndarray"),
        (lambda f: "new.csv", "The data 'new.csv' does not exist"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_a_sentence(table_run, change, told):
    with pytest.raises(ft.FedTailorError, match=told) as error:
        table_run.personal("north").predict(change(patients(10)))
    assert "\n" not in str(error.value)


def test_unseen_categories_and_unexpected_gaps_are_reported_and_predicted(table_run, caplog):
    frame = patients(10).assign(sex="x")
    frame.loc[:3, "pressure"] = np.nan
    with caplog.at_level(logging.WARNING, "fedtailor"):
        assert len(table_run.personal("north").predict(frame)) == 10
    assert "Column 'sex' has 10 values that training did not have, such as 'x'." in caplog.text
    assert "Column 'pressure' has 4 missing values, and had none in training" in caplog.text


def test_the_command_writes_one_line_per_row(table_run, fedtailor, tmp_path, caplog):
    patients(10).assign(sex="=1+1").to_csv(tmp_path / "new.csv", index=False)
    words = ("predict", table_run.path, "--data", "new.csv")
    said = fedtailor(*words, "--client", "north", cwd=tmp_path)
    assert "10 predictions of the model of north: predictions.csv" in said
    assert "such as '=1+1'" in caplog.text
    found = pd.read_csv(tmp_path / "predictions.csv")
    model = table_run.personal("north")
    assert list(found.columns) == ["row", "prediction", "healthy", "ill"]
    assert found.row.tolist() == list(range(1, 11))
    assert found.prediction.tolist() == model.predict(tmp_path / "new.csv").tolist()
    assert np.allclose(found[["healthy", "ill"]], model.predict_proba(tmp_path / "new.csv"), rtol=0, atol=1e-7)
    assert "model of south" in fedtailor(*words, "--client", "1", "-o", "b.csv", cwd=tmp_path)
    assert "Did you mean 'north'? Its clients: north, south" in fedtailor(
        *words, "--client", "nroth", code=2, cwd=tmp_path
    )
    assert "has 2 models. Name one with --client: north, south" in fedtailor(*words, code=2, cwd=tmp_path)


def named(samples: dict[str, tuple], **options) -> ft.Federation:
    return ft.Federation.from_clients(samples, **options)


def test_every_kind_of_task_has_its_form_of_predictions(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    labels = {
        "classes": np.arange(40) % 3,
        "binary": x[:, 0] > 0,
        "multilabel": (x[:, :2] > 0).astype(int),
        "regression": x[:, 0] * 1.5,
        "targets": x[:, :2] * 1.5,
    }
    found = {}
    for name, y in labels.items():
        run = ft.run(named({"a": (x, y), "b": (x, y)}), "fedavg", net="mlp", out=tmp_path / name, **QUICK)
        model = ft.load(tmp_path / name).personal("a")
        found[name] = model.predictions(x)
        assert np.array_equal(found[name].answers, run.personal("a").predict_proba(x))
    forms = {name: (p.predicted.dtype.kind, p.predicted.shape, p.answers.shape) for name, p in found.items()}
    assert forms == {
        "classes": ("i", (40,), (40, 3)),
        "binary": ("i", (40,), (40, 2)),
        "multilabel": ("i", (40, 2), (40, 2)),
        "regression": ("f", (40,), (40, 1)),
        "targets": ("f", (40, 2), (40, 2)),
    }
    heads = {name: p.csv().splitlines()[0] for name, p in found.items()}
    assert heads == {
        "classes": "row,prediction,0,1,2",
        "binary": "row,prediction,0,1",
        "multilabel": "row,prediction,0,1",
        "regression": "row,prediction",
        "targets": "row,prediction 0,prediction 1",
    }
    assert np.array_equal(found["binary"].predicted, found["binary"].answers.argmax(1))
    assert np.array_equal(found["multilabel"].predicted, found["multilabel"].answers > 0.5)
    assert found["multilabel"].csv().splitlines()[1].split(",")[1] in ("0 0", "0 1", "1 0", "1 1")


def test_names_of_classes_are_escaped_in_the_file(tmp_path):
    x, y = np.eye(4, dtype=np.float32), np.array(["=SUM(A1)", "a\u202eb", "=SUM(A1)", "a\u202eb"])
    ft.run(named({"a": (x, y), "b": (x, y)}), "fedavg", net="mlp", out=tmp_path / "r", **QUICK)
    text = ft.load(tmp_path / "r").personal("a").predictions(x).csv()
    assert text.splitlines()[0] == r"row,prediction,'=SUM(A1),a\u202eb"
    assert "\u202e" not in text


# -- images, texts, arrays -----------------------------------------------------------------------------------------------------------


def draw(folder, size: int = 12, count: int = 8) -> None:
    rng = np.random.default_rng(3)
    for client in ("north", "south"):
        for k, label in enumerate(("cat", "dog")):
            (folder / client / label).mkdir(parents=True)
            for i in range(count):
                grid = rng.integers(0, 100, (size, size, 3)) + 120 * k
                Image.fromarray(grid.astype(np.uint8)).save(folder / client / label / f"{i}.png")


def test_images_are_read_from_folders_and_files_and_resized(tmp_path, caplog):
    draw(tmp_path / "scans")
    words = ["data=folder", f"data.path={tmp_path / 'scans'}", "data.client_folders=true", "data.size=8"]
    config = ft.Config.load(words=[*words, f"data.root={tmp_path}", "net=cnn", "rounds=2", "engine=inline", "lr=0.2"])
    ft.run(config, out=tmp_path / "r", callbacks=[])
    model = ft.load(tmp_path / "r").personal("south")
    found = model.predictions(tmp_path / "scans" / "south")
    assert [file.split("/")[-2:] for file in found.files[:2]] == [["cat", "0.png"], ["cat", "1.png"]]
    assert found.csv().splitlines()[0] == "row,file,prediction,cat,dog"
    one = model.predict_proba(tmp_path / "scans" / "south" / "cat" / "0.png")
    assert np.allclose(one, found.answers[:1], rtol=0, atol=1e-6)
    assert np.array_equal(model.predict_proba(list(found.files)), found.answers)
    assert not caplog.text  # the run resizes images, too
    with pytest.raises(ft.FedTailorError, match="cannot be read as an image"):
        model.predict([tmp_path / "r" / "config.toml"])
    with pytest.raises(ft.FedTailorError, match="holds no images"):
        model.predict(tmp_path / "r" / "models")


def test_images_of_another_size_are_reported(tmp_path, caplog):
    x = np.random.default_rng(1).integers(0, 255, (12, 1, 8, 8)).astype(np.uint8)
    ft.run(named({"a": (x, np.arange(12) % 2), "b": (x, np.arange(12) % 2)}), net="cnn", out=tmp_path / "r", **QUICK)
    model = ft.load(tmp_path / "r").personal("a")
    Image.fromarray(x[0, 0]).save(tmp_path / "same.png")
    assert np.allclose(model.predict_proba(tmp_path / "same.png"), model.predict_proba(x)[:1], rtol=0, atol=1e-6)
    assert not caplog.text
    Image.new("L", (30, 20)).save(tmp_path / "wide.png")
    model.predict(tmp_path / "wide.png")
    assert "1 of 1 images were resized to 8×8 pixels." in caplog.text


def test_texts_are_read_as_lists_and_as_csv_without_labels(tmp_path, caplog):
    rows = ["label,text", *(["good,what a lovely (great) film!", "bad,dull and slow; bad"] * 12)]
    (tmp_path / "texts.csv").write_text("\n".join(rows))
    words = ["data=text-csv", f"data.path={tmp_path / 'texts.csv'}", "data.columns=label,text", "data.length=6"]
    config = ft.Config.load(words=[*words, "rounds=8", "lr=1", "clients=2", "partition=iid", "engine=inline"])
    ft.run(config, out=tmp_path / "r", callbacks=[])
    model = ft.load(tmp_path / "r").personal(0)
    texts = ["What a LOVELY, great film", "slow, dull"]
    assert model.predict(texts).tolist() == ["good", "bad"]
    (tmp_path / "new.csv").write_text('id,text\n1,"What a LOVELY, great film"\n2,"slow, dull"\n')
    assert np.array_equal(model.predict_proba(tmp_path / "new.csv"), model.predict_proba(texts))
    assert not caplog.text
    model.predict(["quite unheard of"])
    assert "1 of 1 texts have no word that training had." in caplog.text
    with pytest.raises(ft.FedTailorError, match="The data 'what a film' does not exist"):
        model.predict("what a film")
    with pytest.raises(ft.FedTailorError, match="list of texts, but an entry is of type int"):
        model.predict([3])
    (tmp_path / "new.csv").write_text("id,words\n1,x\n")
    with pytest.raises(ft.FedTailorError, match=r"has no column 'text'\. Its first line names: id, words"):
        model.predict(tmp_path / "new.csv")


def test_arrays_are_checked_against_what_was_trained_on(tmp_path):
    x = np.random.default_rng(1).normal(size=(12, 5)).astype(np.float32)
    ft.run(named({"a": (x, np.arange(12) % 2), "b": (x, np.arange(12) % 2)}), net="mlp", out=tmp_path / "r", **QUICK)
    model = ft.load(tmp_path / "r").personal("a")
    np.savez(tmp_path / "new.npz", x=x, y=np.arange(12))
    np.save(tmp_path / "new.npy", x)
    wanted = model.predict_proba(x)
    for data in (tmp_path / "new.npz", tmp_path / "new.npy", torch.from_numpy(x), x.astype(np.float64)):
        assert np.array_equal(model.predict_proba(data), wanted)
    for wrong, told in [
        (x[:, :4], r"float32 samples of shape \(4,\), but the model reads float32 samples of shape \(5,\)"),
        (np.full((2, 5), 3), "int64 samples"),
        (np.full((2, 5), np.nan), "NaN or infinite"),
        (x[:0], "no samples"),
        ([1, 2], "array or the path of an .npz file, but these are of type list"),
    ]:
        with pytest.raises(ft.FedTailorError, match=told):
            model.predict(wrong)
    ids = np.arange(60).reshape(12, 5) % 7
    ft.run(named({"a": (ids, np.arange(12) % 2)}), "local", net="fasttext", out=tmp_path / "t", **QUICK)
    model = ft.load(tmp_path / "t").personal("a")
    assert np.array_equal(model.predict_proba(ids), model.predict_proba(ids.astype(np.int32)))
    with pytest.raises(ft.FedTailorError, match="token ids up to 7, but the model knows 7"):
        model.predict(ids + 1)


# -- the models themselves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(methods.classes))
def test_every_methods_models_come_back_from_the_folder_alone_and_are_those_it_scored(name, tmp_path):
    rng = np.random.default_rng(7)
    parts = [(rng.normal(size=(n, 1, 4, 4)).astype(np.float32), np.arange(n) % 3) for n in (20, 12, 30, 16)]
    federation = ft.Federation.from_clients(parts)
    cls = methods.classes[name]
    options = {"akt_steps": 1, "pgd_steps": 1, "ft_epochs": 1}
    method = cls(**{k: v for k, v in options.items() if k in {f.name for f in dataclasses.fields(cls)}})
    if method.needs_proxy:
        federation = federation.set_aside(0.2)
    net = CNN(conv1=2, conv2=2, hidden=4)
    run = ft.run(federation, method, net=net, out=tmp_path / "r", join=0.5, lr=0.5, **QUICK)
    loaded, table = ft.load(tmp_path / "r"), table_of(run)
    for client, data in enumerate(federation.clients):
        ours, theirs = run.personal(client), loaded.personal(client)
        assert torch.equal(ours(data.test.x), theirs(data.test.x))
        right = int((theirs.predict(data.test.x) == data.test.y.numpy()).sum())
        row = table[data.name]
        assert right / len(data.test) == float(row["accuracy"])
        loss = torch.nn.functional.cross_entropy(theirs(data.test.x), data.test.y).item()
        assert loss == pytest.approx(float(row["loss"]), rel=1e-5)


def test_statistics_of_batchnorm_are_the_clients_own(tmp_path):
    x = np.random.default_rng(1).integers(0, 255, (24, 3, 16, 16)).astype(np.uint8)
    parts = {name: (x // k, np.arange(24) % 3) for k, name in ((1, "a"), (4, "b"))}
    layers = (nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(196, 3))
    net = nn.Sequential(*layers)
    run = ft.run(named(parts), "fedbn", net=net, out=tmp_path / "r", **QUICK)
    for name, row in table_of(run).items():
        test = next(c.test for c in run.simulation.federation.clients if c.name == name)
        predicted = ft.load(tmp_path / "r", net=net).personal(name).predict(test.x)
        assert (predicted == test.y.numpy()).mean() == float(row["accuracy"])


def test_a_model_that_is_not_there_is_told_in_words(federation, tmp_path, fedtailor):
    ft.run(federation, "fedavg", net="mlp", out=tmp_path / "r", save_models=False, **QUICK)
    with pytest.raises(ft.FedTailorError, match=r"no saved model of client 'client-1'.*save_models=false"):
        ft.load(tmp_path / "r").personal(1)
    (tmp_path / "r" / "status.json").write_text('{"state": "interrupted"}')
    with pytest.raises(ft.FedTailorError, match=r"this one is interrupted. Carry it on with:  ft.load\("):
        ft.load(tmp_path / "r").personal(1)
    ft.run(federation, "fedavg", net="mlp", out=tmp_path / "s", **QUICK)
    (tmp_path / "s" / "models" / "client-00001.safetensors").write_bytes(b"damaged")
    with pytest.raises(ft.FedTailorError, match="cannot be read: it is damaged"):
        ft.load(tmp_path / "s").personal(1)
    shutil.copy(
        tmp_path / "s" / "models" / "client-00000.safetensors", tmp_path / "s" / "models" / "client-00001.safetensors"
    )
    config = tmp_path / "s" / "config.toml"
    config.write_text(config.read_text().replace("200", "199"))
    with pytest.raises(ft.FedTailorError, match="does not fit the net of its run"):
        ft.load(tmp_path / "s").personal(1)
    (tmp_path / "s" / "description.json").unlink()
    assert "has no description.json" in fedtailor("predict", tmp_path / "s", "--client", "0", "--data", ".", code=2)


def test_the_folder_of_a_site_needs_its_config_and_description(federation, tmp_path, fedtailor):
    run = ft.run(federation, "fedrep", net="mlp", out=tmp_path / "r", **QUICK)
    site = tmp_path / "site"
    (site / "models").mkdir(parents=True)
    shutil.copy(run.path / "models" / "client-00002.safetensors", site / "models")
    describe_models(site, run.config, federation.description)
    assert SavedModels(site).numbers == [2]
    x = federation.clients[2].test.x.numpy()
    np.savez(tmp_path / "new.npz", x=x)
    assert "model of 2" in fedtailor("predict", site, "--data", "new.npz", cwd=tmp_path)
    found = pd.read_csv(tmp_path / "predictions.csv").prediction
    assert found.tolist() == run.personal(2).predict(x).tolist()


def test_a_description_that_was_edited_does_not_predict(tmp_path, federation):
    ft.run(federation, "fedavg", net="mlp", rounds=1, out=tmp_path / "a", callbacks=[])
    file = tmp_path / "a" / "description.json"
    file.write_text(file.read_text().replace('"classes": 3', '"classes": 4'))
    with pytest.raises(ft.FedTailorError, match=r"description\.json' is not what it was when the run was finished"):
        ft.load(tmp_path / "a").personal(0)
