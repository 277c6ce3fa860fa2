import pytest

from calopd.config import Config, load_config
from tests.e2e.runs import finish, start

STEPS = 8


@pytest.fixture(scope="session")
def undisturbed(tiny) -> Config:
    """A run of one rank, in the order of its tickets, that nothing happened to."""
    file = tiny.write_config("undisturbed", steps=STEPS)
    out = finish(start(str(file), "--set", "run.deterministic=true"))
    assert [line.split()[1] for line in out.splitlines() if line.startswith("step ")] == [
        f"{step}/{STEPS}" for step in range(1, STEPS + 1)
    ]
    return load_config(file, environ={})
