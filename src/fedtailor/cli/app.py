"""The command `fedtailor`. It answers --help in an instant: each command imports what it needs when it is called."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from fedtailor.cli import lists
from fedtailor.cli.arguments import console
from fedtailor.cli.audit import audit
from fedtailor.cli.claims import claims
from fedtailor.cli.compare import compare
from fedtailor.cli.deploy import app as deploy_app
from fedtailor.cli.describe import describe
from fedtailor.cli.export import export
from fedtailor.cli.onboard import onboard
from fedtailor.cli.predict import predict
from fedtailor.cli.pretrain import pretrain
from fedtailor.cli.recommend import recommend
from fedtailor.cli.report import report, show, watch
from fedtailor.cli.reproduce import reproduce
from fedtailor.cli.run import run
from fedtailor.cli.tune import tune
from fedtailor.errors import FedTailorError
from fedtailor.printable import printable
from fedtailor.terminal import PrintableFormatter, Terminal

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)  # not our bugs

app = typer.Typer(
    help="Personalized federated learning: every client ends with a model cut to fit it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    suggest_commands=False,  # Click makes the same suggestion
)
data_app = typer.Typer(help="Fetch and describe data sets.", no_args_is_help=True)
data_app.command()(lists.get)
data_app.command()(describe)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedtailor {version('fedtailor')} (PyTorch {version('torch')})")
        raise typer.Exit


@app.callback()
def fedtailor(
    asked: Annotated[
        bool, typer.Option("--version", help="say which version this is", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    pass


COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, compare, tune, recommend, reproduce, claims, pretrain, show, report, watch, predict, export, onboard, audit),
    *(lists.options, lists.methods, lists.datasets, lists.nets, lists.partitions),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")


def main() -> None:
    """Run the command line; a user's mistake is reported in a sentence, never as a traceback."""
    from rich.logging import RichHandler

    handler = RichHandler(console=console, show_path=False, show_time=False)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        app()
    except FedTailorError as error:
        Terminal(stderr=True).print("Error: ", style="bold red", end="")
        print(printable(error, lines=True), file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK:
            raise
        print(f"Error: {error.filename or 'A file'} cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
