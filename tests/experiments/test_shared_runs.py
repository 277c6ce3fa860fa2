"""A run that several arms of an experiment share."""

import csv
from pathlib import Path

from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.experiment_page import write_results
from calopd.experiments.planned_runs import plan_experiment
from tests.experiments.finished_runs import finish_run
from tests.services.processes import ROOT

ARMS = """
[arms.opd]
label = "OPD"
set.method.name = "opd"
[arms.cal]
label = "Cal-OPD"
[arms.probes]
label = "probes {probes}"
grid."method.probes" = [["eval"], ["sol"]]
"""


def test_the_times_of_a_shared_run_are_listed_once(tmp_path: Path) -> None:
    """Cal-OPD and "probes eval" are one run: under the label of the first arm."""
    file = tmp_path / "mine.toml"
    recipe = f'seeds = [0, 1]\n[recipes]\npair = "{ROOT / "configs" / "demo.toml"}"\n'
    file.write_text(f'title = "Mine"\ndir = "{tmp_path / "out"}"\n{recipe}{ARMS}')
    plan = plan_experiment(file, load_experiment(file), environ={})
    assert len(plan.runs) == 6
    for job in plan.runs:
        finish_run(job.config)
    write_results(plan)
    with (plan.files.results(plan.name) / "efficiency.csv").open() as lines:
        assert [row["method"] for row in csv.DictReader(lines)] == ["OPD", "Cal-OPD", "probes sol"]
