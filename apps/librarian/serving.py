"""The long-running side: a worker, the interface over HTTP, or both in one process, until a signal."""

import asyncio
import re
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import uvicorn
from typing_extensions import override

from .api import api
from .desk import Miscalled
from .errors import LibrarianError
from .jobs import Librarian

LINGER = 5
"""Seconds for which answers that are under way may go on after a signal."""
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>[0-9]{1,5})", re.ASCII)
Say = Callable[[str], None]


def listening(address: str) -> socket.socket:
    """A socket at HOST:PORT, so that a port which is taken is known before anything else begins."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65_535:
        raise Miscalled(f"{address!r} is no address to listen at: give HOST:PORT, as in 127.0.0.1:8099.")
    host, port = found["v6"] or found["host"], int(found["port"])
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if found["v6"] else socket.AF_INET)
    except OSError as error:
        raise LibrarianError(f"Nobody can listen at {address}: {error.strerror or error}. Give another address.") from None


def until_signal(librarian: Librarian, say: Say, *, follows: Sequence[str] | None, http: socket.socket | None) -> None:
    """Work, serve, or both, until SIGTERM or SIGINT; then end in good order. A second signal ends the process at once.

    `follows` is what a worker says when it is ready, line by line; without it none runs.
    """
    asyncio.run(_until_signal(librarian, say, follows, http))


async def _until_signal(librarian: Librarian, say: Say, follows: Sequence[str] | None, http: socket.socket | None) -> None:
    with _signals() as stop:
        async with AsyncExitStack() as stack:
            if follows is not None:
                await stack.enter_async_context(librarian.app.worker())
                for line in follows:
                    say(line)
            if http is not None:
                host, port = http.getsockname()[:2]
                stack.callback(say, "listening no more")
                await stack.enter_async_context(_served(librarian, http, stop))
                say(f"listening at http://{f'[{host}]' if ':' in host else host}:{port}")
            await stop.wait()
            say("stopping: what runs is finished first")


@contextmanager
def _signals() -> Generator[asyncio.Event]:
    """Set by the first signal; from then on they do what they do to any program."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def heard() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, heard)
    yield stop


class _Server(uvicorn.Server):
    """It leaves the signals to whoever runs it."""

    @contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def _served(librarian: Librarian, http: socket.socket, stop: asyncio.Event) -> AsyncGenerator[None]:
    config = uvicorn.Config(api(librarian), log_config=None, access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=LINGER)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[http]))
    # Should it end by itself, so does all the rest.
    task.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        server.should_exit = True
        await task
