from __future__ import annotations

from fedtailor.auditing.client_canaries import client_canaries


def test_a_plain_mean_tells_who_took_part(subject_of):
    finding = client_canaries(subject_of("fedavg"))
    assert finding.entry == "model"
    assert finding.details["correct"] == finding.details["guesses"] == 200
    assert finding.score == finding.high > 4  # all that so many canaries can show
    assert "no ε is promised" in finding.verdict


def test_a_method_without_means_is_left_out(subject_of):
    assert client_canaries(subject_of("fedproto")) is None


def test_canaries_leave_the_server_as_it_was(subject_of):
    server = subject_of("fedrep").simulation.server
    before, round = server.state["body"].clone(), server.round
    client_canaries(subject_of("fedrep"))
    assert server.state["body"].equal(before)
    assert server.round == round
