"""The supervisor's side of one worker process, and the channel between them.

The supervisor asks the process to drain through the channel, not by a signal, so that a signal that also reaches the
process itself is still its first. The process drains, too, if the channel closes, because then the supervisor has died.
"""

import asyncio
import itertools
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .subprocess.messages import HEAD, Message, pack, unpack

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
    """One worker process of a supervisor. Use it in the event loop only."""

    def __init__(self, name: str, arguments: Arguments, on_ready: Callable[[], None]) -> None:
        self.name = name
        self.ready = False
        """Whether the process runs and has connected to the database."""
        self._arguments = arguments
        self._on_ready = on_ready
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answers = False
        self._drain: Message | None = None
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[list[Any] | None]] = {}

    async def run(self) -> ProcessEnd:
        """Start the process and wait until it ends. Raises `OSError` if it cannot be started."""
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
        return self._ended(code)

    def _ended(self, code: int) -> ProcessEnd:
        end = ProcessEnd(code, self.ready)
        if self._writer is not None:
            self._writer.close()
        self._process = self._writer = None
        self.ready = self._answers = False
        for question in self._questions.values():
            if not question.done():
                question.set_result(None)
        return end

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
                self._on_ready()
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
    def drain(self, why: str) -> None:
        """Ask the process to claim no more jobs and to end. If it is still starting, it is asked afterwards."""
        self._drain = {"type": "drain", "why": why}
        self._send(self._drain)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
