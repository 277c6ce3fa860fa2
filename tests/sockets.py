"""Listening sockets of processes."""

import ipaddress
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that accepts connections."""

    address: str
    port: int
    command: str

    @property
    def is_loopback(self) -> bool:
        address = ipaddress.ip_address(self.address)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def family(pid: int) -> list[psutil.Process]:
    """A process and everything that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def listeners(processes: Iterable[psutil.Process]) -> Iterator[Listener]:
    for process in processes:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                yield Listener(connection.laddr.ip, connection.laddr.port, " ".join(process.cmdline()))


def own_addresses() -> list[str]:
    """IPv4 addresses of this machine that are not loopback."""
    found = (a.address for addresses in psutil.net_if_addrs().values() for a in addresses if a.family == socket.AF_INET)
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]
