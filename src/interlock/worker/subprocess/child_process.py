"""The worker's side of one child process, which runs one execution or a group of suspects."""

import asyncio
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from ...engine.context import WorkerContext, call_soon
from ...engine.held_execution import HeldExecution
from ...engine.ledger import StoreLedger
from ...jobs.user_code import protected
from ...telemetry.events import Measured
from .messages import HEAD, LONGEST, Message, encode_error, encode_lease, encode_receipts, pack, unpack

What = Literal["prepare", "finish"]
KILL_AFTER = 5.0
"""Seconds that a child has to exit, or to stop its handler, before it is killed."""
KILL_AT_SHUTDOWN = 2.0
"""The same if the worker stops: less than its `GRACE`, so that the worker can still return the job to the queue."""
START_TIMEOUT = 60.0
EXIT_GRACE = 1.0
_ENDED = ["LeaseLost", "This attempt has ended. A run cannot be used after its handler has returned."]
_HINTS = {
    signal.SIGKILL: "a person or a program killed it, or the kernel did because memory ran out",
    signal.SIGSEGV: "a native library crashed; see the standard error of the worker",
    signal.SIGABRT: "a native library aborted; see the standard error of the worker",
    signal.SIGBUS: "a native library crashed; see the standard error of the worker",
}


class Died(Exception):
    """The child process ended before its job did.

    `began` is whether it had received the job, `shared` whether another job may have crashed it, and `ended` whether
    the worker ended it because of another job.
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
    """No child process could be started. The job is not the cause."""


@dataclass(eq=False)
class ChildCall:
    """One execution that runs in a child: it handles the child's requests and receives the result."""

    context: WorkerContext
    what: What
    execution: HeldExecution
    ledger: StoreLedger
    number: int = 0
    began: bool = False
    end: asyncio.Future[Message] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    verbs: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    kill_timer: asyncio.Task[None] | None = None

    def do(self, verb: str, args: list[Any]) -> Any:
        """Do what the run in the child requests, and return the reply. Blocks."""
        match verb:
            case "receipts":
                return encode_receipts(self.ledger.receipts())
            case "results":
                return self.ledger.results(*args)
            case "now":
                return self.context.retry_while_unavailable(self.context.now, "now").isoformat()
            case "advance" | "record_step" | "begin_effect" | "record_effect" | "discard_effect":
                getattr(self.ledger, verb)(*args)
                return None
            case _:
                raise ValueError(f"a child process sent the unknown request {verb!r}")

    def show(self, progress: list[Any] | None, measures: list[tuple[str, float]]) -> None:
        job = self.execution.job
        if progress is not None:
            self.execution.progress(*progress)
        for name, value in measures:
            self.execution.measure(name, value)
            self.context.events.emit(Measured(job.id, job.kind, name, value))

    def settle(self, end: Message | Died) -> None:
        if self.end.done():
            return
        if isinstance(end, Died):
            self.end.set_exception(end)
        else:
            self.end.set_result(end)

    async def wait(self) -> Message:
        """Wait for the result, and for all requests that still write. Raises `Died` if the child died."""
        try:
            return await self.end
        finally:
            if self.kill_timer is not None:
                self.kill_timer.cancel()
            if self.verbs:
                await asyncio.wait(self.verbs)


