"""The long-running side: a worker, the page with its interface over HTTP, or both in one process, until a signal."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack

from apps.common.serving import LINGER, served, url_of
from apps.common.signals import STOPPING, Say, signals

from .api import api
from .jobs import Studio


def until_signal(studio: Studio, say: Say, *, works: Sequence[str] | None, slots: int, http: socket.socket | None) -> None:
    """Work, serve, or both, until SIGTERM or SIGINT; then end in good order. A second signal ends the process at once.

    `works` is what is said of a worker before it is ready, line by line; without it none runs.
    """
    asyncio.run(_until_signal(studio, say, works, slots, http))


async def _until_signal(studio: Studio, say: Say, works: Sequence[str] | None, slots: int, http: socket.socket | None) -> None:
    with signals() as stop:
        async with AsyncExitStack() as stack:
            if works is not None:
                await stack.enter_async_context(studio.app.worker(slots=slots))
                for line in works:
                    say(line)
            if http is not None:
                stack.callback(say, "listening no more")
                # The streams hear of the end as soon as it is wanted: no connection would end by itself.
                await stack.enter_async_context(served(api(studio, stop=stop), http, stop))
                say(f"listening at {url_of(http)}")
            if works is not None:
                say("the worker is ready")
            await stop.wait()
            say(STOPPING if works is not None else f"stopping: what is being answered may end for up to {LINGER} s; a second signal ends it at once")
