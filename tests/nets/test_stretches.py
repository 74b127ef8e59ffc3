import torch

from fedtailor.nets.stretches import Stretches


def test_neighbours_are_one_stretch_and_its_vector_is_the_memory_itself() -> None:
    flat = torch.arange(10.0)
    stretches = Stretches(flat, [flat[2:4].view(2, 1), flat[4:7]])
    assert stretches.whole
    assert len(stretches) == 5
    stretches.joined.zero_()
    assert flat.tolist() == [0, 1, 0, 0, 0, 0, 0, 7, 8, 9]
    copy = stretches.copy()
    copy.fill_(5)
    assert flat[2:7].abs().sum() == 0


def test_several_stretches_are_read_and_written_as_one_vector() -> None:
    flat = torch.arange(10.0)
    stretches = Stretches(flat, [flat[1:3], flat[5:6], flat[8:10]])
    assert not stretches.whole
    assert stretches.joined.tolist() == [1, 2, 5, 8, 9]
    stretches.load(-torch.ones(5))
    assert flat.tolist() == [0, -1, -1, 3, 4, -1, 6, 7, -1, -1]


def test_places_of_some_stretches_in_the_vector_of_others() -> None:
    flat = torch.arange(10.0)
    outer = Stretches(flat, [flat[0:4], flat[6:10]])
    inner = Stretches(flat, [flat[1:3], flat[7:8]])
    assert outer.places(inner) == [slice(1, 3), slice(5, 6)]
    assert inner.places(outer) is None
    assert outer.places(Stretches(flat, [flat[3:7]])) is None
    assert outer.places(Stretches(flat, [])) == [slice(0, 0)]
    assert len(Stretches(flat, [])) == 0
