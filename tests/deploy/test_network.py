"""Federations over real SuperLink and SuperNode processes on the loopback network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedtailor.deploy.folder import DeployFolder
from fedtailor.deploy.local import HERE, Fleet, fleet, free_port
from fedtailor.deploy.terms import from_words
from fedtailor.experiment.folder import RunFolder, read_lines
from fedtailor.experiment.run import start

pytestmark = [pytest.mark.network, pytest.mark.skipif(sys.platform != "linux", reason="counts processes by /proc")]

WORDS = ["data=digits", "data.fraction=0.2", "net=mlp", "net.hidden=[8]", "checkpoint_every=1"]
PROXY = ["partition=paired", "net=cnn", "method.pgd_steps=1", "method.akt_steps=2"]
PATIENCE = 600.0  # seconds: a busy machine starts processes slowly


def make(path: Path, *words: str, tls: bool = False) -> DeployFolder:
    terms, config = from_words({}, [*WORDS, *words])
    return DeployFolder.create(path, terms, config, [HERE], 9092, tls=tls)


def wait_until(what: Callable[[], bool], said: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def rounds(folder: DeployFolder) -> list[dict]:
    return read_lines(RunFolder(folder.run).metrics)


def ended(programs: Fleet) -> bool:
    return not programs.running("run")


def numbers(run: Path) -> list[dict]:
    own = ("missing", "rejected")
    records = read_lines(run / "metrics.jsonl")
    return [{k: v for k, v in r.items() if not k.startswith("seconds_") and k not in own} for r in records]


def equals_inline(folder: DeployFolder, inline: Path, sites: DeployFolder) -> None:
    config = folder.terms()[1]
    start(config, inline)
    assert numbers(folder.run) == numbers(inline)
    for file in ("ledger.csv", "clients.jsonl"):
        assert (folder.run / file).read_text() == (inline / file).read_text()
    for i in range(config.settings.clients):
        name = f"client-{i:05d}.safetensors"
        there, here = load_file(sites.site(i) / "models" / name), load_file(inline / "models" / name)
        assert all(torch.equal(there[key], here[key]) for key in here)


@contextmanager
def started(folder: DeployFolder) -> Iterator[Fleet]:
    """A server, all its sites, and the run."""
    with fleet(folder) as programs:
        programs.start_link()
        for i in range(folder.terms()[1].settings.clients):
            programs.start_site(i)
        programs.submit()
        yield programs


@pytest.fixture(scope="module")
def four_sites(tmp_path_factory) -> Iterator[tuple[DeployFolder, Fleet]]:
    """One set of nodes that serves several runs."""
    home = make(tmp_path_factory.mktemp("federation") / "sites", "clients=4")
    with fleet(home) as programs:
        programs.start_link()
        for i in range(4):
            programs.start_site(i)
        yield home, programs


@pytest.mark.parametrize("method", ["fedrep", "fedavg", "pgfedsplit", "fedsimsup", "fedamp", "heart"])
def test_real_nodes_give_the_numbers_of_inline_to_the_bit(tmp_path, four_sites, method):
    home, nodes = four_sites
    folder = make(tmp_path / "run", "clients=4", f"method={method}", "rounds=2", *(PROXY if method == "heart" else []))
    folder.connect(f"{HERE}:{nodes.port}")
    with fleet(folder) as programs:
        programs.submit()
        wait_until(lambda: ended(programs), "the run did not end")
        assert RunFolder(folder.run).state == "finished", programs.log("run").read_text()
    equals_inline(folder, tmp_path / "inline", home)


def test_a_killed_node_comes_back_with_its_state_and_a_killed_server_carries_on(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedrep", "rounds=4", "timeout=60")
    with started(folder) as programs:
        wait_until(lambda: len(rounds(folder)) >= 1 or ended(programs), "no first round")
        os.killpg(programs.processes["site-1"].pid, signal.SIGKILL)
        programs.start_site(1)
        wait_until(
            lambda: any(r["replied"] == 2 for r in rounds(folder)[1:]) or ended(programs), "site 1 did not return"
        )
        states = folder.site(1) / "state" / folder.terms()[0].federation / "fedrep"
        assert any(states.iterdir())
        os.killpg(programs.processes["superlink"].pid, signal.SIGKILL)
    before = rounds(folder)
    assert RunFolder(folder.run).state != "finished"
    with started(folder) as programs:
        wait_until(lambda: ended(programs), "the resumed run did not end")
    after = rounds(folder)
    assert RunFolder(folder.run).state == "finished"
    assert [r["round"] for r in after] == [1, 2, 3, 4]
    assert [r["accuracy"] for r in after[: len(before)]] == [r["accuracy"] for r in before]
    for i in range(2):
        assert (folder.site(i) / "models" / f"client-{i:05d}.safetensors").exists()


def test_a_server_killed_between_rounds_ends_with_the_numbers_of_inline(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedrep", "rounds=3")
    for part in range(2):
        with started(folder) as programs:
            wait_until(lambda p=part: (p == 0 and rounds(folder)) or ended(programs), "no progress")
            os.killpg(programs.processes["superlink"].pid, signal.SIGKILL)
    assert RunFolder(folder.run).state == "finished"
    equals_inline(folder, tmp_path / "inline", folder)


def test_with_tls_only_registered_keys_get_in(tmp_path):
    folder = make(tmp_path / "f", "clients=1", "method=fedavg", "rounds=1", tls=True)
    folder.write_newcomer([])
    with fleet(folder) as programs:
        programs.start_link()
        programs.start_site("newcomer")  # its key is not registered
        plain = ["flower-supernode", "--insecure", "--superlink", f"{HERE}:{programs.port}", "--max-retries", "1"]
        programs._start("plain", plain[0], [*plain[1:], "--host", HERE, "--port", str(free_port())], folder.site(0))
        programs.register(0)
        programs.start_site(0)
        programs.submit()
        wait_until(lambda: ended(programs), "the run did not end")
        assert RunFolder(folder.run).state == "finished", programs.log("run").read_text()
        wait_until(lambda: not programs.running("site-newcomer"), "the unregistered node is still there")
        wait_until(lambda: not programs.running("plain"), "the node without encryption is still there")
        assert programs.processes["site-newcomer"].returncode != 0
        assert programs.processes["plain"].returncode != 0
    equals_inline(folder, tmp_path / "inline", folder)


BAD = """
import os
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from fedtailor.deploy import doorway

