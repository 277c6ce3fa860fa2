import json

import pytest
from prometheus_client import REGISTRY

from calopd.core.phase import Phase
from services.learner.status import Status


def seconds_of(phase: Phase) -> float:
    return REGISTRY.get_sample_value("calopd_learner_phase_seconds_total", {"phase": phase.value}) or 0.0


@pytest.mark.parametrize("phase", list(Phase))
def test_a_phase_has_one_name_in_the_status_and_in_prometheus(phase):
    status = Status("run", steps=1)
    status.enter(phase, "policy 12, 3/40")
    shown = json.loads(json.dumps(status.as_dict()))
    assert Phase(shown["phase"]) is phase
    assert shown["progress"] == "policy 12, 3/40"
    before = seconds_of(phase)
    status.enter(Phase.DONE)
    assert seconds_of(phase) > before
    assert status.progress == ""


def test_the_learner_is_busy_while_it_learns_and_not_while_it_waits():
    def busy() -> float:
        return REGISTRY.get_sample_value("calopd_learner_busy_seconds_total") or 0.0

    status, before = Status("run", steps=1), busy()
    status.enter(Phase.WAITING)
    status.enter(Phase.LEARNING)
    assert busy() == before
    status.enter(Phase.WAITING)
    assert busy() > before
