"""Serve an ASGI application over HTTP at one address."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override

from .http_connections import HttpConnection, HttpConnections

DRAIN_SECONDS = 5
"""Seconds that running responses have to finish after a signal."""
ACCEPT_BATCH = 16
"""Connections accepted in one turn of the event loop, before any of them can be refused."""
BACKLOG = 1024
"""Connections that the operating system queues until they are accepted."""
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>[0-9]{1,5})", re.ASCII)


def open_listener(address: str, bad: type[Exception], taken: type[Exception]) -> socket.socket:
    """A listening socket at HOST:PORT, opened before anything else starts.

    Raises `bad` for a malformed address, and `taken` if the address cannot be used.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65_535:
        raise bad(f"{address!r} is not a valid address. Use HOST:PORT, for example 127.0.0.1:8099.")
    host, port = found["v6"] or found["host"], int(found["port"])
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if found["v6"] else socket.AF_INET)
    except OSError as error:
        raise taken(f"Cannot listen at {address}: {error.strerror or error}. Choose another address.") from None


def socket_url(http: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = http.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """A uvicorn server with connection limits. Its caller handles signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._connections = self.server_state = HttpConnections()

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # asyncio uses one number for two limits: connections per turn, and the length of the system's queue.
        for each in sockets or []:
            each.listen(BACKLOG)

    @override
    async def on_tick(self, counter: int) -> bool:
        self._connections.drop_overdue(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def run_server(interface: ASGIApp, http: socket.socket, stop: asyncio.Event) -> AsyncGenerator[None]:
    """Serve this interface at this socket during the block. If the server ends by itself, it sets `stop`."""
    config = uvicorn.Config(
        interface,
        http=HttpConnection,
        ws="none",
        backlog=ACCEPT_BATCH,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[http]))
    task.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        server.should_exit = True
        await task
