"""Write the pages of docs/ that are generated from the code.

python -m docs.generate           # write them (make docs)
python -m docs.generate --check   # fail if one differs from the code (make docs-check)
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from docs.generators import configuration, metrics, performance, ports, reproduce, sizing

DOCS = Path(__file__).parent
PAGES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("configuration.md", configuration.page),
    ("metrics.md", metrics.page),
    ("performance.md", performance.page),
    ("ports.md", ports.page),
    ("reproduce.md", reproduce.page),
    ("sizing.md", sizing.page),
)
"""File name in docs/, and the function that returns its text."""


def write() -> None:
    for name, text in PAGES:
        (DOCS / name).write_text(text(), encoding="utf-8")


def outdated() -> list[str]:
    """Names of the pages that are missing or differ from the code."""
    files = {name: DOCS / name for name, _ in PAGES}
    return [
        name for name, text in PAGES if not files[name].is_file() or files[name].read_text(encoding="utf-8") != text()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description="Write the generated pages of docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs from the code")
    if not parser.parse_args().check:
        write()
        return 0
    names = outdated()
    for name in names:
        print(f"error: docs/{name} differs from the code: run make docs", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
