from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedtailor.learning import Client, Payload, State
from fedtailor.learning.modules import Modules
from fedtailor.methods.base import GlobalModel, methods

ABSENT = -20.0  # log-frequency of a class that the client does not have


class TwoHeads(nn.Module):
    """Add the logits of the generic head and of a client's own head."""

    def __init__(self, generic: nn.Module, personal: nn.Module) -> None:
        super().__init__()
        self.generic = generic
        self.personal = personal

    def forward(self, z: Tensor) -> Tensor:
        return self.generic(z) + self.personal(z)


@methods.register("fedrod", "fed-rod")
@dataclass(frozen=True)
class FedROD(GlobalModel):
    """Share a model trained with a class-balanced loss; each client adds a head trained on its own labels (Chen & Chao, 2022).

    The shared model travels; the added head stays with the client.
    """

    paper = "Chen & Chao, On Bridging Generic and Personalized Federated Learning for Image Classification"
    year = 2022
    family = "model splitting"
    sample_dp = "the counts of all labels enter the loss of each sample"
    keeps = ("own_head",)
    tasks = ("multiclass",)

    def init(self, client: Client) -> State:
        return {"own_head": client.net("own").head.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])
        own = client.net("own", head=client.state["own_head"])
        counts = client.label_counts.to(payload["model"].dtype)
        prior = (counts / counts.max()).log().clamp(min=ABSENT)  # log n_c, up to a constant
        for x, y, step in client.steps(client.batches(purpose="all"), net.all, own.head):
            z = net.features(x)
            logits = net.classify(z)
            weights = client.sample_weights(y)
            generic = client.task.loss(logits + prior, y, sample_weights=weights)  # balanced softmax
            personal = client.task.loss(logits.detach() + own.classify(z.detach()), y, sample_weights=weights)
            if step(generic, net.all):
                step(personal, own.head)
        client.state["own_head"] = own.head.vector
        return {"model": net.all.vector}

    def personal(self, client: Client, payload: Payload) -> nn.Module:
        net = client.net(model=payload["model"])
        own = client.net("own", head=client.state["own_head"])
        return net.plain(TwoHeads(net.classifier, own.classifier))

    def saved_module(self, modules: Modules, client: int, weights: Mapping[str, Tensor]) -> nn.Module:
        (net, _), (own, _) = modules.lend("model"), modules.lend("own")
        return net.plain(TwoHeads(net.classifier, own.classifier))
