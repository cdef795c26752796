"""`interlock worker`: one worker process, from its first line to its exit code."""

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from types import FrameType
from typing import Annotated, Any

import typer

from ..app import App
from ..boot import HUNG, Plan, booted
from ..errors import NotMigrated, UsageError
from ..events import AttemptEnded, Notice, WorkerMoved
from ..telemetry import logs
from ..user_code import run
from ..worker.forks import set_free
from ..worker.worker import DRAIN, ERROR_WAIT, Worker
from . import screen
from .streams import Streams
from .target import AppOption, DatabaseOption, Miscalled, as_it_is, needed, shown
from .words import names

HANDLERS = ("interlock-handler", "interlock-commit", "interlock-hop")
"""What the threads are called in which an app's own functions run."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LINGER = 0.5
"""Seconds that they have to end, all of them together, when everything else has."""
LAST_WORDS = 5.0
"""Seconds for a worker that hangs to say where: what takes its last words may hang, too."""


def worker(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    queues: Annotated[str | None, typer.Option(metavar="A,B", help="Only these queues; else those that its kinds name, and default.")] = None,
    kinds: Annotated[str | None, typer.Option(metavar="X,Y", help="Only these kinds of the app; else all.")] = None,
    slots: Annotated[int, typer.Option(min=1, help="How many jobs it carries at once.")] = 100,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for handlers that are not async; else a few more than cores.")] = None,
    name: Annotated[str | None, typer.Option(help="What it is called; else by host and process. Two may have the same name.")] = None,
    listen: Annotated[bool, typer.Option("--listen/--no-listen", help="Whether the database wakes it; --no-listen only polls, as behind a pooler.")] = True,
    metrics_port: Annotated[int | None, typer.Option(min=0, max=65_535, metavar="PORT", help="Serve Prometheus metrics there.")] = None,
    metrics_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where they can be reached from.")] = "127.0.0.1",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON, a line each.")] = False,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Run one worker, until a signal.

    On SIGTERM or SIGINT it claims no more, lets what runs finish for 25 seconds, gives the rest back, and exits with 0. On a second signal it ends at once,
    with 128 and the signal's number; the leases recover its jobs. A database that is away is asked again every five seconds: the worker stays.

    Exits with 1 if the database was not migrated for this app or the app's lifespan raised, with 2 if it was called wrongly, and with 70 if it hung, so
    that whoever watches it starts another.

    Example: interlock worker -A shop:app --queues mail,default --slots 50
    """
    chosen = needed(app)
    wanted = _known(chosen, names(kinds, "--kinds"))
    streams = Streams()
    _configure(log_json, log_level, streams)
    with ExitStack() as stack:
        if database:
            stack.enter_context(chosen.bound_to(database))
        # A URL that can never work is said so now, not every five seconds.
        as_it_is(chosen).close()
        stack.callback(chosen.close)
        few = {} if threads is None else {"threads": threads}
        called = name or f"{socket.gethostname()[:40]}-{os.getpid()}"
        plan = chosen.plan(only=wanted, queues=names(queues, "--queues"), slots=slots, name=called, listen=listen, **few).checked()
        process = Process(plan, shown(chosen.database.url), streams)
        if metrics_port is not None:
            stack.callback(_serve(process, plan, metrics_host, metrics_port))
        code = process.run()
    streams.flush()
    raise typer.Exit(code)


def _known(app: App[Any], wanted: tuple[str, ...]) -> tuple[str, ...]:
    if strange := [name for name in wanted if name not in app.kinds]:
        raise Miscalled(f"--kinds names {', '.join(strange)}, which this app has not: it has {', '.join(sorted(app.kinds)) or 'none'}.")
    return wanted


def _configure(json: bool, level: str, streams: Streams) -> None:
    try:
        logs.configure(json=json, level=level, stream=streams.log())
    except UsageError as error:
        raise Miscalled(str(error)) from None


def _serve(process: "Process", plan: Plan, host: str, port: int) -> Callable[[], None]:
    from ..telemetry.metrics import serve

    served = serve(plan.events, port, host=host, depths=lambda: plan.find_store().depths(), states=lambda: plan.find_store().counts())
    process.tells["metrics"] = served.url
    return served.close


