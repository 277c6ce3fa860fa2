"""The end of `calopd tsd collect`."""

import sys

import pytest

from calopd.cli.main import main
from calopd.study import collection
from calopd.study.shards import Study


def test_a_study_without_a_scored_rollout_is_an_error(tiny, tmp_path, monkeypatch, capsys):
    """Every rollout was refused: there is nothing to analyse."""
    out = tmp_path / "study"
    monkeypatch.setattr(collection, "collect", lambda *_, **__: Study(out).begin(contexts=["c0"]))
    words = ["tsd", "collect", str(tiny.write_config("refused")), "-o", str(out), "--rollouts", "2"]
    monkeypatch.setattr(sys, "argv", ["calopd", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 78
    shown = capsys.readouterr()
    assert shown.err.startswith("error: no rollout could be scored: ")
    assert "next:" not in shown.out
