"""Ports for tests and benchmarks: never the same one twice, however many test processes share the machine.

A process reserves a block of ports by binding the block's first port, its guard, and holds that socket until it ends.
The kernel lets only one process bind the guard, and frees it however the process ends: no lock file can go stale.
Blocks lie outside the range from which the kernel picks ports for outgoing connections: no connection takes one away.
"""

import os
import socket
import threading
from pathlib import Path

FIRST, LAST = 20_000, 65_535
BLOCK = 64
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def outside_ephemeral(low: int, high: int) -> range:
    """The wider of the two ranges below and above the ephemeral one."""
    below, above = range(FIRST, low), range(high + 1, LAST + 1)
    return below if len(below) >= len(above) else above


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class Ports:
    """The ports of this process."""

    def __init__(self, candidates: range, block: int = BLOCK) -> None:
        self._blocks = [range(start, start + block) for start in candidates[: 1 - block : block]]
        # Sessions one after another begin at different blocks: ports of the last one may still be in TIME_WAIT.
        self._next_block = os.getpid() % len(self._blocks)
        self._tried = 0
        self._guards: list[socket.socket] = []
        self._left: list[int] = []
        self._lock = threading.Lock()

    def take(self, count: int) -> list[int]:
        """`count` consecutive ports that nobody listens at and that are given to nobody else."""
        most = len(self._blocks[0]) - 1
        if not 0 < count <= most:
            raise ValueError(f"{count} ports wanted, expected 1 to {most}")
        with self._lock:
            found: list[int] = []
            while len(found) < count:
                if not self._left:
                    self._left, found = self._reserve_block(), []
                port = self._left.pop(0)
                found = [*found, port] if is_free(port) else []
            return found

    def _reserve_block(self) -> list[int]:
        while self._tried < len(self._blocks):
            block = self._blocks[(self._next_block + self._tried) % len(self._blocks)]
            self._tried += 1
            guard = socket.socket()
            try:
                guard.bind(("127.0.0.1", block[0]))
            except OSError:
                guard.close()
                continue
            self._guards.append(guard)
            return list(block[1:])
        raise RuntimeError("no free block of ports is left")


def _ephemeral() -> tuple[int, int]:
    low, high = EPHEMERAL.read_text().split() if EPHEMERAL.exists() else ("32768", "60999")
    return int(low), int(high)


_ports = Ports(outside_ephemeral(*_ephemeral()))


def free_ports(count: int) -> list[int]:
    """Consecutive ports, reserved until this process ends."""
    return _ports.take(count)


def free_port() -> int:
    (port,) = free_ports(1)
    return port
