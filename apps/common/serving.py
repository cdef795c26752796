"""An interface over HTTP, at one address, for as long as its process runs."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override

from .connections import Connection, Connections

LINGER = 5
"""Seconds for which answers that are under way may go on after a signal."""
AT_ONCE = 16
"""Connections that are accepted in one turn of the event loop, before any of them can be refused."""
QUEUE = 1024
"""Connections that the system keeps until they are accepted."""
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>[0-9]{1,5})", re.ASCII)


def listening(address: str, bad: type[Exception], taken: type[Exception]) -> socket.socket:
    """A socket at HOST:PORT, so that a port which is taken is known before anything else begins. What is no address is `bad`, one for nobody is `taken`."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65_535:
        raise bad(f"{address!r} is no address to listen at: give HOST:PORT, as in 127.0.0.1:8099.")
    host, port = found["v6"] or found["host"], int(found["port"])
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if found["v6"] else socket.AF_INET)
    except OSError as error:
        raise taken(f"Nobody can listen at {address}: {error.strerror or error}. Give another address.") from None


def url_of(http: socket.socket) -> str:
    host, port = http.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """A server that limits its connections, and leaves signal handling to its caller."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._connections = self.server_state = Connections()

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # asyncio uses one number for two limits: how many it accepts in one turn, and how long the system's queue is.
        for each in sockets or []:
            each.listen(QUEUE)

    @override
    async def on_tick(self, counter: int) -> bool:
        self._connections.drop_overdue(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def served(interface: ASGIApp, http: socket.socket, stop: asyncio.Event) -> AsyncGenerator[None]:
    """Serve this interface at this socket. Should it end by itself, `stop` is set, so that all the rest ends too."""
    config = uvicorn.Config(
        interface, http=Connection, ws="none", backlog=AT_ONCE, log_config=None, access_log=False, server_header=False, lifespan="off",
        timeout_graceful_shutdown=LINGER)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[http]))
    task.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        server.should_exit = True
        await task
