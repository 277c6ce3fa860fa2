"""docs/gpu.md: the tests and files that it names are there."""

import re

from tests.services.processes import ROOT

PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_every_proof_is_a_test_of_the_repository():
    (checked,) = re.findall(r"## What is checked\n(.*?)\n## ", PAGE, re.DOTALL)
    rows = [line for line in checked.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    for row in rows:
        proofs = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert proofs, row
        for proof in proofs:
            assert "def test_" in (ROOT / proof).read_text(), proof


def test_every_test_of_the_gpu_path_is_named():
    named = set(re.findall(r"`(tests/gpu/test_\w+\.py)`", PAGE))
    assert named == {str(file.relative_to(ROOT)) for file in (ROOT / "tests" / "gpu").glob("test_*.py")}


def test_every_unknown_has_a_way_to_find_out_and_something_to_report():
    _, _, unknowns = PAGE.partition("## What cannot be known without a GPU")
    rows = [line.strip("|").split(" | ") for line in unknowns.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows)


def test_commands_and_metrics_exist():
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    settings = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert "| `logprob_mismatch` |" in metrics
    for name in re.findall(r"`learner\.(\w+)`", PAGE):
        assert f"`{name}`" in settings or f"learner.{name}" in settings, name
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)`", PAGE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
