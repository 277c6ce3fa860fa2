"""A TCP proxy on loopback whose connections can be cut or stalled."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

CHUNK = 65_536


class TcpProxy:
    """Forwards `port` to `target` from a thread of its own. All methods may be called from any thread."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self._target = port, target
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._refusing = False
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{port}", daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def cut(self) -> None:
        """Reset all connections and refuse new ones."""
        self._call(self._cut)

    def stall(self) -> None:
        """Pass nothing on, with the connections open: a network that loses packets."""
        self._call(self._flowing.clear)

    def heal(self) -> None:
        self._call(self._heal)

    def _call(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

    def _cut(self) -> None:
        self._refusing = True
        for writer in self._open:
            writer.transport.abort()

    def _heal(self) -> None:
        self._refusing = False
        self._flowing.set()

    async def _listen(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, far_writer)
        self._open.update(both)
        pumps = [asyncio.create_task(self._pump(*ends)) for ends in ((reader, far_writer), (far_reader, writer))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        self._open.difference_update(both)
        for end in both:
            end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
