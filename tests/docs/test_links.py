"""Every relative link of README and docs leads to a file that exists, and to a heading of it."""

import re
from pathlib import Path

import pytest

from tests.docs.commands import FENCE
from tests.services.processes import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other) is not None for other in found)
        found.add(f"{slug}-{count}" if count else slug)
    return found


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_links_are_found() -> None:
    assert sum(len(LINK.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` (c)\n## Same\n## Same\n[1](page.md#a-b-c) [2](#same-1) [3](#same-2) [4](no.md) [5](https://x/)"
    )
    assert broken_links(page) == ["#same-2", "no.md"]
