"""The folder of a federation: its app, its sites, its keys and its commands."""

from __future__ import annotations

import tomllib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.common.config import flatten_dict, parse_config_args, validate_config
from typer.testing import CliRunner

from fedtailor.cli import app
from fedtailor.deploy.folder import DeployFolder
from fedtailor.deploy.terms import from_flat, from_words, to_flat
from fedtailor.errors import FedTailorError


def init(folder, *words: str) -> DeployFolder:
    answer = CliRunner().invoke(app, ["deploy", "init", str(folder), *words], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return DeployFolder.open(folder)


def test_the_app_is_one_that_flower_takes_and_holds_the_whole_config(tmp_path):
    made = init(tmp_path / "f", "method=fedrep", "clients=2", "net.hidden=[8, 4]", "join=[0.5, 1.0]", "timeout=30")
    project = tomllib.loads((made.app / "pyproject.toml").read_text())
    assert validate_config(project, check_module=True, project_dir=made.app)[:2] == (True, [])
    terms, config = from_flat(flatten_dict(project["tool"]["flwr"]["app"]["config"]))
    assert (config.net.hidden, config.settings.join, config.data.name) == ((8, 4), (0.5, 1.0), "sites")
    assert (terms.timeout, terms.folder, config.settings.checkpoint_every) == (30.0, str(made.path), 1)
    assert made.terms() == (terms, config)
    assert init(tmp_path / "g", "clients=2").terms()[0].federation != terms.federation


def test_a_misspelled_option_of_the_deployment_is_told():
    with pytest.raises(FedTailorError, match=r"'timout'. Did you mean 'timeout'\?.*rounds.*min_replies"):
        from_words({}, ["clients=2", "timout=3"])


@pytest.mark.parametrize("method", ["fedrep", "heart", "pgfedsplit", "fedamp", "fedavg-ft"])
def test_terms_and_config_survive_flowers_flat_form(method):
    terms, config = from_words({}, [f"method={method}", "clients=3", "net=mlp", "lr=0.1", "min_replies=2"])
    flat = to_flat(terms, config)
    assert all(isinstance(value, str | int | float | bool) for value in flat.values())
    again, same = from_flat(flat)
    assert (again, same.values()) == (terms, config.values())


def test_with_tls_there_are_keys_that_only_their_owner_reads(tmp_path):
    made = init(tmp_path / "f", "clients=2", "--tls", "--host", "fed.example.org", "--host", "192.0.2.7")
    certificate = x509.load_pem_x509_certificate((made.keys / "server.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((made.keys / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "127.0.0.1"]
    secrets = [made.keys / "ca.key", made.keys / "server.key", *(made.site(i) / "node.key" for i in (0, 1))]
    assert [oct(path.stat().st_mode & 0o777) for path in secrets] == ["0o600"] * 4
    for i in (0, 1):
        private = load_ssh_private_key((made.site(i) / "node.key").read_bytes(), None)
        public = load_ssh_public_key((made.keys / f"node-{i}.pub").read_bytes())
        assert private.public_key().public_numbers() == public.public_numbers()
        assert (made.site(i) / "ca.crt").read_bytes() == (made.keys / "ca.crt").read_bytes()
    text = (made.path / "README.md").read_text()
    assert "flwr supernode register keys/node-1.pub federation" in text
    assert "--superlink fed.example.org:9092" in text
    assert "--insecure" not in text


def test_without_tls_the_commands_say_so(tmp_path):
    made = init(tmp_path / "f", "clients=1", "data=digits", "--port", "7000")
    text = (made.path / "README.md").read_text()
    assert "flower-superlink --insecure --host 0.0.0.0 --port 7000" in text
    assert "flwr supernode register" not in text
    assert parse_config_args([str(made.site(0) / "site.toml")]) == {"client": 0}


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
    with pytest.raises(FedTailorError, match=r"it has no app/pyproject.toml"):
        DeployFolder.open(tmp_path)
