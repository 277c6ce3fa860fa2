"""Ctrl-C in the moment in which a process of the run is started."""

import sys
from pathlib import Path
from typing import Any

import pytest

from calopd.local import supervisor
from calopd.local.supervisor import Process, Supervisor


def test_an_interrupt_while_a_process_starts_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervised = Supervisor()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    first, second = (Process(name=name, command=command, log_file=tmp_path / f"{name}.log") for name in "ab")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    supervised.add(first)
    monkeypatch.setattr(supervisor.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        supervised.add(second)
    supervised.stop()
    assert first.has_ended
