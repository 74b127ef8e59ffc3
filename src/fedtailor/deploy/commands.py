"""The commands `fedtailor deploy …`. Flower itself is imported only by what needs it, so that the others can do without."""

from __future__ import annotations

import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor.attended import new_folder, wrap_up
from fedtailor.deploy.folder import DeployFolder
from fedtailor.deploy.local import HERE, Fleet, fleet
from fedtailor.deploy.terms import from_words
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import read_toml
from fedtailor.experiment.folder import RunFolder, read_lines
from fedtailor.experiment.onboarding import data_words
from fedtailor.report.progress import RunProgress
from fedtailor.report.terminal import Terminal

app = typer.Typer(help="Real federations over the network, carried by Flower (extra 'flower').", no_args_is_help=True)
console = Terminal()

PORT = 9092
PAUSE = 0.2  # seconds between two looks at a run's progress

Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value …]", show_default=False)]
Tls = Annotated[bool, typer.Option("--tls", help="encrypt, and admit only sites whose keys are registered")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder for the federation")],
    words: Words = None,
    tls: Tls = False,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="name or address of the server as sites reach it; may be repeated"),
    ] = None,
    port: Annotated[int, typer.Option(help="the server's port", min=1, max=65535)] = PORT,
) -> None:
    """Make the folder of a federation: the server's app and config, a folder for each site, and the commands to start them.

    Example: `fedtailor deploy init hospitals method=fedrep net=mlp clients=2 rounds=20 --tls --host fed.example.org`

    Sites use data of their own, which their site.toml names, unless a data set that all of them deal alike is given (data=digits).
    """
    _need_flower()
    made = _create(folder, ["data=sites", *(words or [])], host or [HERE], port, tls=tls)
    console.print(
        f"Made {made.path}. Its README.md has the commands to start the server, each site and the run.", soft_wrap=True
    )


@app.command()
def up(
    words: Words = None,
    out: Annotated[Path | None, typer.Option("--out", help="a new folder for the federation")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="carry on the federation in this folder")] = None,
    tls: Tls = False,
) -> None:
    """Try a federation out on this machine: a server and a process for each site, over the loopback network.

    Example: `fedtailor deploy up method=fedrep data=digits clients=4 rounds=3 seed=0 --out runs/federation`

    The same words as for `fedtailor run`, and the same numbers. Everything that is started is stopped at the end, and on Ctrl-C.
    """
    _need_flower()
    if resume is not None and (words or out is not None or tls):
        raise FedTailorError(
            "--resume takes the federation's own config and folder: give no other words and options with it."
        )
    folder = DeployFolder.open(resume) if resume is not None else _local(words or [], out, tls=tls)
    with fleet(folder) as programs:
        try:
            _carry_out(folder, programs)
        except KeyboardInterrupt:
            console.print(f"Stopped. Carry on with:  fedtailor deploy up --resume {folder.path}", soft_wrap=True)
            raise typer.Exit(130) from None
    wrap_up(folder.run, console)
    console.print(f"Each site's personal model: {folder.path}/sites/*/models", soft_wrap=True)


@app.command()
def join(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder of a finished federation")],
    words: Annotated[list[str] | None, typer.Argument(help="data=… data.path=… of the new site")] = None,
    data: Annotated[
        str, typer.Option("--data", help="data set, or a .csv, .parquet or .npz file, or a folder of images")
    ] = "",
) -> None:
    """Try out on this machine how a new site joins a finished federation and gets its personal model.

    Example: `fedtailor deploy join runs/federation --data newcomer.npz`

    docs/deployment.md has the commands for a new site on another machine.
    """
    _need_flower()
    home = DeployFolder.open(folder)
    home.write_newcomer([*data_words(data), *(words or [])])
    with fleet(home) as programs:
        programs.start_link()
        programs.start_site("newcomer")
        programs.submit(work="welcome")
        while programs.running("run"):
            time.sleep(PAUSE)
    said = [line for line in _said(programs) if "newcomer" in line]
    if not said or not home.newcomer_model.exists():
        raise FedTailorError(_trouble(programs))
    console.print("\n".join(said), soft_wrap=True)
    console.print(f"Model: {home.newcomer_model}", soft_wrap=True)


def _create(folder: Path, words: list[str], hosts: list[str], port: int, *, tls: bool) -> DeployFolder:
    values: dict[str, Any] = {}
    files = [word for word in words if word.endswith(".toml") and "=" not in word]
    for file in files:
        values |= read_toml(Path(file))
    terms, config = from_words(values, [w for w in ["checkpoint_every=1", *words] if w not in files])
    return DeployFolder.create(folder, terms, config, hosts, port, tls=tls)


def _local(words: list[str], out: Path | None, *, tls: bool) -> DeployFolder:
    return _create(out or new_folder("federation"), words, [HERE], PORT, tls=tls)


def _carry_out(folder: DeployFolder, programs: Fleet) -> None:
    """Start everything and show the rounds as the server's run folder has them."""
    _, config = folder.terms()
    console.print(f"Starting a server and {config.settings.clients} sites; logs are in {folder.logs}", soft_wrap=True)
    programs.start_link()
    if folder.tls:
        for i in range(config.settings.clients):
            programs.register(i)
    for i in range(config.settings.clients):
        programs.start_site(i)
    programs.submit()
    seen = len(read_lines(RunFolder(folder.run).metrics))
    steps = config.settings.rounds + config.method.closing_steps
    with RunProgress(console, f"{config.method.name} seed {config.settings.seed}", steps) as progress:
        while True:
            ended = not programs.running("run")
            records = read_lines(RunFolder(folder.run).metrics)
            for record in records[seen:]:
                progress.watch(record)
            seen = len(records)
            if ended:
                break
            time.sleep(PAUSE)
    if RunFolder(folder.run).state != "finished":
        raise FedTailorError(_trouble(programs))


def _said(programs: Fleet) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;]*m", "", programs.log("run").read_text(errors="replace"))
    return [line.removeprefix("INFO :").strip() for line in text.splitlines()]


def _trouble(programs: Fleet) -> str:
    """What the run's log says last of all that went wrong."""
    errors = [line for line in _said(programs) if "Error" in line]
    reason = re.sub(r"^.*?FedTailorError: ", "", errors[-1]) if errors else "It ended without a word."
    return f"The federation's run failed: {reason}\nThe logs are in {programs.folder.logs}."


def _need_flower() -> None:
    if find_spec("flwr") is None:
        raise FedTailorError("A federation over the network needs Flower:  pip install 'fedtailor[flower]'")
