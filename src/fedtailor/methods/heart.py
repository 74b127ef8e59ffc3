from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedtailor.learning import Client, Loss, Payload, Reply, Server, class_means
from fedtailor.learning.alignment import check_stages, stage_agreement, stage_distances, stage_features
from fedtailor.learning.attack import attack_box, pgd
from fedtailor.learning.distill import Lesson, kl, symmetric_kl
from fedtailor.methods.base import methods
from fedtailor.methods.perada import PerAda
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option


@methods.register("heart", "HEART-PFL", "heart-pfl")
@dataclass(frozen=True)
class Heart(PerAda):
    """PerAda with personal models aligned with the global one stage by stage (HDA), and a server that distils in both directions on clean
    and adversarial proxy samples (AKT; Kim and Kim, 2026).

    Models travel as in PerAda. Without HDA, on clean samples and in one direction, it is PerAda to the bit.
    """

    paper = (
        "Kim and Kim, HEART-PFL: Stable Personalized Federated Learning under Heterogeneity with Hierarchical Directional Alignment "
        "and Adversarial Knowledge Transfer"
    )
    year = 2026

    hda: bool = option(True, "HDA: align the personal model's features with the global model's at the net's stages")
    mu: float = option(0.1, "μ: weight of the alignment", at_least=0.0, search=log_between(0.01, 1))
    hda_k: int = option(
        2, "number of first stages aligned by direction (cosine); the others are aligned by distance", at_least=0
    )
    hda_layers: tuple[int, ...] = option((), "stages that are aligned, such as [3, 4]; empty: all")
    hda_grad: Literal["batch_proto", "sample", "off"] = option(
        "batch_proto",
        "what is aligned: the personal class means in the batch, each sample, or nothing (off: in the published code it has no gradient)",
    )
    views: Literal["clean", "adv", "both"] = option(
        "both", "proxy samples used in a transfer: clean, adversarial or both"
    )
    symmetric: bool = option(True, "distil in both directions, KL(teacher‖student) + KL(student‖teacher)")
    skl: Literal["ensemble", "per_client"] = option(
        "ensemble", "one teacher made of all local models, or one per local model"
    )
    shared_adv: bool = option(False, "teachers see the student's adversarial samples; false: each sees its own")
    pgd_space: Literal["pixel", "normalised"] = option(
        "pixel", "attack pixels in 0..1, or normalised ones clamped to 0..1 as in the published code"
    )
    pgd_steps: int = option(20, "steps of the attack", at_least=0)
    pgd_epsilon: float = option(8 / 255, "ε: largest change of a pixel by the attack", at_least=0.0)
    pgd_step: float = option(2 / 255, "change of a pixel in one step of the attack", at_least=0.0)

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        super().start(server, hellos)
        if self.hda:
            example = torch.zeros(
                2, *server.modules.task.shape, dtype=server.samples.dtype, device=server.samples.device
            )
            check_stages(server.net(), self.hda_layers, example)

    def personal_loss(self, client: Client, own: Net, w: Tensor) -> Loss | None:
        if not self.hda:
            return None
        shared = client.net(model=w)
        client.log(**stage_agreement(own, shared, client.samples, client.classes))
        return None if self.hda_grad == "off" else partial(self._aligned, client, shared)

    def _aligned(self, client: Client, shared: Net, net: Net, x: Tensor, y: Tensor) -> Tensor:
        """CE + μ·S(g, P̃): g are the global model's features, P̃ the personal class means in this batch, by each sample's class."""
        z = stage_features(net, x)
        with torch.no_grad():
            g = stage_features(shared.eval(), x)
        own = z if self.hda_grad == "sample" else [class_means(features, y, client.classes)[0][y] for features in z]
        hda = stage_distances(g, own, self.hda_k, self.hda_layers)
        return client.loss(net.classify(z[-1]), y) + self.mu * hda

    def lessons(self, server: Server, replies: Sequence[Reply], mean: Tensor, rows: Tensor) -> list[Lesson]:
        found = super().lessons(server, replies, mean, rows) if self.views != "adv" else []
        if self.views == "clean":
            return found
        attack = partial(
            pgd,
            x=server.samples.take(rows),
            y=server.samples.y[rows],
            box=attack_box(server.samples, self.pgd_space),
            generator=server.rng("attack"),
            epsilon=self.pgd_epsilon,
            step=self.pgd_step,
            steps=self.pgd_steps,
        )
        seen = attack(server.net("teacher", model=mean))
        return [*found, Lesson(seen, self.taught(server, replies, lambda t: seen if self.shared_adv else attack(t)))]

    def joined(self, logits: Tensor) -> Tensor:
        return logits if self.skl == "per_client" else super().joined(logits)

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        return symmetric_kl(teacher, student) if self.symmetric else kl(teacher, student)
