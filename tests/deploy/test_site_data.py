"""A site's data, read as the federation's description says or refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor import Config
from fedtailor.data.description import Column, Description
from fedtailor.data.sites import SiteDescription
from fedtailor.deploy import site as site_module
from fedtailor.deploy.policy import AGREEING, Policy, asked
from fedtailor.deploy.site import SiteNode
from fedtailor.deploy.site_data import Unfit, site_data
from fedtailor.deploy.site_folder import SiteFolder
from fedtailor.engines.flower.messages import read_site, write_call
from fedtailor.errors import FedTailorError
from fedtailor.experiment.saved_models import describe_models

STAGE = Column("stage", "category", ("I", "II", "III", "IV"))
AGE = Column("age", "number", mean=60.0, std=10.0)
GIVEN = Description((7,), 2, labels=("alive", "dead"), label="outcome", columns=(STAGE, AGE))
ROWS = [
    f"{stage},{age},{fate}"
    for stage, age, fate in zip(["I", "II"] * 8, range(50, 66), ["alive", "dead"] * 8, strict=True)
]


@pytest.fixture
def run() -> Config:
    return Config.load(words=["data=sites", "clients=2", "method=fedavg", "net=mlp", "net.hidden=[4]"])


def site(
    folder: Path,
    rows: list[str] = ROWS,
    header: str = "stage,age,outcome",
    may: tuple[str, ...] = AGREEING,
    file: Description | None = None,
    **options: Any,
) -> SiteFolder:
    (folder / "data.csv").write_text("\n".join([header, *rows]))
    policy = Policy(("fedavg",), ("model",), 1, 9, may)
    table = {"name": "table", "path": "data.csv", "label": "outcome", **options}
    return SiteFolder(folder, 0, "north", "", False, policy, {"data": table}, file)


def read(place: SiteFolder, run: Config, sent: Any = GIVEN):
    config = SiteNode.open(place, "test", asked(run)).config
    return site_data(place, config, sent.plain() if isinstance(sent, Description) else sent)


def test_rows_mean_the_same_at_every_site_whatever_the_order_of_columns(tmp_path, run):
    for i, (header, rows) in enumerate(
        [
            ("stage,age,outcome", ["IV,70,dead", *ROWS]),
            (
                "outcome,extra,age,stage",
                ["dead,1,70,IV", *(",".join((*r.split(",")[::-1][:1], "1", *r.split(",")[::-1][1:])) for r in ROWS)],
            ),
        ]
    ):
        (tmp_path / str(i)).mkdir()
        data = read(site(tmp_path / str(i), rows, header), run)
        assert data.description == GIVEN
        client = data.clients[0]
        first = torch.tensor(
            [0, 0, 0, 1, 0, 0, 1.0]
        )  # stage IV of I to IV, neither missing nor unknown; (70 − 60) / 10
        rows_read = torch.cat([client.train.x, client.test.x])
        assert int((rows_read == first).all(1).sum()) == 1
        assert len(rows_read) == 17


def test_a_column_that_is_constant_at_one_site_is_read_all_the_same(tmp_path, run):
    place = site(tmp_path, [row.replace("II,", "I,") for row in ROWS])
    assert [column.name for column in read(place, run, None).description.columns] == ["age"]  # useless to it alone
    assert read(place, run).clients[0].train.x[:, 0].unique().tolist() == [1.0]


def test_a_column_that_the_site_leaves_out_cannot_be_asked_for(tmp_path, run):
    for options in ({"ignore": ["age"]}, {"features": ["stage"]}):
        with pytest.raises(Unfit, match="it has no column 'age'") as refusal:
            read(site(tmp_path, **options), run)
        assert "'age'" in refusal.value.to_server
    with pytest.raises(Unfit, match="None of the description's columns"):
        read(site(tmp_path, ignore=["age", "stage"]), run)


def test_a_value_that_is_not_in_the_description_is_named_here_and_kept_from_the_server(tmp_path, run):
    rows = ["Ada's,50,alive"] * 8 + ROWS  # eight of them: some are training rows
    with pytest.raises(
        Unfit, match=r"column 'stage' has the value 'Ada's', where 'I', 'II', 'III', 'IV' were"
    ) as refusal:
        read(site(tmp_path, rows, may=(), file=GIVEN), run)
    assert refusal.value.to_server.endswith("its column 'stage' has values that are not expected: 1 of them.")
    with pytest.raises(Unfit) as refusal:
        read(site(tmp_path, rows), run)
    assert "'Ada's'" in refusal.value.to_server  # which it may disclose


def test_a_label_that_is_not_in_the_description_is_refused(tmp_path, run):
    rows = ["I,50,lost"] * 2 + ROWS
    with pytest.raises(Unfit, match="it has the label 'lost', where 'alive', 'dead' were expected") as refusal:
        read(site(tmp_path, rows, may=(), file=GIVEN), run)
    assert "lost" not in refusal.value.to_server


@pytest.mark.parametrize(
    ("header", "rows", "full", "public"),
    [
        ("stage,years,outcome", ROWS, "has no column 'age'", "cannot be read (column 'age'); the site's log says why"),
        ("stage,age,outcome", [*ROWS * 3, "I,Ada Lovelace,dead"], "'Ada Lovelace'", "cannot be read (column 'age');"),
        (
            "stage,age,fate",
            ROWS,
            "has no column 'outcome'",
            "This site's data cannot be read; the site's log says why.",
        ),
    ],
)
def test_what_is_wrong_with_the_data_stays_at_the_site(tmp_path, run, header, rows, full, public):
    with pytest.raises(Unfit, match=full) as refusal:
        read(site(tmp_path, rows, header), run)
    assert public in refusal.value.to_server
    assert not any(word in refusal.value.to_server for word in ("Ada", "csv", "years"))


def test_a_site_with_a_file_of_its_own_accepts_no_other(tmp_path, run):
    place = site(tmp_path, may=(), file=GIVEN)
    assert read(place, run).description == GIVEN
    assert read(place, run, replace(GIVEN, notes=("made in May",))).clients
    for other in (replace(GIVEN, columns=(STAGE, replace(AGE, mean=61.0))), replace(GIVEN, labels=("dead", "alive"))):
        with pytest.raises(FedTailorError, match=r"not the one that this site's site.toml names"):
            read(place, run, other)
    with pytest.raises(FedTailorError, match=r"only with the description .* the server has none"):
        read(place, run, None)


def test_a_server_cannot_find_out_by_guessing_what_a_site_does_not_disclose(tmp_path, run):
    guesses = [replace(STAGE, values=("I", "II")), replace(STAGE, values=("X", "Y")), replace(STAGE, name="grade")]
    for may, said in (
        (("columns", "scaling", "labels"), "its categories"),
        ((), "its columns and categories and scaling and labels"),
    ):
        for guess in guesses:  # one is right
            sent = replace(GIVEN, shape=(guess.width + 1,), columns=(guess, AGE))
            with pytest.raises(FedTailorError, match=f"does not disclose {said} ") as refusal:
                read(site(tmp_path, may=may), run, sent)
            assert not isinstance(refusal.value, Unfit)  # it is said before the data is looked at


@pytest.mark.parametrize("sent", [5, [], {}, {"columns": []}, {**GIVEN.plain(), "shape": [8]}])
def test_a_description_that_is_none_is_refused(tmp_path, run, sent):
    with pytest.raises(FedTailorError, match="The server's description of the data cannot be used"):
        read(site(tmp_path), run, sent)


def test_what_the_description_does_to_rows_is_told(tmp_path, run, caplog):
    split = ["train"] * 16 + ["test"]
    rows = [*ROWS[:15], "II,,dead", "V,50,dead"]
    place = site(
        tmp_path, [f"{r},{s}" for r, s in zip(rows, split, strict=True)], "stage,age,outcome,part", split="part"
    )
    with caplog.at_level(logging.WARNING):
        data = read(place, run)
    assert "Column 'age' has missing values, and the federation's description has no indicator" in caplog.text
    assert "Column 'stage' has values in 1 test rows that the federation's description does not have" in caplog.text
    assert data.clients[0].train.x[-1].tolist() == [0, 1, 0, 0, 0, 0, 0]  # the mean stands in
    assert data.clients[0].test.x[0].tolist() == [0, 0, 0, 0, 0, 1, -1]


def test_texts_are_read_with_the_given_vocabulary(tmp_path, run):
    rows = [f"{label},the {word} film" for label, word in zip(["no", "yes"] * 8, ["bad", "good"] * 8, strict=True)]
    (tmp_path / "texts.csv").write_text("\n".join(rows))
    data = {"name": "text-csv", "path": "texts.csv", "length": 4}
    place = replace(site(tmp_path), own={"data": data})
    given = Description((3,), 2, dtype="int32", labels=("no", "yes"), tokens=("good", "film"), vocabulary=4)
    with pytest.raises(FedTailorError, match="does not disclose its vocabulary"):
        read(place, run, given)
    client = read(replace(place, description=given), run, given).clients[0]
    assert {tuple(row) for row in client.train.x.tolist()} <= {(1, 2, 3), (1, 1, 3)}  # "the" and "bad" are unknown
    assert client.train.x[:, 1].eq(2).eq(client.train.y == 1).all()


# -- a site in a run -------------------------------------------------------------------------------------------------------------------


def call(run: Config, sent: Description | None, **said: Any):
    plain = {
        "client": 0,
        "description": None if sent is None else sent.plain(),
        "round": 1,
        "step": 0,
        "oldest": 0,
        **said,
    }
    return write_call({"federation": "test", "config": asked(run), **plain}, {})


def test_a_site_describes_itself_only_until_there_is_a_description(tmp_path, run):
    node = SiteNode.open(site(tmp_path, may=("columns", "labels")), "test", asked(run))
    alone = read_site(node.answer(call(run, None, work="describe")))
    assert alone.hidden == ("categories", "scaling")
    assert [(c.name, c.values, c.mean) for c in alone.data.columns] == [("stage", (), 0.0), ("age", (), 0.0)]
    node = SiteNode.open(site(tmp_path), "test", asked(run))
    assert read_site(node.answer(call(run, GIVEN, work="describe"))) == SiteDescription(0, "north", 12, 4)
    with pytest.raises(FedTailorError, match="did not say how the data is described"):
        node.answer(call(run, None, work="hello"))


def test_data_is_read_once_for_all_messages_with_the_same_description(tmp_path, run, monkeypatch):
    reads = []

    def counted(*args: Any):
        reads.append(args[2])
        return site_data(*args)

    monkeypatch.setattr(site_module, "site_data", counted)
    node = SiteNode.open(site(tmp_path), "test", asked(run))
    for sent in (None, GIVEN, GIVEN, GIVEN):
        node.answer(call(run, sent, work="describe"))
    assert len(reads) == 2


def test_the_description_is_kept_beside_the_model(tmp_path, run):
    node = SiteNode.open(site(tmp_path), "test", asked(run))
    (tmp_path / "description.json").write_text("of an older run")
    for _ in range(2):
        describe_models(tmp_path, node.config, GIVEN)
        assert Description.load(tmp_path / "description.json") == GIVEN
    written = (tmp_path / "description.json").stat().st_mtime_ns
    describe_models(tmp_path, node.config, GIVEN)
    assert (tmp_path / "description.json").stat().st_mtime_ns == written
