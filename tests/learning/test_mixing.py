import torch

from fedtailor.learning import mixing
from fedtailor.learning.mixing import mix_into_rows


def test_rows_are_mixed_with_vectors_in_blocks_as_at_once(monkeypatch):
    monkeypatch.setattr(mixing, "BLOCK", 3)
    stream = torch.Generator().manual_seed(0)
    rows, vectors = torch.randn(4, 10, generator=stream), list(torch.randn(2, 10, generator=stream))
    kept, taken = torch.tensor([[0.5], [1.0]]), torch.tensor([[0.3, 0.2], [0.0, 0.0]])
    chosen = torch.tensor([True, False, False, True])
    expected = rows.clone()
    expected[chosen] = kept * rows[chosen] + taken @ torch.stack(vectors)
    mix_into_rows(rows, chosen, kept, taken, vectors)
    torch.testing.assert_close(rows, expected)
    assert torch.equal(rows[3], expected[3])
