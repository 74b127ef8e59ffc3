from __future__ import annotations

import math

import pytest
import torch

from fedtailor.auditing.views import OTHERS, SERVER, Exchange, View


def exchange() -> Exchange:
    sent = {"body": torch.zeros(3, dtype=torch.float64)}
    reply = {"body": torch.tensor([3.0, 0.0, 0.0]).double(), "head": torch.tensor([0.0, 4.0]).double()}
    return Exchange(0, sent, {"body": sent["body"], "head": torch.ones(2).double()}, reply)


def test_the_server_sees_the_reply_itself():
    seen = View(SERVER, ("body",)).seen(exchange(), torch.Generator())
    assert seen.reply.keys() == {"body"}
    assert seen.reply["body"] is not None
    assert seen.reply["body"].tolist() == [3, 0, 0]


def test_changes_are_clipped_jointly_and_what_was_not_sent_is_its_own_change():
    seen = View(OTHERS, ("body", "head"), clip=1.0).seen(exchange(), torch.Generator())
    assert seen.reply["body"].tolist() == pytest.approx([0.6, 0, 0])
    assert seen.reply["head"].tolist() == pytest.approx([0, 0.8])
    assert seen.known["head"].tolist() == [0, 0]


def test_noise_is_a_multiple_of_the_clip():
    wide = Exchange(0, {}, {}, {"body": torch.zeros(100_000)})
    seen = View(OTHERS, ("body",), clip=0.5, noise=3.0).seen(wide, torch.Generator().manual_seed(0))
    assert float(seen.reply["body"].std()) == pytest.approx(1.5, rel=0.01)
    assert math.isinf(View(SERVER, ()).clip)
