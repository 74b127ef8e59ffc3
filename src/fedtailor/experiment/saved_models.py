"""Saved personal models: config.toml, description.json and models/ of a folder are all that is needed to use them."""

from __future__ import annotations

import copy
import csv
import re
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from fedtailor.data.description import Description
from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.checkpoint import read_tensors
from fedtailor.experiment.config import Config
from fedtailor.experiment.given import GivenNet
from fedtailor.experiment.journal import mark_of
from fedtailor.experiment.run_folder import TABLE, RunFolder, replace_text
from fedtailor.learning.modules import Modules
from fedtailor.nets.net import Net
from fedtailor.printable import cell

MODEL = re.compile(r"client-(\d{5,})\.safetensors")


class SavedModels:
    """The personal models in a run's folder, or in that of a site of a real federation. The clients' data is not needed."""

    def __init__(self, path: Path, net: nn.Module | None = None) -> None:
        """`net` is the run's net, if it was made in Python."""
        self.folder = RunFolder.open(path)
        self.config = Config.load(self.folder.config)
        self.net = net

    @cached_property
    def description(self) -> Description:
        if not self.folder.description.exists():
            raise FedTailorError(
                f"'{self.folder.path}' has no description.json, which says how new samples are read: an earlier version made it. Run it "
                "again to predict from raw samples."
            )
        known = self.folder.marked.get(self.folder.description.name)
        if known is not None and mark_of(self.folder.description) != known:
            raise FedTailorError(
                f"'{self.folder.description}' is not what it was when the run was finished, so predictions would mean something else: "
                "it was edited or damaged. Set it back."
            )
        return Description.load(self.folder.description)

    @cached_property
    def table(self) -> dict[int, dict[str, str]]:
        """The rows of clients.csv by client; empty in a site's folder, which has none."""
        file = self.folder.path / TABLE
        if not file.exists():
            return {}
        with file.open(newline="", encoding="utf-8") as lines:
            return {int(row["client"]): row for row in csv.DictReader(lines)}

    @property
    def numbers(self) -> list[int]:
        """The numbers of the clients that have a saved model."""
        names = (MODEL.fullmatch(file.name) for file in self.folder.models.glob("client-*.safetensors"))
        return sorted(int(name[1]) for name in names if name)

    def number(self, client: int | str) -> int:
        """Return the number of a client given by its number or its name, whether or not it has a model."""
        names = {row["name"]: number for number, row in self.table.items()}
        known = sorted({*self.table, *self.numbers})
        if isinstance(client, str) and cell(client) in names:
            return names[cell(client)]
        if not isinstance(client, str) and client in known:
            return int(client)
        raise FedTailorError(
            f"'{self.folder.path}' has no client {client!r}.{nearest(str(client), names)} Its clients: {self._some()}."
        )

    def typed_number(self, client: str) -> int:
        """Return the number of a client as it is typed on the command line: a name, else a number; empty for the only one."""
        if not client:
            if len(self.numbers) == 1:
                return self.numbers[0]
            raise FedTailorError(
                f"'{self.folder.path}' has {len(self.numbers)} models. Name one with --client: {self._some()}."
            )
        named = any(row["name"] == cell(client) for row in self.table.values())
        return self.number(int(client) if client.isdecimal() and not named else client)

    def name(self, number: int) -> str:
        """Return a client's name as clients.csv has it, else its number."""
        return self.table[number]["name"] if number in self.table else str(number)

    def module(self, client: int | str) -> nn.Module:
        """Return a client's personal model as an independent plain module on the CPU."""
        number = self.number(client)
        file = self.folder.models / f"client-{number:05d}.safetensors"
        if not file.exists():
            raise FedTailorError(
                f"There is no saved model of client {self.name(number)!r} in '{self.folder.path}'. {self.why_none()}"
            )
        try:
            weights = read_tensors(file)
        except (SafetensorError, OSError) as error:
            raise FedTailorError(f"The model '{file}' cannot be read: it is damaged ({error}).") from None
        module = self.config.method.saved_module(self._modules, number, weights)
        module = module.plain() if isinstance(module, Net) else copy.deepcopy(module)
        try:
            module.load_state_dict(weights)
        except RuntimeError:
            raise FedTailorError(
                f"The model '{file}' does not fit the net of its run. If the method '{self.config.method.name}' is your own and predicts "
                "with another module than the net, its `saved_module` must build that."
            ) from None
        return module.eval()

    def _some(self) -> str:
        known = sorted({*self.table, *self.numbers})
        return (", ".join(map(self.name, known[:5])) or "none") + (" …" if len(known) > 5 else "")

    def why_none(self) -> str:
        """Return why a model is missing and what to do, in words."""
        if self.folder.state != "finished":
            return (
                f"Models are saved at the end of a run, and this one is {self.folder.state}. Carry it on with:  "
                f"{self.folder.how_to_resume}"
            )
        if not self.config.settings.save_models:
            return "It was run with save_models=false: run the same command again with save_models=true."
        return f"Make it again with:  {self.folder.how_to_resume}"

    @cached_property
    def _modules(self) -> Modules:
        settings = replace(self.config.settings, device="cpu")
        head = self.config.net.head or None if isinstance(self.config.net, GivenNet) else None
        return Modules(self._net(), head, self.description.task, settings, carry_buffers=False)

    def _net(self) -> Any:
        net: Any = self.config.net
        if isinstance(net, GivenNet):
            if self.net is None:
                raise FedTailorError(
                    f"The net of this run, {net.module or 'a module'}, was made in Python: open the run there, with  "
                    f"ft.load({str(self.folder.path)!r}, net=…)"
                )
            return self.net
        return replace(net, weights="") if getattr(net, "weights", "") else net  # the model has them all


def describe_models(folder: Path, config: Config, description: Description) -> None:
    """Write what `fedtailor predict` needs beside the models of a site."""
    replace_text(folder / "config.toml", config.to_toml())
    file = folder / "description.json"
    with suppress(FedTailorError):
        if Description.load(file) == description:  # it may be the operator's own, laid out as they like it
            return
    description.write(file)
