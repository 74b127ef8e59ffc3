from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedtailor.data.task import CLASSES, Task
from fedtailor.learning import Client, Payload, Reply, Server, State, weighted_mean
from fedtailor.learning.branches import Branches, beside
from fedtailor.learning.mixing import mix_into_rows
from fedtailor.learning.participants import Modules
from fedtailor.learning.similarity import label_similarity
from fedtailor.methods.base import Method, methods
from fedtailor.nets.fitting import kind
from fedtailor.nets.net import Net, Part
from fedtailor.randomness import numpy_stream
from fedtailor.registry import option


@methods.register("fedsimsup")
@dataclass(frozen=True)
class FedSimSup(Method):
    """Predict with a private supervisor beside a model that the server keeps for each client; there, clients that sit a round out learn
    from participants with similar labels (Liu et al., 2025). With join=1 nobody sits out and nobody learns from anybody."""

    paper = "Liu et al., Personalized Federated Learning under Local Supervision"
    year = 2025
    family = "personalized aggregation"
    down = ("model",)
    up = ("model", "labels")  # labels: the share of each class, told once before the first round
    keeps = ("supervisor",)
    tasks = CLASSES
    bn_buffers = "average"
    new_client = (
        "starts from a mean of all models, weighted by similar labels, and trains as in one round, sending nothing back"
    )

    supervisor: str = option(
        "auto",
        "net of the supervisor: auto (lenet-small for images, else the run's net), same (the run's net), a net's name, or several "
        'such as "vit,cnn,lenet", of which each client draws one',
    )
    supervisor_epochs: int = option(5, "epochs on the supervisor, before the model trains", at_least=0)
    model_epochs: int = option(5, "epochs on the model (the protocol's epochs are not used)", at_least=0)
    sim: bool | Literal["fedavg"] = option(
        True, "true: learn from participants by similar labels; false: by their samples; fedavg: all get their average"
    )
    arch: Literal["parallel", "serial"] = option(
        "parallel", "serial: one net, whose body is the model at the server and whose head is the supervisor"
    )
    no_supervisor: bool = option(False, "predict with the model alone, whatever arch is")
    C: float = option(40.0, "learning from others weakens from round C·T^gamma on, T being all rounds", above=0.0)
    gamma: float = option(3 / 7, "exponent in C·T^gamma", at_least=0.0)

    def hello(self, client: Client) -> Payload:
        return {"labels": client.label_counts.double() / max(1, len(client.samples))}

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["models"] = self._shared(server.net()).vector.repeat(len(server.sizes), 1)
        server.state["labels"] = torch.stack([hellos[i]["labels"] for i in sorted(hellos)])
        if server.protocol.join_range[0] == 1 and not server.protocol.dropout and self.sim != "fedavg":
            server.warn(
                "with join = 1 FedSimSup is local training: only clients that sit a round out learn from others; "
                "set join below 1, such as join=0.1"
            )

    def init(self, client: Client) -> State:
        if self.no_supervisor:
            return {}
        if self._serial:
            return {"supervisor": client.net().head.vector}
        architecture = self._architecture(client.protocol.seed, client.id, client.task)
        return {"supervisor": client.fresh("supervisor", architecture)}

    def send(self, server: Server, client: int) -> Payload:
        return {"model": server.state["models"][client].clone()}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net, supervisor = self._nets(client, payload)
        if supervisor is not None:
            loss = beside(client, net)
            client.train(supervisor.all, epochs=self.supervisor_epochs, loss=loss, purpose="supervisor")  # (4)
            client.train(net.all, epochs=self.model_epochs, loss=beside(client, supervisor))  # (5)
            client.state["supervisor"] = supervisor.all.vector
        elif self._serial:
            client.train(net.head, epochs=self.supervisor_epochs)
            client.train(net.body, epochs=self.model_epochs)
            client.state["supervisor"] = net.head.vector
        else:
            client.train(net.all, epochs=self.model_epochs)
        if len(self._names) > 1:
            client.log(group=self._names.index(self._draw(client.protocol.seed, client.id)))
        return {"model": self._shared(net).vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        models = server.state["models"]
        if self.sim == "fedavg":
            models.copy_(weighted_mean(replies, "model").expand_as(models))
            return
        here = torch.tensor([r.client for r in replies], device=models.device)
        samples = torch.tensor(server.sizes, dtype=torch.float64, device=models.device)
        absent = torch.ones_like(samples, dtype=torch.bool).index_fill(0, here, False)
        shares = self._shares(server.state["labels"], samples, here)[absent]
        lam = samples[here].mean() / (samples[here].mean() + samples[absent])  # (9)
        beta = self.beta(server.round, server.protocol.rounds)
        alpha = lam * beta * (shares.sum(1) > 0)  # (8); zero where no participant has a label in common
        kept, taken = (1 - alpha[:, None]).to(models), (alpha[:, None] * shares).to(models)
        mix_into_rows(models, absent, kept, taken, [r["model"] for r in replies])  # (7)
        for reply in replies:
            models[reply.client] = reply["model"]  # (6)
        server.log(beta=beta, alpha=float(alpha.sum() / max(1, len(alpha))))

    def welcome(self, server: Server, hello: Payload) -> Payload:
        models = server.state["models"]
        shares = torch.tensor(server.sizes, dtype=torch.float64, device=models.device)
        alike = label_similarity(hello["labels"][None], server.state["labels"])[0]
        if self.sim is True and alike.sum() > 0:
            shares = alike
        return {"model": (shares / shares.sum()).to(models) @ models}

    def personal(self, client: Client, payload: Payload) -> nn.Module:
        net, supervisor = self._nets(client, payload)
        return net if supervisor is None else Branches(net, supervisor)

    def saved_module(self, modules: Modules, client: int, weights: Mapping[str, Tensor]) -> nn.Module:
        net, _ = modules.lend("model")
        if self._serial or self.no_supervisor:
            return net
        supervisor, _ = modules.lend("supervisor", self._architecture(modules.protocol.seed, client, modules.task))
        return Branches(net, supervisor)

    def _nets(self, client: Client, payload: Payload) -> tuple[Net, Net | None]:
        if self._serial:
            return client.net(body=payload["model"], head=client.state["supervisor"]), None
        net = client.net(model=payload["model"])
        if self.no_supervisor:
            return net, None
        architecture = self._architecture(client.protocol.seed, client.id, client.task)
        return net, client.net("supervisor", model=client.state["supervisor"], architecture=architecture)

    def _shared(self, net: Net) -> Part:
        return net.body if self._serial else net.all

    @property
    def _serial(self) -> bool:
        return self.arch == "serial" and not self.no_supervisor

    def beta(self, t: int, rounds: int) -> float:
        """β of round t, counted from 1, of so many rounds (10)."""
        switch = self.C * rounds**self.gamma
        return 1.0 if t < switch else (switch / t) ** 2

    def groups(self, seed: int, clients: int) -> dict[str, list[int]]:
        """Which clients draw which supervisor in a run of this seed, to take means over each kind."""
        drawn = [self._draw(seed, i) for i in range(clients)]
        return {name: [i for i, own in enumerate(drawn) if own == name] for name in self._names}

    @property
    def _names(self) -> list[str]:
        return [name.strip() for name in self.supervisor.split(",")]

    def _draw(self, seed: int, client: int) -> str:
        return self._names[int(numpy_stream(seed, "supervisor", client).integers(len(self._names)))]

    def _architecture(self, seed: int, client: int, task: Task) -> str | None:
        name = self._draw(seed, client)
        if name == "auto":
            name = "lenet-small" if kind(task) == "images" else "same"
        return None if name == "same" else name

    def _shares(self, labels: Tensor, samples: Tensor, here: Tensor) -> Tensor:
        """What each client takes from each participant: rows sum to one, or to zero where nothing is alike."""
        if not self.sim:
            return (samples[here] / samples[here].sum()).expand(len(samples), -1)
        similarity = label_similarity(labels, labels[here])
        return similarity / similarity.sum(1, keepdim=True).clamp(min=1e-300)
