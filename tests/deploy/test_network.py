"""Federations of real server and site processes on the loopback network."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import tomli_w
import torch
from flwr.app import Message
from safetensors.torch import load_file

from fedtailor.deploy.connection import Connection
from fedtailor.deploy.deploy_folder import HERE, DeployFolder
from fedtailor.deploy.local import start_site, stop
from fedtailor.deploy.settings import with_overrides
from fedtailor.deploy.site_process import SiteProcess
from fedtailor.engines.flower.messages import read_call, read_outcome, write_outcome
from fedtailor.experiment.run import start
from fedtailor.experiment.run_folder import RunFolder, read_lines

pytestmark = [pytest.mark.network, pytest.mark.skipif(sys.platform != "linux", reason="counts processes by /proc")]

WORDS = ["data=digits", "data.fraction=0.2", "net=mlp", "net.hidden=[8]", "checkpoint_every=1", f"listen={HERE}"]
PROXY = ["partition=paired", "net=cnn", "method.pgd_steps=1", "method.akt_steps=2"]
PATIENCE = 300.0  # seconds: a busy machine starts processes slowly


def make(path: Path, *words: str) -> DeployFolder:
    settings, config = with_overrides({}, [*WORDS, *words, "port=0"])
    folder = DeployFolder.create(path, settings, config, [HERE])
    folder.logs.mkdir()
    return folder


def wait_until(what: Callable[[], object], said: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def rounds(folder: DeployFolder) -> list[dict]:
    return read_lines(RunFolder(folder.run).metrics)


def numbers(run: Path) -> list[dict]:
    own = ("missing", "rejected")
    records = read_lines(run / "metrics.jsonl")
    return [{k: v for k, v in r.items() if not k.startswith("seconds_") and k not in own} for r in records]


def equals_inline(folder: DeployFolder, inline: Path) -> None:
    config = folder.settings()[1]
    start(config, inline)
    assert numbers(folder.run) == numbers(inline)
    for file in ("ledger.csv", "clients.jsonl"):
        assert (folder.run / file).read_text() == (inline / file).read_text()
    for i in range(config.settings.clients):
        name = f"client-{i:05d}.safetensors"
        there, here = load_file(folder.site(i) / "models" / name), load_file(inline / "models" / name)
        assert all(torch.equal(there[key], here[key]) for key in here)


class Server:
    """`fedtailor deploy serve` in a process, and the port that it listens on."""

    def __init__(self, folder: DeployFolder) -> None:
        self.said = folder.logs / f"serve-{time.monotonic_ns()}.txt"
        command = [sys.executable, "-m", "fedtailor", "deploy", "serve", str(folder.path)]
        with self.said.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        wait_until(lambda: "Listening" in self.text or self.ended, "the server did not start")
        found = re.search(r"port (\d+)", self.text)
        assert found, self.text
        self.port = int(found[1])

    @property
    def text(self) -> str:
        return self.said.read_text()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None


@contextmanager
def started(folder: DeployFolder, *, without: tuple[int, ...] = ()) -> Iterator[tuple[Server, dict]]:
    """A server and its sites."""
    server = Server(folder)
    sites = {
        i: start_site(folder.site(i), server.port, folder.logs / f"site-{i}.log")
        for i in range(folder.settings()[1].settings.clients)
        if i not in without
    }
    try:
        yield server, sites
    finally:
        stop([server.process, *sites.values()])


@pytest.mark.parametrize("method", ["fedrep", "fedavg", "pgfedsplit", "fedsimsup", "fedamp", "heart"])
def test_real_sites_give_the_numbers_of_inline_to_the_bit(tmp_path, method):
    words = ["clients=3", f"method={method}", "rounds=2", *(PROXY if method == "heart" else [])]
    folder = make(tmp_path / "f", *words)
    with started(folder) as (server, sites):
        wait_until(lambda: server.ended, "the run did not end")
        assert server.process.returncode == 0, server.text
        wait_until(lambda: all(site.poll() is not None for site in sites.values()), "a site did not end with the run")
        assert [site.returncode for site in sites.values()] == [0, 0, 0]
    equals_inline(folder, tmp_path / "inline")


def test_secure_sums_over_real_sites_are_those_of_inline_and_survive_a_killed_site_and_server(tmp_path):
    secure = ["method=fedrep", "privacy.body=secure-sum", "privacy.threshold=0.5"]
    rules = [f"privacy.{name}=plain" for name in ("samples", "loss", "scores", "logged")]
    folder = make(tmp_path / "f", "clients=4", "rounds=2", *secure, *rules)
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the run did not end")
        assert server.process.returncode == 0, server.text
    equals_inline(folder, tmp_path / "inline")

    folder = make(tmp_path / "g", "clients=4", "rounds=12", "timeout=20", "wait=60", *secure, *rules)
    with started(folder) as (server, sites):
        wait_until(lambda: rounds(folder) or server.ended, "no first round")
        os.kill(sites[1].pid, signal.SIGKILL)
        sites["again"] = start_site(folder.site(1), server.port, folder.logs / "site-again.log")
        seen = len(rounds(folder))
        wait_until(lambda: any(r["replied"] == 4 for r in rounds(folder)[seen + 1 :]) or server.ended, "no return")
        os.kill(server.process.pid, signal.SIGKILL)
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the resumed run did not end")
        assert server.process.returncode == 0, server.text
    assert [r["round"] for r in rounds(folder)] == list(range(1, 13))
    assert all(r["replied"] >= 3 and "sum_lost" not in r for r in rounds(folder))


def test_a_robust_mean_over_real_sites_is_that_of_inline(tmp_path):
    folder = make(tmp_path / "f", "clients=3", "method=fedrep", "rounds=2", "robust=median")
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the run did not end")
        assert server.process.returncode == 0, server.text
    equals_inline(folder, tmp_path / "inline")


@pytest.mark.parametrize(
    ("words", "spent"),
    [
        (["method=fedavg", "privacy.sample_epsilon=8", "batch=20"], "sample_epsilon"),
        (["method=fedrep", "privacy.body=dp+secure-sum", "privacy.epsilon=8", "privacy.delta=0.01"], "epsilon"),
    ],
)
def test_noise_of_real_sites_comes_from_their_own_secrets(tmp_path, words, spent):
    folder = make(tmp_path / "f", "clients=3", "rounds=2", *words)
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the run did not end")
        assert server.process.returncode == 0, server.text
    assert [r["replied"] for r in rounds(folder)] == [3, 3]
    first, last = (r[spent] for r in rounds(folder))
    assert 0 < first < last <= 8
    keys = {next(folder.site(i).rglob("noise.key")).read_bytes() for i in range(3)}
    assert len(keys) == 3
    start(folder.settings()[1], tmp_path / "inline")
    server_state = [next(path.rglob("server.safetensors")) for path in (folder.run, tmp_path / "inline")]
    there, here = map(load_file, server_state)
    assert not any(torch.equal(there[name], here[name]) for name in here)  # the run's seed does not give the noise away


def test_a_killed_site_comes_back_with_its_state_and_a_killed_server_carries_on(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedrep", "rounds=12", "timeout=60", "wait=60")
    with started(folder) as (server, sites):
        wait_until(lambda: rounds(folder) or server.ended, "no first round")
        os.kill(sites[1].pid, signal.SIGKILL)
        sites["again"] = start_site(folder.site(1), server.port, folder.logs / "site-again.log")
        seen = len(rounds(folder))
        wait_until(lambda: any(r["replied"] == 2 for r in rounds(folder)[seen + 1 :]) or server.ended, "no return")
        assert any((folder.site(1) / "state" / folder.settings()[0].federation / "fedrep").iterdir())
        os.kill(server.process.pid, signal.SIGKILL)
    before = rounds(folder)
    assert RunFolder(folder.run).state != "finished"
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the resumed run did not end")
        assert server.process.returncode == 0, server.text
    after = rounds(folder)
    assert [r["round"] for r in after] == list(range(1, 13))
    assert [r["accuracy"] for r in after[: len(before)]] == [r["accuracy"] for r in before]


def test_a_server_killed_between_rounds_ends_with_the_numbers_of_inline(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedrep", "rounds=6")
    with started(folder) as (server, _):
        wait_until(lambda: rounds(folder) or server.ended, "no first round")
        os.kill(server.process.pid, signal.SIGKILL)
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the resumed run did not end")
        assert server.process.returncode == 0, server.text
    equals_inline(folder, tmp_path / "inline")


def test_a_site_with_anothers_number_is_refused_aloud_and_the_true_one_is_not_displaced(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedavg", "rounds=4", "timeout=20")
    site = folder.site(1) / "site.toml"
    honest = site.read_text()
    site.write_text(honest.replace("client = 1", "client = 0"))
    with started(folder) as (server, sites):
        wait_until(lambda: "(client 1) refuses" in " ".join(server.text.split()) or server.ended, "nothing was said")
        assert "key is that of client 1, but its site.toml says client = 0" in " ".join(server.text.split())
        assert "refused: This site's key is that of client 1" in " ".join(
            (folder.logs / "site-1.log").read_text().split()
        )
        stop([sites[1]])
        site.write_text(honest)
        sites["again"] = start_site(folder.site(1), server.port, folder.logs / "site-again.log")
        wait_until(lambda: server.ended, "the run did not end")
    equals_inline(folder, tmp_path / "inline")


def test_a_second_process_with_the_same_key_takes_over_and_the_first_is_told(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedavg", "rounds=2")
    with started(folder, without=(1,)) as (server, _):
        first = start_site(folder.site(1), server.port, folder.logs / "first.log")
        copy = tmp_path / "copy"
        wait_until(lambda: "connected" in (folder.logs / "first.log").read_text() or server.ended, "no first site")
        subprocess.run(["cp", "-r", str(folder.site(1)), str(copy)], check=True)
        second = start_site(copy, server.port, folder.logs / "second.log")
        wait_until(lambda: first.poll() is not None or server.ended, "nobody was told")
        said = (folder.logs / "first.log").read_text()
        assert "taken its place" in said or "run is finished" in said
        wait_until(lambda: server.ended, "the run did not end")
        stop([first, second])
        assert server.process.returncode == 0, server.text


def spoilt(reply: Message, tries: int) -> Message:
    outcome = read_outcome(reply.content, "cpu")
    body = outcome.up["body"]
    bad = [body * float("nan"), body[:-1], torch.zeros(3_000_000)][tries % 3]
    reply.content = write_outcome(type(outcome)({"body": bad}, outcome.samples, outcome.loss, outcome.score))
    return reply


def hostile(folder: Path, port: int, done: threading.Event) -> None:
    """A site that answers as it should but for what it has trained."""
    own, tries = SiteProcess(folder, say=lambda text: None), 0
    with suppress(httpx.HTTPError), Connection(f"{HERE}:{port}", folder) as line:
        while not done.is_set():
            message = line.receive()
            if message is None:
                time.sleep(0.05)
                continue
            plain, _ = read_call(message.content, "cpu")
            reply, ended = own._answer(message)
            if plain["work"].trains and reply.has_content():
                reply, tries = spoilt(reply, tries), tries + 1
            line.send(reply)
            if ended:
                return


def test_a_site_that_sends_rubbish_does_not_stop_the_rounds(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedrep", "rounds=3", "timeout=60", "max_reply_mb=10")
    done = threading.Event()
    with started(folder, without=(1,)) as (server, _):
        thread = threading.Thread(target=hostile, args=(folder.site(1), server.port, done))
        thread.start()
        wait_until(lambda: server.ended, "the run did not end")
        done.set()
        thread.join()
    said = " ".join(server.text.split())
    assert RunFolder(folder.run).state == "finished", said
    assert [(r["replied"], r["rejected"] + r["missing"] > 0) for r in rounds(folder)] == [(1, True)] * 3
    for fault in ("not finite", "was sent to it", "are allowed"):
        assert fault in said


def test_a_site_refuses_what_its_policy_forbids_and_the_server_is_told(tmp_path):
    folder = make(tmp_path / "f", "clients=1", "method=fedavg", "rounds=1", "timeout=10", "wait=15")
    site = folder.site(0) / "site.toml"
    values = tomllib.loads(site.read_text())
    values["policy"]["methods"] = ["fedrep"]
    site.write_text(tomli_w.dumps(values))
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the run did not end")
        assert server.process.returncode == 2
        assert "takes part in fedrep, not in fedavg" in " ".join(server.text.split())


def test_up_shows_the_rounds_and_leaves_nothing_running_however_it_ends(tmp_path):
    command = [sys.executable, "-m", "fedtailor", "deploy", "up", *WORDS, "clients=2", "method=fedavg"]
    out = subprocess.run(
        [*command, "rounds=2", "--out", str(tmp_path / "whole")], capture_output=True, text=True, timeout=PATIENCE
    )
    assert out.returncode == 0, out.stdout + out.stderr
    assert "accuracy" in out.stdout
    assert "sites/*/models" in out.stdout
    assert not running(tmp_path / "whole")
    killed = subprocess.Popen([*command, "rounds=500", "--out", str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
    wait_until(lambda: len(running(tmp_path / "killed")) > 2, "nothing was started")
    killed.kill()
    killed.wait()
    wait_until(lambda: not running(tmp_path / "killed"), "something was left running")


def running(folder: Path) -> list[str]:
    """Processes that work for a federation: their commands name its folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_text()
            if str(folder) in command:
                found.append(command)
    return found


