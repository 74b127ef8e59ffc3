"""The folder of a federation: its settings, its sites, its keys."""

from __future__ import annotations

import tomllib

import pytest
from cryptography import x509
from typer.testing import CliRunner

from fedtailor.cli.app import app
from fedtailor.data.description import Column, Description
from fedtailor.data.sites import SiteDescription
from fedtailor.deploy.deploy_folder import DeployFolder
from fedtailor.deploy.keys import private_key, public_key
from fedtailor.deploy.known_sites import KnownSites
from fedtailor.deploy.settings import with_overrides
from fedtailor.deploy.site_folder import SiteFolder
from fedtailor.errors import FedTailorError


@pytest.fixture(autouse=True)
def own_umask():
    """The commands narrow the umask of their process, which is this one's here."""
    import os

    before = os.umask(0o022)
    yield
    os.umask(before)


def init(folder, *words: str) -> DeployFolder:
    answer = CliRunner().invoke(app, ["deploy", "init", str(folder), *words], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return DeployFolder.open(folder)


def test_the_folder_holds_the_whole_config_and_the_terms(tmp_path):
    made = init(tmp_path / "f", "method=fedrep", "clients=2", "net.hidden=[8, 4]", "join=[0.5, 1.0]", "timeout=30")
    settings, config = made.settings()
    assert (config.net.hidden, config.settings.join, config.data.name) == ((8, 4), (0.5, 1.0), "sites")
    assert (settings.timeout, settings.port, config.settings.checkpoint_every) == (30.0, 9092, 1)
    assert init(tmp_path / "g", "clients=2").settings()[0].federation != settings.federation


def test_a_misspelled_option_of_the_deployment_is_told():
    with pytest.raises(FedTailorError, match=r"'timout'. Did you mean 'timeout'\?.*rounds.*min_replies"):
        with_overrides({}, ["clients=2", "timout=3"])


def test_server_and_sites_have_certificates_of_one_authority_and_keys_that_only_their_owner_reads(tmp_path):
    made = init(tmp_path / "f", "clients=2", "--host", "fed.example.org", "--host", "192.0.2.7")
    authority = x509.load_pem_x509_certificate((made.keys / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((made.keys / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "127.0.0.1"]
    for i in (0, 1):
        certificate = x509.load_pem_x509_certificate((made.site(i) / "node.crt").read_bytes())
        certificate.verify_directly_issued_by(authority)
        (use,) = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert use == x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH  # a site cannot pose as the server
        own = private_key(made.site(i) / "node.key").public_key().public_numbers()
        assert public_key(made.keys / "sites" / f"{i}.crt").public_numbers() == own
        assert (made.site(i) / "ca.crt").read_bytes() == (made.keys / "ca.crt").read_bytes()
    assert {name: client for name, (client, _) in made.admitted().items()} == {"0": 0, "1": 1}


def test_nobody_else_can_read_a_file_of_the_federation(tmp_path):
    made = init(tmp_path / "f", "clients=2")
    modes = {path: path.stat().st_mode & 0o777 for path in [made.path, *made.path.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_a_sites_folder_says_where_the_server_is_and_what_the_site_agrees_to(tmp_path):
    made = init(
        tmp_path / "f", "clients=2", "method=fedrep", "rounds=7", "batch=12", "--host", "fed.org", "--port", "7000"
    )
    place = SiteFolder.open(made.site(1))
    assert (place.client, place.server, place.shared, place.own["data"]["name"]) == (1, "fed.org:7000", False, "table")
    assert place.policy.methods == ("fedrep",)
    assert place.policy.may_leave == ("body",)
    assert (place.policy.smallest_batch, place.policy.most_rounds) == (12, 14)
    shared = SiteFolder.open(init(tmp_path / "g", "clients=3", "data=digits", "partition.beta=0.3", "seed=5").site(2))
    assert (shared.shared, shared.own["clients"], shared.own["partition_seed"]) == (True, 3, 5)
    assert shared.own["partition"]["beta"] == 0.3


STAGES = [
    Description((len(values) + 2,), 2, labels=("no", "yes"), label="y", columns=(Column("stage", "category", values),))
    for values in (("I", "II"), ("II", "III"))
]


def test_sites_with_a_description_disclose_nothing_and_those_without_what_tables_need(tmp_path):
    file = tmp_path / "d.json"
    STAGES[0].write(file)
    made = init(tmp_path / "f", "clients=2", "--description", str(file))
    place = SiteFolder.open(made.site(1))
    assert (place.description, place.policy.may_describe) == (STAGES[0], ())
    assert made.description.read_bytes() == file.read_bytes()
    assert "accepts no other from the server" in (made.path / "README.md").read_text()
    made = init(tmp_path / "g", "clients=1")
    place = SiteFolder.open(made.site(0))
    assert (place.description, place.policy.may_describe) == (None, ("columns", "categories", "scaling", "labels"))
    assert "fedtailor deploy describe" in (made.path / "README.md").read_text()
    assert SiteFolder.open(init(tmp_path / "h", "clients=1", "data=digits").site(0)).policy.may_describe == ()
    file.write_text("{}")
    for words, said in (([], "is not a description of data"), (["data=digits"], "describes itself")):
        with pytest.raises(FedTailorError, match=said):
            init(tmp_path / "i", "clients=1", *words, "--description", str(file))
    assert not (tmp_path / "i").exists()


def test_what_refused_sites_said_becomes_a_file_to_check(tmp_path):
    made = init(tmp_path / "f", "clients=2")
    with pytest.raises(FedTailorError, match="nothing to merge"):
        made.describe()
    said = [SiteDescription(i, f"s{i}", 30, 10, data) for i, data in enumerate(STAGES)]
    KnownSites(made.path / "members").record_refused([*said, SiteDescription(2, "shy", 30, 10, None, ("columns",))])
    answer = CliRunner().invoke(app, ["deploy", "describe", str(made.path)], catch_exceptions=False)
    assert "The data of site 2 (shy) is not in it" in " ".join(answer.output.split())
    assert Description.load(made.description).columns[0].values == ("I", "II", "III")
    with pytest.raises(FedTailorError, match="is there already"):
        CliRunner().invoke(app, ["deploy", "describe", str(made.path)], catch_exceptions=False)
    for damage in ("[", "5", "[{}]"):
        (made.path / "members" / "refused.json").write_text(damage)
        with pytest.raises(FedTailorError, match="Start the server again"):
            made.describe()


def test_a_new_site_gets_the_description_of_the_run_that_it_joins(tmp_path):
    made = init(tmp_path / "f", "clients=1")
    made.run.mkdir()
    STAGES[1].write(made.run / "description.json")
    place = SiteFolder.open(made.admit("west"))
    assert (place.description, place.policy.may_describe) == (STAGES[1], ())


def test_a_new_site_gets_a_folder_and_a_key_of_its_own(tmp_path):
    made = init(tmp_path / "f", "clients=1", "--host", "fed.org")
    place = made.admit("west", ["data=table", "data.path=west.csv", "data.label=y"])
    assert made.admitted()["west"][0] is None
    said = tomllib.loads((place / "site.toml").read_text())
    assert (said["name"], said["server"], said["data"]["path"]) == ("west", "fed.org:9092", "west.csv")
    assert SiteFolder.open(place).client is None
    for name, wrong in (("west", "there already"), ("../x", "no name for a site"), ("3", "no name for a site")):
        with pytest.raises(FedTailorError, match=wrong):
            made.admit(name)


SITE = """\
[data]
name = "table"
[policy]
methods = []
may_leave = []
smallest_batch = 1
most_rounds = 1
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "server = ''"),
        ('server = "x"', "expected host:port"),
        ('server = "a:1"\nclient = -1', "client = -1"),
        ('server = "a:1"\nclient = 0', "names no data"),
        ('server = "a:1"\n[data]\nname = "table"', r"\[policy\]"),
        ('server = "a:1"\nengine = "ray"', "unknown keys: engine"),
        ("server = ", "not valid TOML"),
        (f'server = "a:1"\ndescription = "none.json"\n{SITE}may_describe = []', "'.*none.json' cannot be read"),
        (f'server = "a:1"\n{SITE}may_describe = ["secrets"]', "policy.may_describe = .*'secrets'"),
    ],
)
def test_mistakes_in_site_toml_are_told(tmp_path, text, said):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(FedTailorError, match=said):
        SiteFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["clients=0"], "how many sites"),
        (["clients=2", "timeout=-1"], "timeout = -1"),
        (["clients=2", "metod=fedavg"], "Unknown key 'metod'"),
    ],
)
def test_mistakes_are_told(tmp_path, words, said):
    with pytest.raises(FedTailorError, match=said):
        CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "f"), *words], catch_exceptions=False)


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FedTailorError, match="is not empty"):
        init(tmp_path, "clients=2")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(FedTailorError, match=r"it has no federation.toml"):
        DeployFolder.open(tmp_path)
