"""Fake servers over real HTTP on loopback. Their event loop runs in a thread."""

import asyncio
import threading
from asyncio.selector_events import BaseSelectorEventLoop
from typing import Self

from aiohttp import web


class LoopbackServer:
    """A server that listens during a `with` block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runners: list[web.AppRunner] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def up(self) -> None:
        """Listen again, at the same port."""
        asyncio.run_coroutine_threadsafe(self._up(), self._loop).result()

    def down(self) -> None:
        """Stop listening and cut every connection."""
        asyncio.run_coroutine_threadsafe(self._down(), self._loop).result()

    async def _up(self) -> None:
        raise NotImplementedError

    async def _listen(self, app: web.Application, port: int) -> int:
        """Serve this application at a port (0 for any free one), and return the port."""
        # Cancel the handlers of disconnected clients, and do not wait for anything at shutdown.
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner.addresses[0][1]

    async def _down(self) -> None:
        await abort_connections()
        while self._runners:
            await self._runners.pop().cleanup()
        await abort_connections()


async def abort_connections() -> None:
    """Abort every connection of the running event loop, before and after its servers are closed.

    Before: asyncio leaks a connection if its server closes between the accept and the creation of its transport. After:
    aiohttp forgets a connection that it closes, but the connection stays open while its client does not read.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, BaseSelectorEventLoop)
    for _ in range(3):  # a waiting connection is accepted in the first round, and gets its transport in the second
        for transport in list(loop._transports.values()):
            transport.abort()
        await asyncio.sleep(0)
