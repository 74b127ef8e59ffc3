import torch

from fedtailor.nets.spans import Spans


def test_neighbours_are_one_stretch_and_its_vector_is_the_memory_itself() -> None:
    flat = torch.arange(10.0)
    spans = Spans(flat, [flat[2:4].view(2, 1), flat[4:7]])
    assert spans.whole
    assert len(spans) == 5
    spans.joined.zero_()
    assert flat.tolist() == [0, 1, 0, 0, 0, 0, 0, 7, 8, 9]
    copy = spans.copy()
    copy.fill_(5)
    assert flat[2:7].abs().sum() == 0


def test_several_spans_are_read_and_written_as_one_vector() -> None:
    flat = torch.arange(10.0)
    spans = Spans(flat, [flat[1:3], flat[5:6], flat[8:10]])
    assert not spans.whole
    assert spans.joined.tolist() == [1, 2, 5, 8, 9]
    spans.load(-torch.ones(5))
    assert flat.tolist() == [0, -1, -1, 3, 4, -1, 6, 7, -1, -1]


def test_places_of_some_spans_in_the_vector_of_others() -> None:
    flat = torch.arange(10.0)
    outer = Spans(flat, [flat[0:4], flat[6:10]])
    inner = Spans(flat, [flat[1:3], flat[7:8]])
    assert outer.places(inner) == [slice(1, 3), slice(5, 6)]
    assert inner.places(outer) is None
    assert outer.places(Spans(flat, [flat[3:7]])) is None
    assert outer.places(Spans(flat, [])) == [slice(0, 0)]
    assert len(Spans(flat, [])) == 0
