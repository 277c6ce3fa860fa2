"""`calopd retry` and `calopd gc` against a real server."""

from pathlib import Path

import pytest

from calopd.cli.registry import find_command
from calopd.config import load_config, save_with_run
from calopd.core.errors import ConfigError
from calopd.core.types import Sampling, Ticket
from calopd.rundir.layout import RunDir
from calopd.rundir.run_id import ensure_run_id
from calopd.transport.queue import Queue, open_queue

TOML = """
[run]
dir = "{root}/runs"
[data]
train = "train.jsonl"
[student]
path = "student"
[teacher]
path = "teacher"
[queue]
url = "redis://127.0.0.1:1/0"
"""


@pytest.fixture
def files(tmp_path: Path, redis_server, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A configuration, and the directory of its run; the address of the server is in the environment."""
    monkeypatch.setenv("CALOPD__QUEUE__URL", redis_server.url)
    file = tmp_path / "run.toml"
    file.write_text(TOML.format(root=tmp_path))
    config = load_config(file)
    config.run_dir.path.mkdir(parents=True)
    save_with_run(config)
    return file, config.run_dir.path


@pytest.fixture
def queue(redis_server, files: tuple[Path, Path]) -> Queue:
    queue = open_queue(redis_server.url, ensure_run_id(RunDir(files[1])))
    queue.join()
    return queue


def run(*words: object) -> None:
    command, rest = find_command([str(word) for word in words])
    command.module.run(command.parser().parse_args(rest))


def test_retry_issues_all_dead_letters_or_a_chosen_few(queue, files, capsys):
    tickets = [Ticket(queue.run, "step-000004", i, f"p{i}", 0, i, 4, Sampling(1.0, 1.0, 8)) for i in range(3)]
    queue.open_batch("step-000004", tickets)
    for claim in queue.claim("w", 9):
        queue.dead_letter(claim, "a file was missing")
    with pytest.raises(ConfigError, match="step-000004/9 is no dead letter"):
        run("retry", files[1], "step-000004/9")
    run("retry", files[1], "step-000004/1")
    assert capsys.readouterr().out == f"{tickets[1].id}: issued again (it had: a file was missing)\n"
    assert [claim.ticket.index for claim in queue.claim("w", 9)] == [1]
    run("retry", files[1])
    assert capsys.readouterr().out.count("issued again") == 2
    assert sorted(claim.ticket.index for claim in queue.claim("w", 9)) == [0, 2]
    run("retry", files[1])
    assert "has no dead letters" in capsys.readouterr().out


def test_gc_lists_runs_and_deletes_only_what_is_idle_and_only_if_asked(queue, files, capsys):
    queue.announce_policy(0, "sha")
    queue.client.hset("calopd:old-1a2b:learner", "seen", 1)
    run("gc", files[0])
    shown = capsys.readouterr().out
    assert "old-1a2b: 1 keys" in shown
    assert "would be deleted with --delete" in shown
    assert f"{queue.run}: 3 keys, idle for 0.0 days: kept" in shown
    assert queue.client.exists("calopd:old-1a2b:learner")
    with pytest.raises(ConfigError, match="the server has no run other"):
        run("gc", files[0], "other")
    run("gc", files[0], "--delete")
    assert "old-1a2b" in capsys.readouterr().out
    assert not queue.client.exists("calopd:old-1a2b:learner")
    assert queue.wait_for_policy("0-0", 0.001) is not None
