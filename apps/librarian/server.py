"""The long-running side: a worker, the interface over HTTP, or both in one process, until a signal."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack

from apps.common.serving import served, url_of
from apps.common.signals import Say, signals

from .api import api
from .jobs import Librarian


def until_signal(librarian: Librarian, say: Say, *, follows: Sequence[str] | None, http: socket.socket | None) -> None:
    """Work, serve, or both, until SIGTERM or SIGINT; then end in good order. A second signal ends the process at once.

    `follows` is what a worker says when it is ready, line by line; without it none runs.
    """
    asyncio.run(_until_signal(librarian, say, follows, http))


async def _until_signal(librarian: Librarian, say: Say, follows: Sequence[str] | None, http: socket.socket | None) -> None:
    with signals() as stop:
        async with AsyncExitStack() as stack:
            if follows is not None:
                await stack.enter_async_context(librarian.app.worker())
                for line in follows:
                    say(line)
            if http is not None:
                stack.callback(say, "listening no more")
                await stack.enter_async_context(served(api(librarian), http, stop))
                say(f"listening at {url_of(http)}")
            await stop.wait()
            say("stopping: what runs is finished first")
