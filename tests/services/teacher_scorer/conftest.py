"""Teachers that the tests of this folder share."""

import pytest

from tests.services.teacher_scorer.running_teacher import serving


@pytest.fixture(scope="package")
def teacher(tiny):
    with serving(tiny, "teacher") as running:
        yield running


@pytest.fixture(scope="package")
def vllm_teacher(tiny):
    with serving(tiny, "vllm-teacher", engine="vllm") as running:
        yield running


@pytest.fixture(params=["teacher", "vllm_teacher"])
def any_teacher(request):
    """Both engines behind the same service."""
    return request.getfixturevalue(request.param)
