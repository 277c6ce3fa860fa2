"""A checksum before the bytes that lie in Redis: its append-only file is read back without one."""

import hashlib

SIZE = 16


def with_checksum(content: bytes) -> bytes:
    return _checksum(content) + content


def without_checksum(stored: bytes) -> bytes:
    """The content; raises ValueError if a bit of it has changed."""
    content = stored[SIZE:]
    if stored[:SIZE] != _checksum(content):
        raise ValueError(f"{len(stored)} bytes do not match their checksum")
    return content


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:SIZE]
