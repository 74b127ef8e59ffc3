"""The command `fedtailor`."""

from __future__ import annotations

from fedtailor.cli.starting import importing


def main() -> None:
    with importing():
        from fedtailor.cli.app import main as command
    command()


if __name__ == "__main__":
    main()