app = ClientApp()

@app.train()
@app.evaluate()
@app.query()
def answer(message, context):
    reply = doorway.answer(message, context)
    if context.node_config["client"] == 1 and message.metadata.message_type == "train":
        with open("tries", "a") as file:
            file.write("x")
        tries = os.path.getsize("tries")
        if tries == 4:
            os._exit(1)
        body = reply.content["payload"]["body"].numpy()
        spoilt = [body * np.nan, body[:-1], np.zeros(3_000_000, np.float32)][tries - 1]
        reply.content["payload"] = ArrayRecord({"body": Array(spoilt)})
    return reply
"""


def test_a_node_that_sends_rubbish_or_nothing_does_not_stop_the_rounds(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedrep", "rounds=4", "timeout=60", "max_reply_mb=10")
    (folder.app / "bad.py").write_text(BAD)
    project = folder.app / "pyproject.toml"
    project.write_text(project.read_text().replace("fedtailor.deploy.doorway:app", "bad:app"))
    with started(folder) as programs:
        wait_until(lambda: ended(programs), "the run did not end")
        said = programs.log("run").read_text()
    assert RunFolder(folder.run).state == "finished", said
    assert [(r["replied"], r["rejected"] + r["missing"] > 0) for r in rounds(folder)] == [(1, True)] * 4
    for fault in ("not finite", "was sent to it", "are allowed"):
        assert fault in said


def test_up_shows_the_rounds_and_leaves_nothing_running_however_it_ends(tmp_path):
    command = [sys.executable, "-m", "fedtailor.cli", "deploy", "up", *WORDS, "clients=2", "method=fedavg", "rounds=2"]
    out = subprocess.run([*command, "--out", str(tmp_path / "whole")], capture_output=True, text=True, timeout=PATIENCE)
    assert out.returncode == 0, out.stdout + out.stderr
    assert "accuracy" in out.stdout
    assert "sites/*/models" in out.stdout
    assert not running(tmp_path / "whole")
    killed = subprocess.Popen([*command, "rounds=50", "--out", str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
    wait_until(lambda: len(running(tmp_path / "killed")) > 4, "nothing was started")
    killed.kill()
    killed.wait()
    wait_until(lambda: not running(tmp_path / "killed"), "something was left running")


def running(folder: Path) -> list[str]:
    """Processes that work for a federation: their environment names its folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_a_new_site_joins_over_the_network(tmp_path):
    folder = make(tmp_path / "f", "clients=2", "method=fedrep", "rounds=1")
    command = [sys.executable, "-m", "fedtailor.cli", "deploy"]
    ran = subprocess.run(
        [*command, "up", "--resume", str(folder.path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    words = ["data=digits", "data.fraction=0.1"]
    joined = subprocess.run(
        [*command, "join", str(folder.path), *words], capture_output=True, text=True, timeout=PATIENCE
    )
    assert joined.returncode == 0, joined.stdout + joined.stderr
    assert "before it trained" in joined.stdout
    assert load_file(folder.newcomer_model)
