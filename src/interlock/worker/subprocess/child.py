"""The program of a child process, `python -m interlock.worker.subprocess.child module:app`. It ends with its worker.

The child runs only the user's functions. Their writes go through a pipe to the worker, which owns the lease and has the
database connection.
"""

import asyncio
import ctypes
import faulthandler
import functools
import inspect
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from typing import Any, NoReturn, Protocol, runtime_checkable

from ...core.error_policy import describe
from ...core.outcome import FailedFinally, Outcome
from ...core.payload import clean
from ...engine.classify import outcome_of, outcome_of_value
from ...engine.held_execution import HeldExecution
from ...engine.live_run import LiveRun, LiveSyncRun
from ...errors import PayloadError
from ...jobs.spec import KindSpec
from ...jobs.user_code import CallScope, Result, acall_within, atry_call, call_within, context_of, in_thread, protected
from ...jobs.user_code import run as run_loop
from ...telemetry import logs
from ...telemetry.events import Measured
from ..app_loader import find, import_module, not_an_app
from ..forked_handlers import call_unless_forked, exit_if_forked, reset_signals_in_forks
from ..recycle import resident_memory
from .channel import Channel, ChildExecution, PipeLedger
from .messages import Message, decode_lease, encode_outcome

PROGRESS_INTERVAL = 0.1
"""The shortest time, in seconds, between two progress reports to the worker."""
_PDEATHSIG = 1
MOST = 1000
"""The most functions that run in threads at once."""
_WRITERS = ThreadPoolExecutor(4, thread_name_prefix="interlock-ledger")


class _Kind(Protocol):
    @property
    def spec(self) -> KindSpec: ...


@runtime_checkable
class Loaded(Protocol):
    """The part of `interlock.App` that a child uses. This layer may not import the class itself."""

    imports: tuple[str, ...]
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None

    @property
    def kinds(self) -> Mapping[str, _Kind]: ...

    def bound_to(self, url: str, /) -> AbstractContextManager[Any]: ...


