"""The commands `fedtailor deploy …`. Flower is imported only by the commands that need it, so the others run without it."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.arguments import Words, console, typed
from fedtailor.cli.describe import refuse_existing
from fedtailor.cli.run import conclude
from fedtailor.cli.starting import importing
from fedtailor.deploy import HERE, PORT
from fedtailor.errors import FedTailorError

if TYPE_CHECKING:
    from fedtailor.deploy.deploy_folder import DeployFolder
    from fedtailor.deploy.server_app import ServerApp
    from fedtailor.experiment.config import Config

app = typer.Typer(help="Real federations over the network, carried by Flower (extra 'flower').", no_args_is_help=True)
JOINING = 120.0  # seconds for a new site on this machine to start

Home = Annotated[Path, typer.Argument(metavar="DIR", help="folder of the federation, made by deploy init")]
Data = Annotated[str, typer.Option("--data", help="data set, or a .csv, .parquet or .npz file, or a folder of images")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder for the federation")],
    words: Words = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="name or address of the server as sites reach it; may be repeated"),
    ] = None,
    port: Annotated[int, typer.Option(help="the server's port", min=1, max=65535)] = PORT,
    description: Annotated[
        Path | None,
        typer.Option(help="file by which all sites read their data, made by `fedtailor data describe`"),
    ] = None,
) -> None:
    """Make the folder of a federation: its settings, its keys, and a folder for each site.

    Example: `fedtailor deploy init hospitals method=fedrep net=mlp clients=2 rounds=20 --host fed.example.org`

    Sites use data of their own, which their site.toml names, unless a data set that all of them have is given (data=digits).
    """
    _prepare()
    made = _create(
        folder, ["data=sites", *(words or []), f"port={port}"], host or [HERE], guard=True, description=description
    )
    console.print(f"Made {made.path}. Its README.md says how to start the server and each site.", soft_wrap=True)


@app.command()
def serve(home: Home) -> None:
    """Run a federation's server, until its run is finished. After an interruption the same command carries on.

    Example: `fedtailor deploy serve hospitals`

    Only sites whose certificates are in DIR/keys can talk to it, on one port, and nothing else is open. Ctrl-C stops it.
    """
    _prepare()
    with importing():
        from fedtailor.deploy.deploy_folder import DeployFolder
        from fedtailor.deploy.server_app import serving
    folder = DeployFolder.open(home)
    with _logging_to(folder.logs / "server.log"), serving(folder) as server:
        console.print(f"Listening on port {server.port}.", soft_wrap=True)
        _carry_out(folder, server, f"fedtailor deploy serve {home}")


@app.command()
def site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder of this site, with its site.toml and key")],
    server: Annotated[str, typer.Option(help="host:port of the server, in place of the one that site.toml names")] = "",
) -> None:
    """Run a site: ask the server for work until the federation's run is finished.

    Example: `fedtailor deploy site sites/0`

    The site runs only what is installed here, sends only what its policy in site.toml allows, and opens no port.
    """
    _prepare()
    with importing():
        from fedtailor.deploy.site_process import SiteProcess
        from fedtailor.experiment.lock import locked

    def say(text: str) -> None:
        print(text, flush=True)

    process = SiteProcess(folder, server, say)
    with locked(folder), _logging_to(folder / "site.log"):
        process.serve()


@app.command()
def describe(home: Home) -> None:
    """Merge what the sites of a refused federation disclosed into one description, for people to check: DIR/description.json.

    Example: `fedtailor deploy describe hospitals`

    It has all values of each category, and numbers scaled by the median of the sites' means and deviations. The server uses it when it
    is started again; a site whose site.toml names a copy of the file refuses any other.
    """
    _prepare()
    with importing():
        from fedtailor.deploy.deploy_folder import DeployFolder
    folder = DeployFolder.open(home)
    refuse_existing(folder.description)
    for note in folder.describe():
        console.print(note, soft_wrap=True, markup=False)
    console.print(
        f"Wrote {folder.description}. Check it, send it to the sites if they are to check it too, and start the server again:  "
        f"fedtailor deploy serve {home}",
        soft_wrap=True,
    )


@app.command()
def welcome(home: Home) -> None:
    """Give every new site that is connected its personal model, by the method's rule; the finished run does not change.

    Example: `fedtailor deploy welcome hospitals`
    """
    _prepare()
    with importing():
        from fedtailor.deploy.deploy_folder import DeployFolder
        from fedtailor.deploy.server_app import serving
    folder = DeployFolder.open(home)
    with _logging_to(folder.logs / "server.log"), serving(folder) as server:
        console.print(f"Listening on port {server.port} for new sites.", soft_wrap=True)
        server.welcome()


@app.command()
def admit(
    home: Home,
    name: Annotated[str, typer.Argument(help="name of the new site: letters, digits, - and _")],
    words: Annotated[list[str] | None, typer.Argument(help="data=… data.path=… of the new site")] = None,
    data: Data = "",
) -> None:
    """Make the folder of a new site for a finished federation, with a key of its own.

    Example: `fedtailor deploy admit hospitals west`
    """
    _prepare()
    with importing():
        from fedtailor.deploy.deploy_folder import DeployFolder
        from fedtailor.experiment.onboarding import data_words
    place = DeployFolder.open(home).admit(name, [*data_words(data), *(words or [])])
    console.print(
        f"Made {place}. Take it to the new site, start it there with:  fedtailor deploy site .\n"
        f"Then, here:  fedtailor deploy welcome {home}",
        soft_wrap=True,
    )


@app.command()
def up(
    words: Words = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="a new folder for the federation")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="carry on the federation in this folder")] = None,
) -> None:
    """Try a federation out on this machine: a server, and a process for each site, over the loopback network.

    Example: `fedtailor deploy up method=fedrep data=digits clients=4 rounds=3 seed=0 --out runs/federation`

    Takes the same overrides as `fedtailor run`, and gives the same numbers. Everything it starts is stopped at the end, and on Ctrl-C.
    """
    _prepare()
    with importing():
        from fedtailor.api.run import new_folder
        from fedtailor.deploy.deploy_folder import DeployFolder
        from fedtailor.deploy.local import sites_here
        from fedtailor.deploy.server_app import serving
    if resume is not None and (words or out is not None):
        raise FedTailorError(
            "--resume takes the federation's own config and folder: give no overrides and no other options with it."
        )
    folder = (
        DeployFolder.open(resume)
        if resume is not None
        else _create(out or new_folder("federation"), [*(words or []), f"listen={HERE}"], [HERE])
    )
    sites = range(folder.settings()[1].settings.clients)
    console.print(f"Starting a server and {len(sites)} sites; logs are in {folder.logs}", soft_wrap=True)
    with (
        _logging_to(folder.logs / "server.log"),
        serving(folder, HERE, 0) as server,
        sites_here(folder, sites, server.port),
    ):
        _carry_out(folder, server, f"fedtailor deploy up --resume {folder.path}")
    console.print(f"Each site's personal model: {folder.path}/sites/*/models", soft_wrap=True)


@app.command()
def join(
    home: Home,
    words: Annotated[list[str] | None, typer.Argument(help="data=… data.path=… of the new site")] = None,
    data: Data = "",
    name: Annotated[str, typer.Option(help="name of the new site")] = "newcomer",
) -> None:
    """Try out on this machine how a new site joins a finished federation and gets its personal model.

    Example: `fedtailor deploy join runs/federation --data newcomer.npz`

    For a new site on another machine: `deploy admit`, then `deploy welcome`.
    """
    _prepare()
    with importing():
        from fedtailor.deploy.deploy_folder import DeployFolder
        from fedtailor.deploy.local import sites_here
        from fedtailor.deploy.server_app import serving
        from fedtailor.experiment.onboarding import data_words
    folder = DeployFolder.open(home)
    place = folder.admit(name, [*data_words(data), *(words or [])])
    with (
        _logging_to(folder.logs / "server.log"),
        serving(folder, HERE, 0) as server,
        sites_here(folder, [name], server.port),
    ):
        server.welcome(wait=JOINING)
    console.print(f"Model: {place / 'models' / 'newcomer.safetensors'}", soft_wrap=True)


def _create(
    folder: Path, words: list[str], hosts: list[str], *, guard: bool = False, description: Path | None = None
) -> DeployFolder:
    with importing():
        from fedtailor.deploy.deploy_folder import DeployFolder
        from fedtailor.deploy.settings import with_limited_shares, with_overrides
        from fedtailor.experiment.config import read_toml
    values: dict[str, Any] = {}
    files = [word for word in words if word.endswith(".toml") and "=" not in word]
    for file in files:
        values |= read_toml(Path(file))
    settings, config = with_overrides(values, [w for w in ["checkpoint_every=1", *words] if w not in files])
    config = _completed(config)
    if guard and "max_share" not in values:
        settings = with_limited_shares(settings, config.settings.clients)
    return DeployFolder.create(folder, settings, config, hosts, description)


def _completed(config: Config) -> Config:
    """Choose the net and the number of sites by the samples, where none are named: the server decides, not the sites."""
    try:
        return config.completed()
    except FedTailorError as error:
        raise FedTailorError(f"{error}\nOr name net=… and clients=…: then the server need not read the data.") from None


def _carry_out(folder: DeployFolder, server: ServerApp, again: str) -> None:
    """Run the federation with its progress, then show its table and pictures."""
    from fedtailor.api.run import Run
    from fedtailor.experiment.progress import Progress
    from fedtailor.experiment.run import polite_stop

    run = Run(folder.run)
    try:
        with polite_stop(console.print) as stop:
            server.run([Progress(console)], stop, typed())
    except KeyboardInterrupt:
        pass
    if run.state != "finished":
        console.print(f"Stopped. Carry on with:  {again}", soft_wrap=True)
        raise typer.Exit(130)
    run.draw()
    conclude(run)


def _prepare() -> None:
    """Check for Flower, and keep written files private to this user: keys, private states, models."""
    if find_spec("flwr") is None:
        raise FedTailorError("A federation over the network needs Flower:  pip install 'fedtailor[flower]'")
    os.umask(0o077)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # lines should reach a log at once
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated process ends as with Ctrl-C


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Log to the terminal and to a file, which also gets Flower's own messages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    own, flower = logging.getLogger("fedtailor"), logging.getLogger("flwr")
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    flower.handlers, flower.propagate = [handler], False
    flower.setLevel(logging.WARNING)
    try:
        yield
    finally:
        own.removeHandler(handler)
        handler.close()
