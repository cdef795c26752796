"""The worker's side of one child process, which runs one execution or a group of suspects."""

import asyncio
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from ..events import Measured
from ..user_code import protected
from .desk import Desk, soon
from .grip import Grip
from .runs import StoreLedger
from .wire import HEAD, LONGEST, Message, error_told, lease_told, pack, receipts_told, unpack

What = Literal["prepare", "finish"]
PATIENCE = 5.0
"""Seconds that a child has to end, or to end its handler, before it is killed."""
STARTING = 60.0
LINGER = 1.0
_OVER = ["LeaseLost", "This attempt has ended: a run is of no use after its handler."]
_HINTS = {
    signal.SIGKILL: "somebody killed it, or the kernel did for want of memory",
    signal.SIGSEGV: "a native library crashed it; its standard error says where",
    signal.SIGABRT: "a native library gave up; its standard error says why",
    signal.SIGBUS: "a native library crashed it; its standard error says where",
}


class Died(Exception):
    """The child ended before its job did. `began` says whether it had received the job.

    `shared` says that other jobs may have killed it; `ended` that its worker ended it because of another job.
    """

    def __init__(self, sentence: str, *, began: bool, shared: bool = False, ended: bool = False) -> None:
        super().__init__(sentence)
        self.began = began
        self.shared = shared
        self.ended = ended

    @property
    def others(self) -> bool:
        """Whether another job may be the cause."""
        return self.shared or self.ended


class CannotStart(Exception):
    """There is no child that could run the job, through no fault of the job."""


@dataclass(eq=False)
class Errand:
    """One execution in a child's hands: what the child may ask for it, and where its end is told."""

    desk: Desk
    what: What
    grip: Grip
    ledger: StoreLedger
    number: int = 0
    began: bool = False
    end: asyncio.Future[Message] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    verbs: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    patience: asyncio.Task[None] | None = None

    def do(self, verb: str, args: list[Any]) -> Any:
        """What a run in the child wants done here. It blocks."""
        match verb:
            case "receipts":
                return receipts_told(self.ledger.receipts())
            case "now":
                return self.desk.persistently(self.desk.now, "now").isoformat()
            case "advance" | "remember" | "ask" | "apply" | "unask":
                getattr(self.ledger, verb)(*args)
                return None
            case _:
                raise ValueError(f"a child asked for {verb!r}, which is no verb")

    def show(self, progress: list[Any] | None, measures: list[tuple[str, float]]) -> None:
        job = self.grip.job
        if progress is not None:
            self.grip.progress(*progress)
        for name, value in measures:
            self.grip.measure(name, value)
            self.desk.events.emit(Measured(job.id, job.kind, name, value))

    def settle(self, end: Message | Died) -> None:
        if self.end.done():
            return
        if isinstance(end, Died):
            self.end.set_exception(end)
        else:
            self.end.set_result(end)

    async def settled(self) -> Message:
        """How it ended, once nothing of it is being written any more: what it asked for may move the job."""
        try:
            return await self.end
        finally:
            if self.patience is not None:
                self.patience.cancel()
            if self.verbs:
                await asyncio.wait(self.verbs)


