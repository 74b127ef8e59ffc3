from fedtailor.learning.drawn_nets import DrawnNets


def test_every_client_draws_one_name_for_good_and_about_equally_often():
    nets = DrawnNets(" a, b,c", seed=0, purpose="supervisor")
    groups = nets.groups(900)
    assert list(groups) == nets.names == ["a", "b", "c"]
    assert sorted(i for members in groups.values() for i in members) == list(range(900))
    assert all(240 < len(members) < 360 for members in groups.values())
    assert all(nets.name(i) == "b" and nets.index(i) == 1 for i in groups["b"])
    assert nets.groups(10)["a"] == [i for i in groups["a"] if i < 10]


def test_seed_and_purpose_matter():
    drawn = [DrawnNets("a,b", seed, purpose).groups(50) for seed, purpose in ((0, "x"), (1, "x"), (0, "y"))]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
