"""The command `fedtailor` from its first moment: Ctrl-C while PyTorch is being imported, which takes seconds, is answered in one line."""

from __future__ import annotations

import os
import signal


def main() -> None:
    before = signal.signal(signal.SIGINT, _stop)
    from fedtailor.cli.app import main as command

    signal.signal(signal.SIGINT, before)
    command()


def _stop(number: int, frame: object) -> None:
    """End at once: nothing has begun, and an exception would come out of whatever is being imported."""
    os.write(2, b"Stopped.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