def test_a_new_site_joins_over_the_network(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedrep", "rounds=1")
    command = [sys.executable, "-m", "fedtailor", "deploy"]
    ran = subprocess.run(
        [*command, "up", "--resume", str(folder.path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    words = ["data=digits", "data.fraction=0.1"]
    joined = subprocess.run(
        [*command, "join", str(folder.path), *words], capture_output=True, text=True, timeout=PATIENCE
    )
    assert joined.returncode == 0, joined.stdout + joined.stderr
    assert "before it trained" in " ".join(joined.stdout.split())
    assert load_file(folder.site("newcomer") / "models" / "newcomer.safetensors")


def test_sites_with_other_categories_are_refused_in_words_and_train_once_they_have_one_description(tmp_path):
    words = ["data=sites", "clients=2", "method=fedrep", "net=mlp", "net.hidden=[8]", "rounds=2", f"listen={HERE}"]
    folder = DeployFolder.create(tmp_path / "f", *with_overrides({}, [*words, "port=0"]), [HERE])
    folder.logs.mkdir()
    for i, stages in enumerate((("I", "II", "III"), ("II", "III", "IV"))):
        rows = [f"{stages[k % 3]},{50 + k % 7},{'dead' if k % 2 else 'alive'}" for k in range(40)]
        (folder.site(i) / "data.csv").write_text("\n".join(["stage,age,label", *rows]))
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the server did not end")
    said = " ".join(server.text.split())
    assert server.process.returncode == 2
    assert "columns 'stage' do not have the same values: 'I' only at site 0 (site-0); 'IV' only at site 1" in said
    assert f"fedtailor deploy describe {folder.path}" in said
    assert not rounds(folder)
    folder.describe()
    shutil.copy(
        folder.description, folder.site(1) / "ours.json"
    )  # its operator has checked it, and discloses nothing more
    toml = (folder.site(1) / "site.toml").read_text()
    toml = re.sub(r"may_describe = \[[^]]*\]", "may_describe = []", f'description = "ours.json"\n{toml}')
    (folder.site(1) / "site.toml").write_text(toml)
    with started(folder) as (server, sites):
        wait_until(lambda: server.ended, "the run did not end")
        assert server.process.returncode == 0, server.text
        wait_until(lambda: all(site.poll() is not None for site in sites.values()), "a site did not end with the run")
    assert [r["replied"] for r in rounds(folder)] == [2, 2]
    for place in (folder.run, folder.site(0), folder.site(1)):
        assert (place / "description.json").read_text() == folder.description.read_text()


def test_a_private_federation_keeps_counts_and_scores_at_its_sites_and_its_noise_secret(tmp_path):
    """Killed after its first round, the server goes on with the same noise, and nothing is spent twice."""
    pytest.importorskip("dp_accounting")
    folder = make(
        tmp_path / "fed",
        "clients=2",
        "rounds=3",
        "method=fedrep",
        "privacy.body=dp",
        "privacy.noise=1",
        "privacy.delta=0.001",
    )
    with started(folder) as (server, _):
        wait_until(lambda: rounds(folder) or server.ended, "no first round")
        os.kill(server.process.pid, signal.SIGKILL)
    with started(folder) as (server, _):
        wait_until(lambda: server.ended, "the resumed run did not end")
        assert server.process.returncode == 0, server.text
    secret = folder.path / "noise.json"
    assert secret.stat().st_mode & 0o777 == 0o600
    released = json.loads(secret.read_text())["released"]
    assert all(len(digests) == 1 for digests in released.values())
    records = rounds(folder)
    assert records[-1]["epsilon"] > records[0]["epsilon"] > 0
    assert all(r["train_loss"] is None and r["accuracy"] is None for r in records)
    key = json.loads(secret.read_text())["secret"]
    others = [file for file in (folder.path / "run").rglob("*") if file.is_file()]
    assert not any(key.encode() in file.read_bytes() for file in others)
