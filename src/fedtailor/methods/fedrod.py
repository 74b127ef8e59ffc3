from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.learning import Client, Payload, State
from fedtailor.learning.participants import Modules
from fedtailor.methods.base import GlobalModel, methods

ABSENT = -20.0  # log-share of a class the client does not have


class TwoHeads(nn.Module):
    """The sum of the logits of the generic head and of a client's own."""

    def __init__(self, generic: nn.Module, personal: nn.Module) -> None:
        super().__init__()
        self.generic = generic
        self.personal = personal

    def forward(self, z: Tensor) -> Tensor:
        return self.generic(z) + self.personal(z)


@methods.register("fedrod", "fed-rod")
@dataclass(frozen=True)
class FedROD(GlobalModel):
    """Share a model trained on a class-balanced loss; each client adds a head fitted to its own labels (Chen & Chao, 2022)."""

    paper = "Chen & Chao, On Bridging Generic and Personalized Federated Learning for Image Classification"
    year = 2022
    family = "model splitting"
    keeps = ("own_head",)
    tasks = ("multiclass",)

    def init(self, client: Client) -> State:
        return {"own_head": client.net("own").head.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])
        own = client.net("own", head=client.state["own_head"])
        counts = client.label_counts.to(payload["model"].dtype)
        prior = (counts / counts.max()).log().clamp(min=ABSENT)  # log n_c, up to a constant that softmax does not see
        for x, y, step in client.steps(client.batches(purpose="all"), net.all, own.head):
            z = net.features(x)
            logits = net.classify(z)
            generic = F.cross_entropy(logits + prior, y)  # balanced softmax
            personal = F.cross_entropy(logits.detach() + own.classify(z.detach()), y)
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
