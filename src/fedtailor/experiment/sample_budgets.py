"""What each client of a simulation may spend of its samples' privacy, solved for before the first round."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from fedtailor.engines.base import Outcome
from fedtailor.engines.worker import Worker
from fedtailor.experiment.callbacks import Record
from fedtailor.experiment.sampling import select
from fedtailor.learning import Server
from fedtailor.privacy.rules import Privacy
from fedtailor.privacy.sample_dp import EPSILON, Budget, SampleOptions, budget, check_run

log = logging.getLogger("fedtailor")
MANY = 20  # clients of different sizes, from which on solving takes long enough to be announced


def protect_samples(privacy: Privacy | None, worker: Worker, server: Server) -> None:
    """Have a worker's clients protect single samples, if the run asks for it; `server` is one that is not needed afterwards."""
    if privacy is not None and privacy.samples is not None:
        worker.protect(sample_budgets(privacy.samples, worker, server))


def sample_budgets(asked: SampleOptions, worker: Worker, server: Server) -> dict[int, Budget]:
    """Return the budget of each client, for the rounds in which it will take part.

    Who takes part follows from the seed and not from samples, so it may be known in advance.
    """
    method, protocol = worker.method, worker.protocol
    check_run(method, protocol, worker.modules.lend("model")[0])
    candidates = [i for i, size in enumerate(server.sizes) if size]
    poisson = any(
        rule.dp and not rule.secure_sum for rule in worker.rules.values()
    )  # as clients are drawn where they are protected as well
    drawn = (select(protocol, candidates, r, poisson=poisson) for r in range(1, protocol.rounds + 1))
    rounds = Counter(i for selection in drawn for i in selection.replying)
    method.start(server, {})
    steps: dict[int, int] = {}  # of a round, by the number of samples
    for i in candidates:
        if server.sizes[i] not in steps:
            steps[server.sizes[i]] = worker.rehearsed_steps(i, method.send(server, i))
    kinds = {(server.sizes[i], rounds[i]) for i in candidates}
    if len(kinds) > MANY:
        log.info("solving for the noise of %d clients, of %d kinds", len(candidates), len(kinds))
    sizes = server.sizes
    return {i: budget(asked, sizes[i], protocol.batch, rounds[i] * steps[sizes[i]]) for i in candidates}


def most_spent(metrics: Sequence[Record], outcomes: Mapping[int, Outcome]) -> Record:
    """Return the largest ε that a client has spent so far, for a round's record; nothing where samples are not protected."""
    before = metrics[-1].get(EPSILON, 0.0) if metrics else 0.0
    spent = [outcome.logged[EPSILON] for outcome in outcomes.values() if EPSILON in outcome.logged]
    return {EPSILON: max([before, *spent])} if spent or before else {}
