from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from bench.peer_job import Job, Timing
from bench.peers import (
    NotAvailable,
    Peer,
    as_markdown,
    compared,
    environment,
    in_turns,
    parsed,
    peers_of,
    run,
    table,
    theirs,
)


@pytest.fixture
def job() -> Job:
    sizes = ((7, 3), (12, 0), (4, 5))  # one client without test samples, one with fewer samples than a batch
    drawn = [torch.randn(n, 1, 16, 16) for pair in sizes for n in pair]
    labels = [torch.randint(0, 3, (len(x),)) for x in drawn]
    clients = [(drawn[i], labels[i], drawn[i + 1], labels[i + 1]) for i in range(0, len(drawn), 2)]
    return Job(clients, torch.randn(32 * 26 + 64 * (32 * 25 + 1) + 512 * 65 + 3 * 513), 3, 2, 5, 0.01, 1)


def test_a_job_survives_its_file(job: Job, tmp_path: Path) -> None:
    job.save(tmp_path / "job.npz")
    again = Job.load(tmp_path / "job.npz")
    assert (again.classes, again.rounds, again.batch, again.lr, again.epochs) == (3, 2, 5, 0.01, 1)
    assert torch.equal(again.start, job.start)
    for one, other in zip(job.clients, again.clients, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_batches_are_whole_and_keep_samples_with_their_labels(job: Job) -> None:
    x = torch.arange(12.0)
    batches = list(job.batches(x, x))
    assert [len(rows) for rows, _ in batches] == [5, 5]
    assert all(torch.equal(rows, labels) for rows, labels in batches)
    assert len(torch.cat([rows for rows, _ in batches]).unique()) == 10
    assert [len(rows) for rows, _ in job.batches(x[:4], x[:4])] == [4]


def test_the_net_starts_with_the_jobs_weights_without_sharing_them(job: Job) -> None:
    before = job.start.clone()
    with torch.no_grad():
        for p in job.net.parameters():
            p += 1
    assert torch.equal(job.start, before)
    assert torch.allclose(next(job.net.parameters()).flatten(), before[: 32 * 25] + 1)


def test_the_shortest_round_after_a_first_counts_and_other_work_is_told() -> None:
    rows = compared(
        {
            "bare loop": [Timing("torch 1", [0.5, 2.0, 4.0], 60.0), Timing("torch 1", [0.5, 5.0], 61.0)],
            "near": [Timing("near 1", [1.0, 6.0, 9.0], 62.9), Timing("near 1", [2.5, 3.0], 57.1)],
            "far": [Timing("far 1", [1.0, 2.0, 2.0], 60.0), Timing("far 1", [1.0, 2.0, 2.0], 56.9)],
            "gone": "it cannot be installed: no space left",
        }
    )
    assert rows["near"]["seconds"] == 3.0
    assert rows["near"]["ratio"] == 1.5
    assert [rows[name]["same_work"] for name in ("bare loop", "near", "far")] == [True, True, False]
    lines = table(rows).splitlines()
    assert lines[2].split() == ["near", "3.00", "1.50", "62.90"]
    assert lines[3].endswith("not the same work")
    assert lines[4] == f"{'gone':<22}  not available: it cannot be installed: no space left"


def test_everyone_runs_forwards_and_backwards_but_no_one_is_tried_again_who_failed() -> None:
    order = []

    def good(name: str) -> Timing:
        order.append(name)
        return Timing(name, [1.0], 50.0)

    def bad() -> Timing:
        order.append("bad")
        raise NotAvailable("no network")

    found = in_turns({"a": lambda: good("a"), "bad": bad, "b": lambda: good("b")})
    assert order == ["a", "bad", "b", "b", "a"]
    assert found == {"a": [Timing("a", [1.0], 50.0)] * 2, "bad": "no network", "b": [Timing("b", [1.0], 50.0)] * 2}


def test_a_timing_is_found_among_other_lines() -> None:
    timing = Timing("pfl 1", [1.0, 0.5], 61.5)
    assert Timing.from_output(f"{{a log}}\n{timing.to_line()}\nbye\n") == timing
    assert Timing.from_output("killed\n") is None


def test_a_peer_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the environment would be")
    job = tmp_path / "job.npz"
    with pytest.raises(NotAvailable, match="it cannot be installed: Error: "):
        theirs(Peer("taken", ("peer",), ()), tmp_path, job)
    with pytest.raises(NotAvailable, match=r"it did not finish: .*No module named bench\.nobody"):
        run(Peer("missing", ("peer",), ("bench.nobody",)), Path(sys.executable), job)


def test_an_environment_that_is_whole_is_kept(tmp_path: Path) -> None:
    (tmp_path / "installed.txt").write_text("torch==1\npeer==2")
    assert environment(tmp_path, ["torch==1", "peer==2"]) == tmp_path / "bin" / "python"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--json", "a.json", "--rounds", "1"],
        ["--json", "no/such/folder/a.json"],
        ["--json", "a.json", "--pfllib", "."],
    ],
)
def test_words_that_cannot_work_are_refused_at_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(words)
    assert "--" in capsys.readouterr().err


def test_the_peers_are_those_that_have_the_method_and_were_asked_for(tmp_path: Path) -> None:
    (tmp_path / "system" / "flcore").mkdir(parents=True)
    checkout = ["--pfllib", str(tmp_path)]

    def names(*words: str) -> set[str]:
        return {peer.name for peer in peers_of(parsed(["--json", "a.json", *words])).values()}

    assert names() == {"pfl", "flower"}
    assert names(*checkout) == {"pfl", "flower", "pfllib"}
    assert names(*checkout, "--method", "fedrep") == {"pfllib"}
    assert names(*checkout, "--peers", "pfl,pfllib") == {"pfl", "pfllib"}


def test_defaults() -> None:
    args = parsed(["--json", "a.json"])
    assert (args.rounds, args.fraction, args.venv.name) == (3, 0.2, ".venv-peers")


def test_the_table_of_a_page_has_times_and_reasons() -> None:
    rows = {
        "bare loop": {"version": "torch 2", "seconds": 2.0, "ratio": 1.0, "accuracy": 91.0, "same_work": True},
        "flower": {"not_available": "it did not finish"},
    }
    lines = as_markdown(rows).splitlines()
    assert lines[2:] == [
        "| bare loop | torch 2 | 2.00 | 1.00 | 91.00 |",
        "| flower | not available: it did not finish | | | |",
    ]
