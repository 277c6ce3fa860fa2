"""docs/doctor.md lists the checks as they are."""

import re

from calopd.doctor.checks import CHECKS, Level
from tests.services.processes import ROOT

LEVELS = {"quick": Level.QUICK, "default": Level.SERVICES, "full": Level.FULL}


def test_the_page_lists_every_check_with_its_level_in_order():
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w ,]+) \| (quick|default|full) \|", page, re.MULTILINE)
    listed = [(name, LEVELS[level]) for names, level in rows for name in names.split(", ")]
    assert listed == [(check.name, check.level) for check in CHECKS]


def test_a_check_needs_only_checks_before_it():
    names = [check.name for check in CHECKS]
    for place, check in enumerate(CHECKS):
        assert set(check.needs) <= set(names[:place])
        assert check.advice
