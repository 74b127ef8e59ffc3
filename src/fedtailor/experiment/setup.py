"""What takes part in a simulation: the engine with the clients, the server, and what privacy, robust means and an attack make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from fedtailor.attacks import Attack, Attackers
from fedtailor.data.federation import Federation
from fedtailor.engines import Engine, start_engine
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.experiment.hostile import Given, attackers_of, set_robust_means
from fedtailor.experiment.ledger import Ledger
from fedtailor.experiment.notices import Notices
from fedtailor.experiment.protection import protect
from fedtailor.experiment.sample_budgets import protect_samples
from fedtailor.learning import Protocol, Server
from fedtailor.learning.modules import Modules
from fedtailor.learning.samples import Samples
from fedtailor.methods import Method
from fedtailor.nets.architecture import Architecture
from fedtailor.privacy.client_dp import ClientDP, SummedDP
from fedtailor.privacy.noise import SecretNoise
from fedtailor.privacy.noise_shares import NamedShares
from fedtailor.privacy.rules import Privacy
from fedtailor.privacy.secure_sum import sums_of
from fedtailor.robust import RobustMean

if TYPE_CHECKING:
    from fedtailor.experiment.secure_rounds import SecureRounds
    from fedtailor.privacy.secure_sum.contributors import Contributors


@dataclass(frozen=True)
class Safeguards:
    """What protects clients and server, and what attacks them, as a user gave it."""

    privacy: Privacy | None
    robust: RobustMean | Given | None
    attack: Attack | Given | None
    secret: SecretNoise | None


@dataclass(frozen=True)
class Setup:
    """What a simulation is made of before its first round; `candidates` are the clients with training samples."""

    engine: Engine
    worker: Worker
    server: Server
    candidates: list[int]
    attackers: Attackers | None
    dp: ClientDP | SummedDP | None
    sums: Contributors | None

    def secure_rounds(self, ledger: Ledger, notices: Notices) -> SecureRounds | None:
        """Return what exchanges the messages of secure sums; None if no entry has that rule."""
        if self.sums is None:
            return None
        from fedtailor.experiment.secure_rounds import SecureRounds  # needs the extra `privacy`

        return SecureRounds(self.sums, self.engine, self.server, ledger, notices, self.candidates)


def set_up(
    federation: Federation,
    method: Method,
    net: str | Architecture | nn.Module,
    head: str | None,
    protocol: Protocol,
    safeguards: Safeguards,
    engine: str | Engine,
    workers: int,
    ray_address: str,
) -> Setup:
    """Make clients and server, and start the engine if it is only named."""
    _check_server_optimizer(method, protocol)
    privacy = safeguards.privacy
    rules = {} if privacy is None else privacy.of(method)
    sums = sums_of(privacy, method, Engine.run, protocol.rounds, NamedShares(protocol.seed), protocol.seed)
    sizes = [len(c.train) for c in federation.clients]
    candidates = [i for i, size in enumerate(sizes) if size]
    attackers = attackers_of(safeguards.attack, engine, candidates, protocol.seed)
    if attackers and sums is not None:
        raise FedTailorError(
            f"attack = {attackers.attack.name} changes replies, but with secure-sum they are masked already. Leave one out."
        )
    held = attackers.poisoned(federation) if attackers else federation
    worker = Worker(held, method, net, head, protocol, rules=rules, sums=sums)
    modules = Modules(net, head, federation.task, protocol, worker.modules.carry_buffers)
    proxy = Samples(federation.server, federation, protocol, ready=worker.ready)
    if isinstance(engine, str):
        protect_samples(privacy, worker, Server(modules, proxy, protocol, sizes))
        engine = start_engine(engine, worker, workers, ray_address)
    server = Server(modules, proxy, protocol, sizes)
    set_robust_means(server, method, rules, safeguards.robust, len(candidates))
    dp = protect(privacy, rules, server, candidates, safeguards.secret)
    return Setup(engine, worker, server, candidates, attackers, dp, sums)


def _check_server_optimizer(method: Method, protocol: Protocol) -> None:
    if protocol.server_optimizer != "none" and not method.averaged:
        raise FedTailorError(
            f"server_optimizer = {protocol.server_optimizer!r} needs a method whose server averages (server.average, declared by "
            f"`averaged`), which '{method.name}' does not do. Leave it out."
        )
