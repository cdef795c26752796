"""Runs a worker, the web server, or both in one process, until a signal."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack

from apps.common.serving import DRAIN_SECONDS, run_server, socket_url
from apps.common.signals import STOPPING_MESSAGE, Say, stop_on_signal

from ..api import api
from ..jobs import Studio


def run_until_signal(
    studio: Studio, say: Say, *, works: Sequence[str] | None, slots: int, http: socket.socket | None
) -> None:
    """Run until SIGTERM or SIGINT, then shut down gracefully. A second signal ends the process at once.

    `works` are the lines to print when the worker has started; without them, no worker runs.
    """
    asyncio.run(_until_signal(studio, say, works, slots, http))


async def _until_signal(
    studio: Studio, say: Say, works: Sequence[str] | None, slots: int, http: socket.socket | None
) -> None:
    with stop_on_signal() as stop:
        async with AsyncExitStack() as stack:
            if works is not None:
                await stack.enter_async_context(studio.app.worker(slots=slots))
                for line in works:
                    say(line)
            if http is not None:
                stack.callback(say, "stopped listening")
                # `stop` also ends the event streams, which would otherwise stay open.
                await stack.enter_async_context(run_server(api(studio, stop=stop), http, stop))
                say(f"listening at {socket_url(http)}")
            if works is not None:
                say("the worker is ready")
            await stop.wait()
            say(
                STOPPING_MESSAGE
                if works is not None
                else f"stopping: open requests have up to {DRAIN_SECONDS} s to finish; a second signal stops at once"
            )
