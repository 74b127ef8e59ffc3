"""Train your own PyTorch module with personalized federated learning, from Python alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedtailor as ft


class Residual(nn.Module):
    """Any module that maps a batch to logits will do. Its last linear layer is the head, which FedRep keeps at each client."""

    def __init__(self, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.second = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.first(x))
        z = z + torch.relu(self.second(z))
        out: Tensor = self.classifier(z)
        return out


def sensors(sites: int = 6, each: int = 120, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Samples and labels of each site: all see the same three kinds of signal, but every second site numbers them the other way round."""
    rng = np.random.default_rng(seed)
    signals = 2 * rng.normal(size=(3, 8))
    found = {}
    for site in range(sites):
        kind = rng.integers(0, 3, each)
        x = signals[kind] + rng.normal(size=(each, 8))
        found[f"site {site}"] = (x.astype(np.float32), 2 - kind if site % 2 else kind)
    return found


class Say(ft.Callback):
    """Print the mean accuracy of the clients after each round."""

    def on_round(self, simulation: ft.Simulation, record: dict[str, Any]) -> None:
        if record["accuracy_mean"] is not None:
            print(f"round {record['round']}: {100 * record['accuracy_mean']:.1f} %")


def main(out: Path, rounds: int = 10) -> ft.Study:
    samples = sensors()
    federation = ft.Federation.from_clients(samples)
    torch.manual_seed(0)
    net = Residual(features=8, classes=3)
    run = ft.run(federation, "fedrep", net=net, rounds=rounds, callbacks=[Say()], out=out / "fedrep")
    x, y = samples["site 0"]
    print("site 0 says", run.personal("site 0").predict(x[:5]), "where its labels are", y[:5])
    print("site 1 says", run.personal("site 1").predict(x[:5]), "of the same samples")
    study = ft.compare(
        federation, ["local", "fedavg", "fedrep"], net=net, rounds=rounds, callbacks=[], out=out / "study"
    )
    print(study.table().to_string(index=False))
    return study


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path, default=Path("runs/own_module"), help="folder for the runs")
    main(words.parse_args().out)
