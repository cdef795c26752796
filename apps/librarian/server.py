"""Runs a worker, the HTTP API, or both in one process, until a signal."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack

from apps.common.serving import run_server, socket_url
from apps.common.signals import Say, stop_on_signal

from .api import make_api
from .jobs import Librarian


def run_until_signal(
    librarian: Librarian, say: Say, *, worker_lines: Sequence[str] | None, http: socket.socket | None
) -> None:
    """Work, serve, or both, until SIGTERM or SIGINT, then shut down gracefully. A second signal exits at once.

    A worker runs only if `worker_lines` are given. They are printed when it is ready.
    """
    asyncio.run(_run_until_signal(librarian, say, worker_lines, http))


async def _run_until_signal(
    librarian: Librarian, say: Say, worker_lines: Sequence[str] | None, http: socket.socket | None
) -> None:
    with stop_on_signal() as stop:
        async with AsyncExitStack() as stack:
            if worker_lines is not None:
                await stack.enter_async_context(librarian.app.worker())
                for line in worker_lines:
                    say(line)
            if http is not None:
                stack.callback(say, "no longer listening")
                await stack.enter_async_context(run_server(make_api(librarian), http, stop))
                say(f"listening at {socket_url(http)}")
            await stop.wait()
            say("stopping: running jobs and requests finish first")
