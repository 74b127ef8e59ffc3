from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.attacks.base import Attack, attacks
from fedtailor.data.client_data import Split
from fedtailor.data.task import CLASSES, Task
from fedtailor.errors import FedTailorError
from fedtailor.registry import option

SUCCESS = "backdoor_success"  # the metric's name


@attacks.register("backdoor")
@dataclass(frozen=True)
class Backdoor(Attack):
    """Put a trigger on some training samples, labelled with a class of the attackers' choice (Gu et al., 2017; Bagdasaryan et al., 2020).

    The trigger is a white square in the lower right corner of an image, or a large value of the last numbers of any other sample. The
    metric backdoor_success is the share of the others' test samples of other classes that their models take for that class once they carry
    the trigger, as the mean over these clients.
    """

    paper = "Bagdasaryan et al., How To Backdoor Federated Learning"
    year = 2020

    target: int = option(0, "class that samples with the trigger shall be taken for", at_least=0)
    size: int = option(3, "side of the trigger in pixels, or how many numbers of other samples it sets", at_least=1)
    value: float = option(3.0, "value of the trigger in samples that are not pixels of 8 bits")
    poison: float = option(0.5, "share of an attacker's training samples that carry the trigger", above=0, at_most=1)

    def check_data(self, task: Task, x: Tensor) -> None:
        if task.kind not in CLASSES or task.vocabulary:
            what = "tokens" if task.vocabulary else f"a {task.kind} task"
            raise FedTailorError(
                f"attack=backdoor needs images or numbers that each have one class, but this is {what}. Take another attack."
            )
        if self.target >= task.classes:
            raise FedTailorError(f"attack.target = {self.target}, but classes are 0 to {task.classes - 1}.")
        if self.size >= x.shape[-1]:
            raise FedTailorError(
                f"attack.size = {self.size} covers a whole sample of {x.shape[-1]} in a row. Take a smaller one."
            )

    def poisoned(self, train: Split, task: Task, generator: torch.Generator) -> Split:
        whole = train.apart()
        chosen = torch.randperm(len(whole), generator=generator)[: round(self.poison * len(whole))]
        x, y = whole.x.clone(), whole.y.clone()
        x[chosen] = self._with_trigger(x[chosen])
        y[chosen] = self.target
        return Split(x, y, weight=whole.weight)

    def triggered(self, test: Split) -> Split:
        others = test.apart(torch.nonzero(test.y != self.target).flatten().tolist())
        return Split(self._with_trigger(others.x.clone()), torch.full_like(others.y, self.target))

    def _with_trigger(self, x: Tensor) -> Tensor:
        """Write the trigger into these samples."""
        corner = (
            (..., slice(-self.size, None), slice(-self.size, None)) if x.ndim == 4 else (..., slice(-self.size, None))
        )
        x[corner] = 255 if x.dtype == torch.uint8 else self.value
        return x
