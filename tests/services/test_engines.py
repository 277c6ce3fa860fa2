"""Engines by name: what the configuration allows is what the services have."""

from typing import get_args

import pytest

from calopd.config.sections import RolloutSection, TeacherSection
from services.rollout import engines as sampling
from services.teacher_scorer import engines as scoring


@pytest.mark.parametrize(("section", "registry"), [(RolloutSection, sampling), (TeacherSection, scoring)])
def test_the_configuration_allows_exactly_the_registered_engines(section, registry):
    assert set(get_args(section.model_fields["engine"].annotation)) == set(registry.ENGINES)


@pytest.mark.parametrize(("registry", "name"), [(r, name) for r in (sampling, scoring) for name in r.ENGINES])
def test_a_registered_engine_exists_and_is_built_from_its_section(registry, name):
    engine = registry.resolve_name(registry.ENGINES[name])
    assert callable(engine.configured)
