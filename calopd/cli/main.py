"""The entry point of the `calopd` command."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command. Everything else is imported here, so that Ctrl-C shows no traceback from the first moment on."""
    takes_over = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if takes_over:  # else Ctrl-C is ignored, as in the background of a shell
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from calopd.local.entry_point import guarded

        guarded(_run)
    finally:
        if takes_over:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; in an import end at once, since modules ignore it there or make other errors of it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"stopped\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run() -> None:
    import argparse

    from calopd.cli.registry import find_command

    command, words = find_command(sys.argv[1:])
    arguments = command.parser().parse_args(words, argparse.Namespace(words=words))
    command.module.run(arguments)


if __name__ == "__main__":
    main()