class Child:
    """A child process. Use it in the event loop only."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.alive = True
        self.shared = False
        """Whether it runs several executions at once."""
        self.memory = 0
        """How many bytes of memory it used when its last function ended."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._numbers = 0
        self._calls: dict[int, ChildCall] = {}
        self._killed_for: ChildCall | None = None
        self._first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._watching = protected(self._watch())

    @classmethod
    async def spawn(cls, target: str) -> "Child":
        """Start the process. Raises `CannotStart` if it does not start in time."""
        ours, theirs = socket.socketpair()
        try:
            async with asyncio.timeout(START_TIMEOUT):
                return await cls._spawn(target, ours, theirs)
        except TimeoutError:
            ours.close()
            raise CannotStart(f"the process did not start within {START_TIMEOUT:g} s") from None
        except BaseException:
            ours.close()
            raise

    @classmethod
    async def _spawn(cls, target: str, ours: socket.socket, theirs: socket.socket) -> "Child":
        with theirs:
            # The pipe is separate from standard input and output, because handlers may print.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"{__package__}.child",
                target,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def attempts(self) -> int:
        """How many executions it has received."""
        return self._numbers

    async def wait_until_ready(self, hello: Message) -> None:
        """Wait until the child has loaded the app. Raises `CannotStart` if it cannot, or takes too long."""
        self._send(hello)
        try:
            reply = await asyncio.wait_for(self._first, START_TIMEOUT)
        except TimeoutError:
            self.kill()
            raise CannotStart(f"the process did not load the app within {START_TIMEOUT:g} s") from None
        except Died as error:
            raise CannotStart(str(error)) from None
        except asyncio.CancelledError:
            self.kill()
            raise
        if reply["type"] != "ready":
            self.kill()
            raise CannotStart(reply["why"])

    # ------------------------------------------------------------ one execution
    async def run(self, call: ChildCall) -> Message:
        """Run an execution in the child and return its result. Raises `Died` if the process dies."""
        self._numbers += 1
        call.number, self._calls[self._numbers] = self._numbers, call
        if not self.alive:
            call.settle(Died("the process died before it received the job", began=False))
        self._send({"type": "run", "run": call.number, "what": call.what, "lease": encode_lease(call.execution)})
        loop = asyncio.get_running_loop()
        call.execution.on_halt(lambda: call_soon(loop, lambda: self._halt(call)))
        try:
            return await call.wait()
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            call.execution.on_halt(None)
            del self._calls[call.number]

    def _halt(self, call: ChildCall) -> None:
        """Kill the child if the lease or the time has ended. Otherwise ask it to stop, and kill it after a while."""
        if call.number not in self._calls:
            return
        if call.execution.stop in ("lost", "runtime"):
            self._kill_for(call)
            return
        self._send({"type": "halt", "run": call.number, "why": call.execution.stop})
        call.kill_timer = call.kill_timer or protected(self._kill_after_grace(call))

    async def _kill_after_grace(self, call: ChildCall) -> None:
        await call.context.sleeper.asleep(KILL_AT_SHUTDOWN if call.execution.stop == "shutdown" else KILL_AFTER)
        self._kill_for(call)

    def _kill_for(self, call: ChildCall) -> None:
        """Kill the child because of one execution. Its other jobs return to the queue and keep their tries."""
        self._killed_for = self._killed_for or call
        self.kill()

    # ------------------------------------------------------------ messages
    def _send(self, message: Message) -> None:
        # Do not wait for the write, because a child that does not read must not block its worker.
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def _listen(self) -> None:
        with suppress(EOFError, OSError, ValueError, KeyError, TypeError):
            while True:
                (size,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                if size > LONGEST:
                    return
                self._receive(unpack(await self._reader.readexactly(size)))

    def _receive(self, message: Message) -> None:
        type_, call = message["type"], self._calls.get(message.get("run", 0))
        if not self._first.done():
            self._first.set_result(message)
        elif call is None:
            # A thread of an earlier handler still uses its run.
            if type_ == "ask":
                self._send({"type": "reply", "n": message["n"], "error": _ENDED})
        elif type_ == "ask":
            task = protected(self._answer(call, message))
            call.verbs.add(task)
            task.add_done_callback(call.verbs.discard)
        elif type_ == "progress":
            call.show(message["progress"], message["measures"])
        elif type_ == "began":
            call.began = True
        else:
            self.memory = message.get("memory", self.memory)
            call.settle(message)

    async def _answer(self, call: ChildCall, message: Message) -> None:
        try:
            value = await asyncio.to_thread(call.do, message["verb"], message["args"])
        except Exception as error:  # noqa: BLE001 - sent to the child, which raises it
            self._send({"type": "reply", "n": message["n"], "error": encode_error(error)})
        else:
            self._send({"type": "reply", "n": message["n"], "value": value})

    # ------------------------------------------------------------ its end
    def kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """End the process: let an idle one exit by itself, and kill a busy one."""
        if self._calls or not self._first.done():
            self.kill()
        self._send({"type": "end"})
        await asyncio.wait({self._watching}, timeout=KILL_AFTER)
        self.kill()
        await self._watching

    async def _watch(self) -> None:
        """Wait until the process ends or closes the pipe.

        A dead child's pipe may stay open in a process that it started, so both are watched.
        """
        listening, exited = protected(self._listen()), protected(self._process.wait())
        ends: set[asyncio.Future[Any]] = {listening, exited}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(ends, timeout=EXIT_GRACE)
        self.kill()
        code = await exited
        listening.cancel()
        await asyncio.wait({listening})
        self.alive = False
        self._writer.close()
        if not self._first.done():
            self._first.set_exception(Died(describe_exit(code), began=False))
            self._first.exception()
        killed_for = self._killed_for
        for call in self._calls.values():
            ended = killed_for is not None and killed_for is not call
            call.settle(
                Died(describe_exit(code), began=call.began, shared=self.shared and killed_for is None, ended=ended)
            )


def describe_exit(code: int) -> str:
    """Describe how a process ended, and the likely cause."""
    if code >= 0:
        return f"the process died: exit code {code}; its handler, or code that it called, ended the process"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"the process died: signal {-code}"
    return (
        f"the process died: signal {-code} ({name.name}); "
        f"{_HINTS.get(name, 'another program sent the signal, or its own code did')}"
    )
