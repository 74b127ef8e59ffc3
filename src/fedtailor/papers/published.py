"""Every number in the tables of PGFedSplit, HEART-PFL, FedSimSup, FedAFK and FedAH, and FLamby's Fed-Heart-Disease; and the overrides
that run a row's method."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FULL = ["net=resnet18"]
ADAPTERS = ["net=resnet18-adapters"]
MIXED = "method.supervisor=vit,cnn,lenet"

# Rows that are more than a method's name: a paper's ablations and variants.
VARIANTS: dict[tuple[str, str], list[str]] = {
    ("HEART-PFL", "Baseline"): ["method=fedavg-per", *FULL],
    ("HEART-PFL", "+HDA"): ["method=heart", "method.akt=false", *FULL],
    ("HEART-PFL", "+AKT"): ["method=heart", "method.hda=false", *FULL],
    ("HEART-PFL", "+HDA+AKT"): ["method=heart", *FULL],
    ("HEART-PFL", "HEART-PFL (w/ adapter)"): ["method=heart", *ADAPTERS],
    ("HEART-PFL", "HEART-PFL"): ["method=heart", *ADAPTERS],
    ("HEART-PFL", "PerAda"): ["method=perada", *ADAPTERS],
    # T, C and L are the means of the clients with that supervisor in the one run of TCL: see FedSimSup.groups
    **{("FedSimSup", f"FedSimSup-{group}"): ["method=fedsimsup", MIXED] for group in ("T", "C", "L", "TCL")},
    ("FedAFK", "w/o AFA"): ["method=fedafk", "method.afa=false"],
    ("FedAFK", "w/o KT"): ["method=fedafk", "method.kt=false"],
    ("FedAFK", "w/o AFA&KT"): ["method=fedafk", "method.afa=false", "method.kt=false"],
    ("FLamby", "FedAdam"): ["method=fedavg", "server_optimizer=adam"],
    ("FLamby", "FedYogi"): ["method=fedavg", "server_optimizer=yogi"],
    ("FLamby", "FedAdagrad"): ["method=fedavg", "server_optimizer=adagrad"],
    ("FLamby", "each alone"): ["method=local"],
    ("FLamby", "pooled"): ["method=local"],
}


@dataclass(frozen=True)
class PublishedNumber:
    """One published number."""

    paper: str
    table: str
    dataset: str
    setting: str
    method: str
    metric: str
    value: str
    std: str


@cache
def published() -> list[PublishedNumber]:
    text = files("fedtailor.papers").joinpath("published.csv").read_text()
    return [PublishedNumber(**row) for row in csv.DictReader(text.splitlines())]


def overrides_of(paper: str, method: str) -> list[str]:
    """Return the key=value overrides that run the method of a row, such as method=fedafk method.afa=false."""
    return VARIANTS.get((paper, method), [f"method={method}"])
