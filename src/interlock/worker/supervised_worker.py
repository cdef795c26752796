"""The supervisor's side of one worker process, and the channel between them.

The supervisor asks the process to drain through the channel, not by a signal, so that a signal that also reaches the
process itself is still its first. The process drains, too, if the channel closes, because then the supervisor has died.
"""

import asyncio
import itertools
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .subprocess.messages import HEAD, Message, pack, unpack

_log = logging.getLogger("interlock")
Arguments = Callable[[str, int], Sequence[str]]
"""Returns the arguments of `python` for a worker of this name, whose end of the channel is this file descriptor."""

EXIT_GRACE = 1.0
"""Seconds for the last messages of a process that has ended: a process that it forked may keep the channel open."""


@dataclass(frozen=True)
class ProcessEnd:
    """How a worker process ended."""

    code: int
    """Its exit code; negative if a signal killed it."""
    was_ready: bool


class SupervisedWorker:
    """One worker process of a supervisor, and those that follow if it ends. Use it in the event loop only."""

    def __init__(
        self,
        name: str,
        arguments: Arguments,
        *,
        on_ready: Callable[[], None],
        on_limit: Callable[["SupervisedWorker", str], None],
    ) -> None:
        """`on_limit` is called when the process has reached a limit, and should be replaced by another worker."""
        self.name = name
        self.ready = False
        """Whether the process runs and has connected to the database."""
        self.replaced = False
        """Whether another worker takes its place, so that the supervisor does not restart it."""
        self.restarting = False
        """Whether the supervisor asked it to end in order to restart it."""
        self.running = False
        """Whether its process is starting or runs."""
        self.first_ready = asyncio.Event()
        """Set when the process is ready for the first time."""
        self.predecessor: asyncio.Task[int] | None = None
        """The task of the worker that it replaces."""
        self._arguments = arguments
        self._on_ready = on_ready
        self._on_limit = on_limit
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answers = False
        self._drain: Message | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[list[Any] | None]] = {}

    @property
    def pid(self) -> int | None:
        """The id of the process; None while none runs."""
        return None if self._process is None else self._process.pid

    @property
    def answers(self) -> bool:
        """Whether the process has started far enough to answer questions."""
        return self._answers

    async def run(self) -> ProcessEnd:
        """Start the process and wait until it ends. Raises `OSError` if it cannot be started."""
        self.running = True
        try:
            return await self._run()
        finally:
            self._ended()

    async def _run(self) -> ProcessEnd:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *self._arguments(self.name, theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    # Ctrl-C at the terminal signals only the supervisor.
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        if self._drain is not None:
            self._send(self._drain)
        listening = asyncio.create_task(self._listen(reader))
        code = await self._process.wait()
        await asyncio.wait([listening], timeout=EXIT_GRACE)
        listening.cancel()
        return ProcessEnd(code, self.ready)

    def _ended(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._process = self._writer = self._drain = self._kill_timer = None
        self.ready = self.running = self._answers = False
        for question in self._questions.values():
            if not question.done():
                question.set_result(None)

    # ------------------------------------------------------------ messages
    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(EOFError, OSError, ValueError):
            while True:
                (size,) = HEAD.unpack(await reader.readexactly(HEAD.size))
                self._receive(unpack(await reader.readexactly(size)))

    def _receive(self, message: Message) -> None:
        match message["type"]:
            case "started":
                self._answers = True
            case "ready":
                self.ready = True
                self.first_ready.set()
                self._on_ready()
            case "limit":
                self._on_limit(self, message["why"])
            case _:
                question = self._questions.get(message["n"])
                if question is not None and not question.done():
                    question.set_result(message["answer"])

    def _send(self, message: Message) -> None:
        # Do not wait for the write, because a process that does not read must not block the others.
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    async def ask(self, what: str, within: float) -> list[Any] | None:
        """Ask the process, and return its answer; None if it has ended or does not answer within this many seconds."""
        if not self._answers:
            return None
        process = self._process
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._send({"type": "ask", "n": number, "what": what})
        try:
            found = await asyncio.wait_for(answer, within)
        except TimeoutError:
            return None
        finally:
            del self._questions[number]
        # The process may have ended since it answered.
        return found if self._process is process else None

    # ------------------------------------------------------------ its end
    def drain(self, why: str, seconds: float | None, *, kill_after: float) -> None:
        """Ask the process to claim no more jobs and to end. If it is still starting, it is asked afterwards.

        Running jobs have this many seconds to end; None means those of the worker. A process that has not ended after
        `kill_after` seconds is killed.
        """
        self._drain = {"type": "drain", "why": why, "seconds": seconds}
        self._send(self._drain)
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_timer = asyncio.get_running_loop().call_later(kill_after, self._kill_late, kill_after)

    def retire(self) -> None:
        """Ask the process to claim no more jobs, and to end when the running ones have ended."""
        self._send({"type": "retire"})

    def _kill_late(self, seconds: float) -> None:
        _log.warning("worker %s was asked to end %g s ago; the supervisor kills it", self.name, seconds)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
