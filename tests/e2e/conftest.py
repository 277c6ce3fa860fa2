import fcntl
from pathlib import Path

import pytest

from calopd.config import Config, load_config
from tests.e2e.runs import finish, start

STEPS = 8


@pytest.fixture(scope="session")
def undisturbed(tiny, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Config:
    """A traced run of one rank, in the order of its tickets, undisturbed. All processes of `pytest -n` share it."""
    base = tmp_path_factory.getbasetemp()
    made = (base if worker_id == "master" else base.parent) / "undisturbed"
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            file = tiny.write_config("undisturbed", steps=STEPS)
            out = finish(start(str(file), "--trace", "--set", "run.deterministic=true"))
            assert [line.split()[1] for line in out.splitlines() if line.startswith("step ")] == [
                f"{step}/{STEPS}" for step in range(1, STEPS + 1)
            ]
            made.write_text(str(file))
    return load_config(Path(made.read_text()), environ={})