class Process:
    """A worker that has the process to itself: it ends by a signal, by a second one at once, and by itself only where it hangs."""

    def __init__(self, plan: Plan, database: str, streams: Streams) -> None:
        self.tells: dict[str, object] = {
            "name": plan.name, "database": database, "kinds": ",".join(sorted(plan.kinds)), "queues": ",".join(plan.queues),
            "slots": plan.slots, "pid": os.getpid()}
        self._plan = replace(plan, hung=hung, lifespan=plan.lifespan and _told(plan.lifespan))
        self._streams = streams
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: int | None = None
        self._ready = self._waits = False

    def run(self) -> int:
        """Work; answers the exit code."""
        # Before anything is listened to: whatever becomes of it, this is known.
        logs.write(Notice(str(self._plan.name), "the worker starts", self.tells))
        ends = [self._plan.events.subscribe(self._moved, WorkerMoved), self._plan.events.subscribe(self._mend, AttemptEnded)]
        try:
            with _on_signal(self.signalled):
                return run(self._work(), interruptible=False)
        finally:
            for end in ends:
                end()

    async def _work(self) -> int:
        self._loop = asyncio.get_running_loop()
        hops = ThreadPoolExecutor(thread_name_prefix="interlock-hop")
        self._loop.set_default_executor(hops)
        code, worker_left = 1, 0
        try:
            async with booted(self._plan) as worker:
                self._worker = worker
                if self._asked is not None:
                    worker.stop()
                done = await worker.run()
                self._tell("the worker has ended", attempts=done)
            code, worker_left = worker.exit_code, worker.busy
        except (NotMigrated, _NotBegun) as error:
            screen.complain(str(error))
        hops.shutdown(wait=False)
        if left := max(lingering(), worker_left):
            # Python would wait for them, perhaps for ever.
            logging.getLogger("interlock").warning("%d handlers cannot be stopped: they end with the process, and their leases recover the jobs", left)
            self._streams.flush()
            leave(code)
        return code

    # ------------------------------------------------------------ changes that handlers make to the process
    def _mend(self, event: AttemptEnded) -> None:
        """Undo what the handler of an ended attempt changed in the process: streams and signal handlers."""
        if closed := self._streams.restore():
            who = f"job {event.job_id}, or a job that ran at the same time,"
            self._tell(f"{who} closed {' and '.join(closed)}; the worker has reopened it", kind=event.kind)
        if any(signal.getsignal(number) != self.signalled for number in SIGNALS) and self._loop is not None:
            self._loop.call_soon_threadsafe(self._heed, event)

    def _heed(self, event: AttemptEnded) -> None:
        for number in SIGNALS:
            signal.signal(number, self.signalled)
        who = f"job {event.job_id}, or a job that ran at the same time,"
        self._tell(f"{who} replaced the worker's signal handlers; the worker has restored them", kind=event.kind)

    # ------------------------------------------------------------ signals
    def signalled(self, number: int, frame: FrameType | None = None) -> None:
        """Stop in good order; the second time, at once. Runs between any two instructions, so that it works where the event loop is blocked."""
        del frame
        if self._asked is not None:
            os._exit(128 + number)
        self._asked = number
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._worker is not None and self._asked is not None:
            why = signal.Signals(self._asked).name
            self._tell(f"{why}: the worker claims no more, and ends when what runs has; after {DRAIN:g} s the rest is given back", busy=self._worker.busy)
            self._worker.stop()

    # ------------------------------------------------------------ what it says
    def _moved(self, event: WorkerMoved) -> None:
        if event.target == "Polling":
            self._waits = False
            if not self._ready:
                self._ready = True
                self._tell("the worker is ready")
        elif event.target == "ErrorWait" and not self._waits:
            self._waits = True
            self._tell(f"the worker cannot work now, and tries again every {ERROR_WAIT:g} s", why=event.why)

    def _tell(self, sentence: str, **fields: object) -> None:
        name = self._worker.name if self._worker is not None else ""
        self._plan.events.emit(Notice(name, sentence, fields))


@contextmanager
def _on_signal(heard: Callable[[int, FrameType | None], None]) -> Generator[None]:
    before = {number: signal.signal(number, heard) for number in SIGNALS}
    set_free()
    try:
        yield
    finally:
        for number, kept in before.items():
            signal.signal(number, kept)


class _NotBegun(Exception):
    """The app's lifespan raised before the worker began."""


def _told(lifespan: Callable[[], AbstractAsyncContextManager[None]]) -> Callable[[], AbstractAsyncContextManager[None]]:
    """The same, but that an error before the worker begins is one sentence; its traceback is in the log, for whoever wrote the lifespan."""

    @asynccontextmanager
    async def told() -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(lifespan())
            except Exception as error:
                logging.getLogger("interlock").debug("the app's lifespan raised", exc_info=True)
                raise _NotBegun(f"The app's lifespan raised {type(error).__name__}, so no worker was started: {error}") from error
            yield

    return told


# ---------------------------------------------------------------- the end
def lingering() -> int:
    """How many threads still run a function of the app's."""
    mine = [thread for thread in threading.enumerate() if thread.name.startswith(HANDLERS)]
    end = time.monotonic() + LINGER
    for thread in mine:
        thread.join(max(end - time.monotonic(), 0))
    return sum(thread.is_alive() for thread in mine)


def leave(code: int) -> None:
    """End the process now, with what was said on its way."""
    logging.shutdown()
    os._exit(code)


def hung(seconds: float) -> None:
    """Say where every thread stands, and end: nothing that a hanging thread may hold, such as the lock of a log, is touched."""

    def say() -> None:
        sentence = f"interlock: the event loop has not answered for {seconds:.0f} s: the worker ends with {HUNG}, and its leases recover its jobs.\n"
        os.write(2, sentence.encode())
        faulthandler.dump_traceback(file=2, all_threads=True)

    last = threading.Thread(target=say, daemon=True)
    last.start()
    last.join(LAST_WORDS)
    os._exit(HUNG)