class Child:
    """A process of ours. All of it lives in the event loop."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.alive = True
        self.shared = False
        """Whether it runs several executions at once."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._numbers = 0
        self._errands: dict[int, Errand] = {}
        self._ended_for: Errand | None = None
        self._first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._watching = protected(self._watch())

    @classmethod
    async def spawn(cls, target: str) -> "Child":
        """Start the process. `CannotStart` if the machine does not in time."""
        ours, theirs = socket.socketpair()
        try:
            async with asyncio.timeout(STARTING):
                return await cls._spawn(target, ours, theirs)
        except TimeoutError:
            ours.close()
            raise CannotStart(f"its process has not started in {STARTING:g} s") from None
        except BaseException:
            ours.close()
            raise

    @classmethod
    async def _spawn(cls, target: str, ours: socket.socket, theirs: socket.socket) -> "Child":
        with theirs:
            # The pipe is one of its own: handlers print to standard output, and read nothing.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"{__package__}.child", target, str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def greet(self, hello: Message) -> None:
        """Wait until it has loaded the app. `CannotStart` if it cannot, or takes too long."""
        self._send(hello)
        try:
            said = await asyncio.wait_for(self._first, STARTING)
        except TimeoutError:
            self.kill()
            raise CannotStart(f"it has not loaded the app in {STARTING:g} s") from None
        except Died as error:
            raise CannotStart(str(error)) from None
        except asyncio.CancelledError:
            self.kill()
            raise
        if said["say"] != "ready":
            self.kill()
            raise CannotStart(said["why"])

    # ------------------------------------------------------------ one execution
    async def carry(self, errand: Errand) -> Message:
        """Have it run this, and wait for how it ended. `Died` if the process did instead."""
        self._numbers += 1
        errand.number, self._errands[self._numbers] = self._numbers, errand
        if not self.alive:
            errand.settle(Died("the process died before it was given the job", began=False))
        self._send({"say": "run", "run": errand.number, "what": errand.what, "lease": lease_told(errand.grip)})
        loop = asyncio.get_running_loop()
        errand.grip.on_halt(lambda: soon(loop, lambda: self._halt(errand)))
        try:
            return await errand.settled()
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            errand.grip.on_halt(None)
            del self._errands[errand.number]

    def _halt(self, errand: Errand) -> None:
        """A request is told, and gets a while; where the lease or the time is over, there is nothing to wait for."""
        if errand.number not in self._errands:
            return
        if errand.grip.stop in ("lost", "runtime"):
            self._end_for(errand)
            return
        self._send({"say": "halt", "run": errand.number, "why": errand.grip.stop})
        errand.patience = errand.patience or protected(self._lose_patience(errand))

    async def _lose_patience(self, errand: Errand) -> None:
        await errand.desk.waits.asleep(PATIENCE)
        self._end_for(errand)

    def _end_for(self, errand: Errand) -> None:
        """Kill it because of one execution. Its other executions are returned, and their jobs keep their tries."""
        self._ended_for = self._ended_for or errand
        self.kill()

    # ------------------------------------------------------------ talking
    def _send(self, message: Message) -> None:
        # Never waited for: a child that does not read must not hold up its worker.
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def _listen(self) -> None:
        with suppress(EOFError, OSError, ValueError, KeyError, TypeError):
            while True:
                (size,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                if size > LONGEST:
                    return
                self._hear(unpack(await self._reader.readexactly(size)))

    def _hear(self, message: Message) -> None:
        say, errand = message["say"], self._errands.get(message.get("run", 0))
        if not self._first.done():
            self._first.set_result(message)
        elif errand is None:
            # Left behind by an earlier handler: a thread that still holds its run.
            if say == "ask":
                self._send({"say": "reply", "n": message["n"], "error": _OVER})
        elif say == "ask":
            task = protected(self._answer(errand, message))
            errand.verbs.add(task)
            task.add_done_callback(errand.verbs.discard)
        elif say == "shown":
            errand.show(message["progress"], message["measures"])
        elif say == "began":
            errand.began = True
        else:
            errand.settle(message)

    async def _answer(self, errand: Errand, message: Message) -> None:
        try:
            value = await asyncio.to_thread(errand.do, message["verb"], message["args"])
        except Exception as error:  # noqa: BLE001 - raised in the child, where it was asked
            self._send({"say": "reply", "n": message["n"], "error": error_told(error)})
        else:
            self._send({"say": "reply", "n": message["n"], "value": value})

    # ------------------------------------------------------------ its end
    def kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """Have it end: in peace if it is idle, and at once if it is not."""
        if self._errands or not self._first.done():
            self.kill()
        self._send({"say": "end"})
        await asyncio.wait({self._watching}, timeout=PATIENCE)
        self.kill()
        await self._watching

    async def _watch(self) -> None:
        """Wait for its end, however it comes: it closes the pipe, or it dies and something that it started holds the pipe on."""
        listening, exited = protected(self._listen()), protected(self._process.wait())
        ends: set[asyncio.Future[Any]] = {listening, exited}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(ends, timeout=LINGER)
        self.kill()
        code = await exited
        listening.cancel()
        await asyncio.wait({listening})
        self.alive = False
        self._writer.close()
        if not self._first.done():
            self._first.set_exception(Died(obituary(code), began=False))
            self._first.exception()
        ended_for = self._ended_for
        for errand in self._errands.values():
            ended = ended_for is not None and ended_for is not errand
            errand.settle(Died(obituary(code), began=errand.began, shared=self.shared and ended_for is None, ended=ended))


def obituary(code: int) -> str:
    """How a process ended, and what may have ended it."""
    if code >= 0:
        return f"the process died: exit code {code}; its handler, or something that it called, ended the process"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"the process died: signal {-code}"
    return f"the process died: signal {-code} ({name.name}); {_HINTS.get(name, 'somebody sent it, or its own code did')}"
