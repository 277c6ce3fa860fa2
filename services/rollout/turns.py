"""Turns of the sampling engine: many tickets together, or one that may crash it alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """A ticket that asks to be alone waits for the others to end; those that come after it wait for it."""

    def __init__(self) -> None:
        self._together = 0
        self._alone = False
        self.waiting_alone = 0
        """Tickets that want to be alone, the one that is included."""
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self.waiting_alone)
            self._together += 1
        try:
            yield
        finally:
            await self._change(together=-1)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        self.waiting_alone += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._together and not self._alone)
                self._alone = True
            try:
                yield
            finally:
                self._alone = False
        finally:
            self.waiting_alone -= 1
            await self._change()

    async def _change(self, together: int = 0) -> None:
        self._together += together
        async with self._changed:
            self._changed.notify_all()
