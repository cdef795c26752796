"""The program of a child, `python -m interlock.worker.child module:app`. It runs handlers, and ends with its worker.

Only the functions run here. What they write goes through the pipe to the worker, which holds the lease and has the database.
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

from ..declaration import Declaration
from ..errors import PayloadError
from ..events import Measured
from ..outcome import Failed, Outcome
from ..payload import clean
from ..target import find, imported, not_an_app
from ..taxonomy import describe
from ..telemetry import logs
from ..user_code import Result, Scope, acaught, asurround, context_of, in_thread, protected, surround
from ..user_code import run as run_loop
from .forks import set_free, stay, stayed
from .line import ChildGrip, Line, PipeLedger
from .runs import LiveRun, LiveSyncRun
from .verdict import outcome_of, returned
from .wire import Message, lease_heard, outcome_told

NEWS = 0.1
"""Seconds between two reports of progress at least, however often a handler has some."""
_PDEATHSIG = 1
MOST = 1000
"""The most functions that run at once, in threads."""
_WRITERS = ThreadPoolExecutor(4, thread_name_prefix="interlock-ledger")


class _Kind(Protocol):
    @property
    def declaration(self) -> Declaration: ...


@runtime_checkable
class Loaded(Protocol):
    """What a child needs of an App, which stands above it."""

    imports: tuple[str, ...]
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None

    @property
    def kinds(self) -> Mapping[str, _Kind]: ...

    def bound_to(self, url: str, /) -> AbstractContextManager[Any]: ...


# ---------------------------------------------------------------- executions, as many at once as the worker sends
class Service:
    """Receives the worker's messages and runs handlers, in the event loop of this process or in its threads."""

    def __init__(self, line: Line) -> None:
        self.ready = False
        self._ending = False
        self._line = line
        self._kinds: Mapping[str, _Kind] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: asyncio.Queue[ChildGrip | None] = asyncio.Queue()
        self._grips: dict[int, ChildGrip] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._fresh = threading.Event()
        # As many threads as needed: the worker limits what it sends, and single jobs reuse the last thread.
        self._threads = ThreadPoolExecutor(MOST, "interlock-handler")

    # ------------------------------------------------------------ heard, in a thread that nothing of the user's can block
    def hear(self, message: Message) -> None:
        match message["say"]:
            case "reply":
                self._line.answered(message)
            case "run":
                self._line.send({"say": "began", "run": message["run"]})
                self._deliver(message)
            case "halt":
                if (grip := self._grips.get(message["run"])) is not None:
                    grip.halt(message["why"])
            case _:
                self._put(None)

    def _deliver(self, message: Message) -> None:
        lease = lease_heard(message["lease"])
        kind = self._kinds.get(lease.job.kind)
        if kind is None:
            why = f"the app has no kind {lease.job.kind} any more: its code has changed since the worker started, so restart the worker"
            self._line.send({"say": "broken", "run": message["run"], "why": why})
            return
        grip = ChildGrip(lease, kind.declaration, self._line, message["run"], self._fresh, finishes=message["what"] == "finish")
        self._grips[grip.number] = grip
        self._put(grip)

    def _put(self, grip: ChildGrip | None) -> None:
        if self._loop is None:
            os._exit(0)
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, grip)

    def bring_news(self) -> NoReturn:
        """Tell what handlers have to show: the body of a thread."""
        pause = threading.Event()
        while True:
            self._fresh.wait()
            self._fresh.clear()
            for grip in list(self._grips.values()):
                grip.tell()
            pause.wait(NEWS)

    # ------------------------------------------------------------ carried out, in the event loop
    async def serve(self, app: Loaded) -> None:
        self._loop, self._kinds = asyncio.get_running_loop(), app.kinds
        async with (app.lifespan or nullcontext)():
            self.ready = True
            self._line.send({"say": "ready"})
            while (grip := await self._inbox.get()) is not None:
                task = protected(self._carry(grip))
                self._tasks.add(task)
                task.add_done_callback(self._carried)
            self._ending = True

    async def _carry(self, grip: ChildGrip) -> None:
        answer = await (self._finished(grip) if grip.finishes else self._prepared(grip))
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError, OSError, AttributeError):
                stream.flush()
        grip.tell()
        del self._grips[grip.number]
        self._line.send({**answer, "run": grip.number})

    def _carried(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self._ending and (task.cancelled() or error is not None):
            # A bug of ours: report it, so that the worker does not wait for an answer that never comes.
            traceback.print_exception(error)
            os._exit(70)

    async def _prepared(self, grip: ChildGrip) -> Message:
        signature, ledger = grip.declaration.signature, PipeLedger(self._line, grip)
        try:
            args, kwargs = signature.spread(signature.check(grip.job.payload))
        except PayloadError as fault:
            return {"say": "done", "outcome": outcome_told(Failed(clean(f"the stored payload no longer fits: {fault}")))}
        value, error = await self._called(grip, ledger, signature.fn, *args, **kwargs)
        return {"say": "done", "outcome": outcome_told(await asyncio.to_thread(_judged, grip, ledger, value, error))}

    async def _finished(self, grip: ChildGrip) -> Message:
        fn = grip.declaration.finish
        if fn is None:
            return {"say": "done"}
        error: BaseException | None
        try:
            value = grip.declaration.signature.load_value(json.loads(grip.value or "null"))
        except PayloadError as fault:
            error = fault
        else:
            _, error = await self._called(grip, PipeLedger(self._line, grip), fn, value)
        return {"say": "done"} if error is None else {"say": "raised", "text": describe(error)}

    async def _called(self, grip: ChildGrip, ledger: PipeLedger, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Result:
        loop, pid, owner = asyncio.get_running_loop(), os.getpid(), Scope(grip.job.kind, grip.job.id, grip.job.attempt)
        around = grip.declaration.around
        if not inspect.iscoroutinefunction(fn):
            run = LiveSyncRun(grip, ledger, _heard_from_grip)
            call = functools.partial(surround, around, functools.partial(fn, run, *args, **kwargs))
            return await loop.run_in_executor(self._threads, functools.partial(context_of(owner).run, functools.partial(stayed, pid, call)))
        arun = LiveRun(
            grip, ledger, _heard_from_grip, hop=lambda step: in_thread(functools.partial(surround, around, step)), write=_written,
            advance=_hopping(ledger.advance))
        task = protected(acaught(functools.partial(asurround, around, functools.partial(fn, arun, *args, **kwargs))), owner)

        def halt() -> None:
            loop.call_soon_threadsafe(task.cancel)

        grip.on_halt(halt)
        try:
            return await task
        except asyncio.CancelledError as error:
            return None, error
        finally:
            stay(pid)
            grip.on_halt(None)


def _judged(grip: ChildGrip, ledger: PipeLedger, value: Any, error: BaseException | None) -> Outcome:
    try:
        return returned(grip, value)[0] if error is None else outcome_of(error, grip, ledger.now)
    except Exception as fault:  # noqa: BLE001 - an answer that cannot be read is an error like any other
        return outcome_of(fault, grip, ledger.now)


async def _written(work: Callable[[], Any]) -> Any:
    """Write in separate threads, so that handlers' functions cannot block the pipe."""
    return await asyncio.get_running_loop().run_in_executor(_WRITERS, work)


def _hopping(advance: Callable[[str], None]) -> Callable[[str], Any]:
    return lambda stage: asyncio.to_thread(advance, stage)


def _heard_from_grip(measured: Measured) -> None:
    """The grip has told it already; the worker makes the event of it."""
    del measured


# ---------------------------------------------------------------- the program
def load(target: str) -> Loaded:
    """The app, and what it wants imported."""
    found = find(target)
    if not isinstance(found, Loaded):
        raise not_an_app(target, found)
    for extra in found.imports:
        imported(extra)
    return found


def settle_in(line: Line) -> None:
    """End with the worker, and by nobody else's word: a Ctrl-C at the terminal reaches both, and the worker decides."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        # A function that does nothing, since what a handler executes would inherit that they are ignored.
        signal.signal(number, _stay)
    set_free(line.forked)
    with suppress(AttributeError, OSError, ValueError):
        faulthandler.enable()


def _stay(number: int, frame: object) -> None:
    del number, frame


def listen(line: Line, hear: Callable[[Message], None]) -> NoReturn:
    """Hear the worker to the end: the body of a thread."""
    try:
        while True:
            hear(line.read())
    except BaseException:  # noqa: BLE001 - whatever it is, a child that hears nothing any more must not go on
        traceback.print_exc()
        os._exit(70)


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        sys.exit("A worker starts this program by itself: run interlock worker -A MODULE:APP.")
    target, number = arguments
    os.set_inheritable(int(number), False)
    line = Line(socket.socket(fileno=int(number)))
    settle_in(line)
    hello, service = line.read(), Service(line)
    # Before the app is loaded, so that a worker that ends meanwhile is noticed.
    for body in (functools.partial(listen, line, service.hear), service.bring_news):
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
            line.send({"say": "broken", "why": clean(str(error) or type(error).__name__)})
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
