"""The commands that list methods, data sets, nets, partitions and the keys of a config, and `fedtailor data get`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedtailor.cli.arguments import console
from fedtailor.cli.starting import importing

Name = Annotated[str | None, typer.Argument(help="show this one in full", show_default=False)]


def methods(name: Name = None) -> None:
    """List the methods, or one with its options, what travels and what the client keeps.

    Example: `fedtailor methods fedrep`
    """
    _show("methods", name)


def datasets(name: Name = None) -> None:
    """List the data sets, or one with its options.

    Example: `fedtailor datasets agnews`
    """
    _show("datasets", name)


def nets(name: Name = None) -> None:
    """List the networks, or one with its options.

    Example: `fedtailor nets resnet18`
    """
    _show("nets", name)


def partitions(name: Name = None) -> None:
    """List the ways to deal data to clients, or one with its options.

    Example: `fedtailor partitions dirichlet`
    """
    _show("partitions", name)


def options(
    key: Annotated[str | None, typer.Argument(help="show this key in full", show_default=False)] = None,
) -> None:
    """List the keys of a config that every run has, or one key with its meaning, default and allowed values.

    Example: `fedtailor options join`

    Keys of a method, data set, partition or net of its own are dotted (`method.head_epochs`): `fedtailor methods NAME` lists them.
    """
    with importing():
        from fedtailor.cli.keys import describe_key, every_key
    console.print(every_key() if key is None else describe_key(key))


def get(
    name: Annotated[str, typer.Argument(help="name of the data set, as in `fedtailor datasets`")],
    root: Annotated[str, typer.Option(help="folder that holds data sets")] = "",
    base_url: Annotated[
        str | None, typer.Option(help="fetch the files from a mirror instead of the official address")
    ] = None,
) -> None:
    """Download a data set from its official address, with checksum and resume.

    Example: `fedtailor data get fashion-mnist`
    """
    with importing():
        from fedtailor.data.download import get as download
        from fedtailor.data.pool import data_root
        from fedtailor.experiment.progress import download_progress

    def said(text: str) -> None:
        console.print(text, soft_wrap=True)

    with download_progress(console) as progress:
        folder = download(name, data_root(root), base_url=base_url, progress=progress, say=said)
    console.print(f"{name} is in {folder}", soft_wrap=True)


def _show(kind: str, name: str | None) -> None:
    with importing():
        from fedtailor.cli.catalogue import REGISTRIES, describe, overview
    console.print(overview(REGISTRIES[kind]) if name is None else describe(REGISTRIES[kind], name))