# ---------------------------------------------------------------- executions
class Service:
    """Receives the worker's messages and runs handlers, in this process's event loop or threads."""

    def __init__(self, channel: Channel) -> None:
        self.ready = False
        self._ending = False
        self._channel = channel
        self._kinds: Mapping[str, _Kind] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: asyncio.Queue[ChildExecution | None] = asyncio.Queue()
        self._executions: dict[int, ChildExecution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress_changed = threading.Event()
        # The pool needs no lower limit: the worker limits the jobs that it sends, and idle threads are reused.
        self._threads = ThreadPoolExecutor(MOST, "interlock-handler")

    # ------------------------------------------------------------ messages
    def receive(self, message: Message) -> None:
        """Handle one message. This runs in a thread that the user's code cannot block."""
        match message["type"]:
            case "reply":
                self._channel.resolve(message)
            case "run":
                self._channel.send({"type": "began", "run": message["run"]})
                self._deliver(message)
            case "halt":
                if (execution := self._executions.get(message["run"])) is not None:
                    execution.halt(message["why"])
            case _:
                self._put(None)

    def _deliver(self, message: Message) -> None:
        lease = decode_lease(message["lease"])
        kind = self._kinds.get(lease.job.kind)
        if kind is None:
            why = (
                f"the app no longer has the kind {lease.job.kind}, because its code has changed since the worker "
                "started; restart the worker"
            )
            self._channel.send({"type": "broken", "run": message["run"], "why": why})
            return
        execution = ChildExecution(
            lease,
            kind.spec,
            self._channel,
            message["run"],
            self._progress_changed,
            finishes=message["what"] == "finish",
        )
        self._executions[execution.number] = execution
        self._put(execution)

    def _put(self, execution: ChildExecution | None) -> None:
        if self._loop is None:
            os._exit(0)
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, execution)

    def send_progress(self) -> NoReturn:
        """Send new progress and usage of all handlers to the worker. This is the body of a thread."""
        pause = threading.Event()
        while True:
            self._progress_changed.wait()
            self._progress_changed.clear()
            for execution in list(self._executions.values()):
                execution.send_progress()
            pause.wait(PROGRESS_INTERVAL)

    # ------------------------------------------------------------ running, in the event loop
    async def serve(self, app: Loaded) -> None:
        """Run the executions that the worker sends, until it sends the end."""
        self._loop, self._kinds = asyncio.get_running_loop(), app.kinds
        async with (app.lifespan or nullcontext)():
            self.ready = True
            self._channel.send({"type": "ready"})
            while (execution := await self._inbox.get()) is not None:
                task = protected(self._execute(execution))
                self._tasks.add(task)
                task.add_done_callback(self._execution_ended)
            self._ending = True

    async def _execute(self, execution: ChildExecution) -> None:
        answer = await (self._run_finish(execution) if execution.finishes else self._run_handler(execution))
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError, OSError, AttributeError):
                stream.flush()
        execution.send_progress()
        del self._executions[execution.number]
        self._channel.send({**answer, "run": execution.number, "memory": resident_memory()})

    def _execution_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self._ending and (task.cancelled() or error is not None):
            # A bug in Interlock: exit, so that the worker does not wait for an answer that never comes.
            traceback.print_exception(error)
            os._exit(70)

    async def _run_handler(self, execution: ChildExecution) -> Message:
        signature, ledger = execution.spec.signature, PipeLedger(self._channel, execution)
        try:
            args, kwargs = signature.spread(signature.check(execution.job.payload))
        except PayloadError as fault:
            return {
                "type": "done",
                "outcome": encode_outcome(FailedFinally(clean(f"the stored payload no longer fits: {fault}"))),
            }
        value, error = await self._call(execution, ledger, signature.handler, *args, **kwargs)
        return {
            "type": "done",
            "outcome": encode_outcome(await asyncio.to_thread(_outcome_of_call, execution, ledger, value, error)),
        }

    async def _run_finish(self, execution: ChildExecution) -> Message:
        fn = execution.spec.finish
        if fn is None:
            return {"type": "done"}
        error: BaseException | None
        try:
            value = execution.spec.signature.load_value(json.loads(execution.value or "null"))
        except PayloadError as fault:
            error = fault
        else:
            _, error = await self._call(execution, PipeLedger(self._channel, execution), fn, value)
        return {"type": "done"} if error is None else {"type": "raised", "text": describe(error)}

    async def _call(
        self, execution: ChildExecution, ledger: PipeLedger, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Result:
        loop, pid, owner = (
            asyncio.get_running_loop(),
            os.getpid(),
            CallScope(execution.job.kind, execution.job.id, execution.job.attempt),
        )
        around = execution.spec.around
        if not inspect.iscoroutinefunction(fn):
            run = LiveSyncRun(execution, _RunHost(ledger))
            call = functools.partial(call_within, around, functools.partial(fn, run, *args, **kwargs))
            return await loop.run_in_executor(
                self._threads,
                functools.partial(context_of(owner).run, functools.partial(call_unless_forked, pid, call)),
            )
        arun = LiveRun(execution, _RunHost(ledger))
        task = protected(
            atry_call(functools.partial(acall_within, around, functools.partial(fn, arun, *args, **kwargs))), owner
        )

        def halt() -> None:
            loop.call_soon_threadsafe(task.cancel)

        execution.on_halt(halt)
        try:
            return await task
        except asyncio.CancelledError as error:
            return None, error
        finally:
            exit_if_forked(pid)
            execution.on_halt(None)


def _outcome_of_call(execution: ChildExecution, ledger: PipeLedger, value: Any, error: BaseException | None) -> Outcome:
    try:
        return outcome_of_value(execution, value)[0] if error is None else outcome_of(error, execution, ledger.now)
    except Exception as fault:  # noqa: BLE001 - a value or an error that cannot be read is an error of the handler
        return outcome_of(fault, execution, ledger.now)


class _RunHost:
    """The host of one run in this process."""

    def __init__(self, ledger: PipeLedger) -> None:
        self._ledger = ledger

    def open_ledger(self, execution: HeldExecution, /) -> PipeLedger:
        del execution
        return self._ledger

    def measured(self, event: Measured, /) -> None:
        """Do nothing, because the execution sends its usage to the worker, which emits the event."""

    async def in_thread(self, execution: HeldExecution, call: Callable[[], Any], /) -> Any:
        return await in_thread(functools.partial(call_within, execution.spec.around, call))

    async def write(self, work: Callable[[], Any], /) -> Any:
        """Write in separate threads, so that handlers' functions cannot block the pipe."""
        return await asyncio.get_running_loop().run_in_executor(_WRITERS, work)

    async def advance(self, execution: HeldExecution, stage: str, /) -> None:
        del execution
        await asyncio.to_thread(self._ledger.advance, stage)


# ---------------------------------------------------------------- the program
def load(target: str) -> Loaded:
    """Import the app and the modules in its `imports`."""
    found = find(target)
    if not isinstance(found, Loaded):
        raise not_an_app(target, found)
    for extra in found.imports:
        import_module(extra)
    return found


def tie_to_worker(channel: Channel) -> None:
    """End only with the worker. Ctrl-C at the terminal reaches both processes, and the worker decides what to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN, because programs that a handler executes would inherit it.
        signal.signal(number, _ignore_signal)
    reset_signals_in_forks(channel.close_in_fork)
    with suppress(AttributeError, OSError, ValueError):
        faulthandler.enable()


def _ignore_signal(number: int, frame: object) -> None:
    del number, frame


def listen(channel: Channel, receive: Callable[[Message], None]) -> NoReturn:
    """Receive the worker's messages until it ends. This is the body of a thread."""
    try:
        while True:
            receive(channel.read())
    except BaseException:  # noqa: BLE001 - a child that receives no more messages must exit
        traceback.print_exc()
        os._exit(70)


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        sys.exit("Only a worker starts this program. Run interlock worker -A MODULE:APP instead.")
    target, number = arguments
    os.set_inheritable(int(number), False)
    channel = Channel(socket.socket(fileno=int(number)))
    tie_to_worker(channel)
    hello, service = channel.read(), Service(channel)
    # Start the threads before the app is loaded, so that the child notices if the worker ends meanwhile.
    for body in (functools.partial(listen, channel, service.receive), service.send_progress):
        threading.Thread(target=body, daemon=True).start()
    try:
        sys.path[:] = hello["path"]
        if (chosen := hello.get("logs")) is not None:
            logs.configure(**chosen)
        app = load(target)
        with app.bound_to(hello["database"]) if hello["database"] else nullcontext():
            run_loop(service.serve(app), interruptible=False)
    except BaseException as error:
        if not service.ready:
            channel.send({"type": "broken", "why": clean(str(error) or type(error).__name__)})
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
