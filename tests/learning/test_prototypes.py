from __future__ import annotations

import torch
from torch.nn import functional as F

from fedtailor.learning import class_means, mean_of_means, mixed, near_prototypes, prototype_distance
from fedtailor.nets.net import Net

Z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]])
Y = torch.tensor([0, 0, 2])


def test_class_means_by_hand():
    means, counts = class_means(Z, Y, 4)
    assert means.tolist() == [[2, 3], [0, 0], [10, 0], [0, 0]]
    assert counts.tolist() == [2, 0, 1, 0]


def test_means_over_clients_count_only_those_that_have_the_class():
    a, b = class_means(Z, Y, 3), class_means(torch.tensor([[6.0, 5.0]]), torch.tensor([0]), 3)
    plain, known = mean_of_means([a[0], b[0]], [a[1], b[1]])
    assert plain.tolist() == [[4, 4], [0, 0], [10, 0]]
    assert known.tolist() == [True, False, True]
    weighted, _ = mean_of_means([a[0], b[0]], [a[1], b[1]], weighted=True)
    torch.testing.assert_close(weighted[0], torch.tensor([(2 * 2 + 6) / 3, (2 * 3 + 5) / 3]))


def test_distance_to_prototypes_leaves_out_unknown_classes():
    prototypes = torch.tensor([[0.0, 0.0], [9.0, 9.0], [7.0, 7.0]])
    known = torch.tensor([True, True, False])
    expected = ((1 + 4) / 2 + (9 + 16) / 2 + 0) / 3
    torch.testing.assert_close(prototype_distance(Z, Y, prototypes, known), torch.tensor(expected))


def test_mixing_by_one_share_and_by_one_for_each_entry():
    own, other = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])
    torch.testing.assert_close(mixed(own, other, 0.25), torch.tensor([2.5, 5.0]))
    torch.testing.assert_close(mixed(own, other, torch.tensor([0.0, 1.0])), torch.tensor([3.0, 2.0]))


def test_cross_entropy_near_prototypes_adds_the_distance():
    net = Net(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)))
    payload = {"prototypes": torch.ones(3, 2), "known": torch.tensor([True, False, True])}
    plain, distance = F.cross_entropy(net(Z), Y), prototype_distance(net.features(Z), Y, **payload)
    torch.testing.assert_close(near_prototypes(F.cross_entropy, payload, 0.3)(net, Z, Y), plain + 0.3 * distance)
    summed = near_prototypes(F.cross_entropy, payload, 0.3, reduction="sum")
    torch.testing.assert_close(summed(net, Z, Y), plain + 0.3 * 2 * distance)


def test_without_strength_or_prototypes_the_tasks_loss_is_left_alone():
    payload = {"prototypes": torch.ones(3, 2), "known": torch.tensor([True, False, True])}
    assert near_prototypes(F.cross_entropy, payload, 0) is None
    assert near_prototypes(F.cross_entropy, {}, 0.3) is None
