"""Runs are averaged only if nothing but the seed differs, and compared only on equal clients."""

from __future__ import annotations

from fedtailor.analysis.groups import by_federation, by_method
from fedtailor.analysis.results import read_run


def names(groups):
    return {name: [r.path.name for r in runs] for name, runs in groups.items()}


def test_seeds_belong_together_and_every_other_difference_is_named(make_run):
    runs = [
        make_run("a", "method=fedrep"),
        make_run("b", "method=fedrep", "seed=1", "save_models=false"),
        make_run("c", "method=fedrep", "lr=0.1"),
        make_run("d", "method=fedrep", "method.head_epochs=5"),
        make_run("e", "method=fedavg", "net=mlp"),
        make_run("f", "method=fedavg", "net=mlp", "net.hidden=[8]"),
    ]
    groups = names(by_method([read_run(r) for r in runs]))
    net = read_run(runs[0]).config["net"]["name"]
    assert groups == {
        f"fedrep (lr=0.05, net={net})": ["a", "b"],
        f"fedrep (lr=0.1, net={net})": ["c"],
        f"fedrep (lr=0.05, head_epochs=5, net={net})": ["d"],
        "fedavg (lr=0.05, net=mlp, net.hidden=[200])": ["e"],
        "fedavg (lr=0.05, net=mlp, net.hidden=[8])": ["f"],
    }


def test_variants_are_named_by_what_they_change(make_run):
    words = [["method.akt=false"], ["method.views=clean", "method.hda_layers=[3]"], []]
    runs = [make_run(n, "method=heart", *own) for n, own in zip("abc", words, strict=True)]
    groups = names(by_method([read_run(r) for r in runs]))
    assert groups == {"heart (akt=False)": ["a"], "heart (hda_layers=[3], views=clean)": ["b"], "heart": ["c"]}


def test_two_files_of_one_name_are_two_methods(make_run):
    runs = [make_run(n, config={"method": {"name": f"{n}/mine.py"}}) for n in "ab"]
    assert list(names(by_method([read_run(r) for r in runs]))) == ["mine (file=a/mine.py)", "mine (file=b/mine.py)"]


def test_clients_are_the_same_only_with_equal_data_and_partition(make_run):
    runs = [
        make_run("a", "partition.beta=0.1"),
        make_run("b", "partition.beta=0.1", "method=fedavg", "lr=1"),
        make_run("c", "partition.beta=0.5"),
        make_run("d", clients=[0.5, 0.5]),
    ]
    groups = names(by_federation([read_run(r) for r in runs]))
    assert list(groups.values()) == [["a", "b"], ["c"], ["d"]]
    assert [name.split(" clients")[0] for name in groups] == ["digits, 3", "digits, 3", "digits, 2"]
    assert "partition.beta=0.5" in list(groups)[1]


def test_a_run_without_a_result_stays_with_its_federation(make_run):
    words = ("data=table", "data.path=x.csv", "data.client=who", "data.label=y", "clients=0")
    runs = [make_run("a", *words), make_run("b", *words, accuracy=[], clients=[])]
    (groups,) = [by_federation([read_run(r) for r in runs])]
    assert [len(g) for g in groups.values()] == [2]
    assert list(groups) == ["table, 3 clients, natural partition"]
