"""Every port of a real run: in the list, and closed to whoever has no credential, here and in another network."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from calopd.config import load_config
from calopd.config.listeners import LISTENERS
from calopd.config.ports import local_ports
from calopd.core.environment import HOST, TOKEN
from tests.e2e.runs import finish, settings_of, start, wait_for_lines
from tests.services.processes import ROOT
from tests.sockets import family, listeners

pytestmark = pytest.mark.slow
SECRET, WRONG = "the-right-token", "a-wrong-token"
HERE, THERE = "10.213.7.1", "10.213.7.2"
NETWORK = f"calopd{os.getpid()}"
OUTCOMES = {
    "scores": ("UNAUTHENTICATED", "UNAUTHENTICATED", "OK"),
    "generate": ("401", "401", "422"),
    "metrics": ("200", "200", "200"),
    "status": ("200", "200", "200"),
    "queue": ("refused", "refused", "OK"),
}
"""Without, with a wrong and with the right credential. 422: let in, but the body is not a request."""
CLOSED = ("unreachable",) * 3


@contextmanager
def other_network() -> Iterator[bool]:
    """Another network namespace, connected to this one at `HERE`; False if this machine cannot make one."""

    def ip(*words: str) -> bool:
        return subprocess.run(["ip", *words], capture_output=True).returncode == 0

    far = f"{NETWORK}b"[-15:]
    near = f"{NETWORK}a"[-15:]
    made = (
        shutil.which("ip") is not None
        and ip("netns", "add", NETWORK)
        and ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", NETWORK)
        and ip("addr", "add", f"{HERE}/24", "dev", near)
        and ip("link", "set", near, "up")
        and ip("-n", NETWORK, "addr", "add", f"{THERE}/24", "dev", far)
        and ip("-n", NETWORK, "link", "set", far, "up")
    )
    try:
        yield made
    finally:
        ip("link", "del", near)
        ip("netns", "del", NETWORK)


def outcomes(requests: list[tuple[str, str, str]], *, elsewhere: bool) -> list[str]:
    command = ["ip", "netns", "exec", NETWORK] if elsewhere else []
    command += [sys.executable, "-m", "tests.e2e.port_prober"]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(requests), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stdout)
    return answers


def password_of(run: "subprocess.Popen[str]") -> str:
    """The password of the embedded server, as the services have it in their environment."""
    rollout = next(process for process in family(run.pid) if "services.rollout" in process.cmdline())
    return rollout.environ()["CALOPD__QUEUE__URL"].partition("@")[0].rpartition(":")[2]


def test_every_port_of_a_run_is_listed_and_guarded(tiny, monkeypatch):
    monkeypatch.setenv(TOKEN.name, SECRET)
    monkeypatch.setenv(HOST.name, "0.0.0.0")
    file = tiny.write_config("ports", steps=200)
    settings = ["learner.ranks=2", "evaluation.problems=0"]
    config = load_config(file, settings, {})
    process = start(str(file), *settings_of(settings))
    wait_for_lines(config, 1, process)
    with other_network() as connected:
        try:
            config = load_config(config.run_dir.config, environ={})
            listed = local_ports(config)
            by_port = {port: next(x for x in LISTENERS if x.setting == key) for key, port in listed.items()}
            found = list(listeners(family(process.pid)))
            assert {listener.port for listener in found} >= by_port.keys()
            for listener in found:
                if listener.port not in by_port:
                    # Connections between the ranks, which nobody else can reach.
                    assert "services.learner" in listener.command
                    assert listener.is_loopback, listener
                elif by_port[listener.port].address == "127.0.0.1":
                    assert listener.is_loopback, listener

            password = password_of(process)
            assert not any(
                secret in " ".join(p.cmdline()) for p in family(process.pid) for secret in (SECRET, password)
            )
            kinds = {"scores": "teacher.port", "generate": "rollout.port", "metrics": "teacher.metrics_port",
                     "status": "learner.port", "queue": "queue.port"}  # fmt: skip
            ranks = [listener.port for listener in found if listener.port not in by_port]
            for elsewhere in (False, True) if connected else (False,):
                host = HERE if elsewhere else "127.0.0.1"
                requests = [
                    (kind, f"{host}:{listed[key]}", credential)
                    for kind, key in kinds.items()
                    for credential in ("", WRONG, password if kind == "queue" else SECRET)
                ]
                requests += [("connection", f"{HERE}:{port}", "") for port in ranks if elsewhere]
                answers = outcomes(requests, elsewhere=elsewhere)
                for number, kind in enumerate(kinds):
                    closed = elsewhere and kind == "queue"
                    expected = CLOSED if closed else OUTCOMES[kind]
                    assert tuple(answers[3 * number : 3 * number + 3]) == expected, (kind, elsewhere)
                assert set(answers[3 * len(kinds) :]) <= {"unreachable"}
        finally:
            process.send_signal(signal.SIGINT)
            finish(process, code=130)
    saved = [file for file in config.run_dir.path.rglob("*") if file.is_file() and file.stat().st_size < 1 << 24]
    for file in saved:
        content = file.read_bytes()
        assert SECRET.encode() not in content, file
        assert password.encode() not in content, file
    if not connected:
        pytest.skip("this machine cannot make a network namespace: the ports were tried from loopback only")
