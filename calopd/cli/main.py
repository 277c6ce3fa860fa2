"""The entry point of the `calopd` command."""

import sys


def main() -> None:
    """Run the command. Everything else is imported here, so that Ctrl-C shows no traceback from the first moment on."""
    try:
        from calopd.local.entry_point import guarded
    except KeyboardInterrupt:
        sys.exit(130)
    guarded(_run)


def _run() -> None:
    import argparse

    from calopd.cli.registry import find_command

    command, words = find_command(sys.argv[1:])
    arguments = command.parser().parse_args(words, argparse.Namespace(words=words))
    command.module.run(arguments)


if __name__ == "__main__":
    main()
