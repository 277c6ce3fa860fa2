"""Ports are given once: within a process, between processes, and not while somebody listens."""

import socket
import subprocess
import sys

import pytest

from tests.ports import Ports, free_ports, outside_ephemeral
from tests.services.processes import ROOT

DRAW = "from tests.ports import free_port; print(*(free_port() for _ in range(150)), flush=True); input()"


def test_processes_at_the_same_time_never_share_a_port() -> None:
    command = [sys.executable, "-c", DRAW]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    drawn = [free_ports(1)[0]]
    for process in processes:
        assert process.stdout is not None
        drawn += map(int, process.stdout.readline().split())
    for process in processes:
        process.communicate("\n")
    assert len(drawn) == len(set(drawn)) == 601


def test_a_block_is_free_again_when_its_process_is_killed() -> None:
    candidates = range(free_ports(20)[0], 65_536)[:20]
    take = f"ports = Ports({candidates!r}, 20); print(ports.take(1), flush=True); input()"
    command = [sys.executable, "-c", f"from tests.ports import Ports; {take}"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.raises(RuntimeError, match="no free block"):
            Ports(candidates, 20).take(1)
        other.kill()
    assert Ports(candidates, 20).take(1) == [candidates[1]]


def test_a_port_in_use_is_skipped_and_the_others_are_consecutive() -> None:
    candidates = range(free_ports(20)[0], 65_536)[:20]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", candidates[4]))
        taken.listen()
        assert Ports(candidates, 20).take(5) == list(candidates[5:10])


def test_ports_lie_outside_the_range_of_outgoing_connections() -> None:
    assert outside_ephemeral(32_768, 60_999) == range(20_000, 32_768)
    assert outside_ephemeral(1_024, 59_999) == range(60_000, 65_536)
