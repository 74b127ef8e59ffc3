"""Kinds of work: what each asks of a client, and that a word from elsewhere is one of them."""

from __future__ import annotations

import json

import pytest

from fedtailor import Simulation
from fedtailor.engines import Inline, Work
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.learning import Protocol
from fedtailor.methods.fedrep import FedRep
from fedtailor.nets.mlp import MLP


def test_a_kind_of_work_travels_as_its_word():
    assert json.loads(json.dumps({"work": Work.FIT_AND_SCORE})) == {"work": "fit+score"}
    assert all(Work(str(work)) is work for work in Work)
    with pytest.raises(ValueError, match="'fit\\+rm' is not a valid Work"):
        Work("fit+rm")


def test_what_each_kind_of_work_does():
    assert {w for w in Work if w.trains} == {"fit", "fit+score"}
    assert {w for w in Work if w.scores} == {"fit+score", "score", "sync+score"}
    assert {w for w in Work if w.changes_state} == {"fit", "fit+score", "sync", "sync+score", "finish"}


def test_a_worker_refuses_what_only_sites_do(federation):
    worker = Worker(federation, FedRep(), MLP(hidden=(4,)), None, Protocol())
    for work in (Work.DESCRIBE, Work.SAVE_MODEL, Work.ONBOARD, Work.END):
        with pytest.raises(ValueError, match=f"does not serve '{work}'"):
            worker.serve(work, 0, 1, {})


class Elsewhere(Inline):
    """An engine whose clients keep their states to themselves."""

    holds_states = False

    def call(self, work, round, clients, send):
        assert work not in (Work.GET_STATE, Work.SET_STATE, Work.DROP_STATE)
        return {} if work is Work.SAVE_MODEL else super().call(work, round, clients, send)


def test_states_are_asked_for_only_where_the_engine_holds_them(federation, tmp_path):
    protocol = Protocol(rounds=1, epochs=1)
    engine = Elsewhere(Worker(federation, FedRep(), MLP(hidden=(4,)), None, protocol))
    run = Simulation(federation, FedRep(), MLP(hidden=(4,)), engine=engine, protocol=protocol).run()
    run.restore(1, run.server.state, {}, run.metrics)
    run.save_models(tmp_path / "models")
    assert not (tmp_path / "models").exists()
    for look in (run.state, run.personal):
        with pytest.raises(FedTailorError, match="stays on its own disk"):
            look(0)
