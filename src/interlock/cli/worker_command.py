"""`interlock worker`: runs one worker process, or a supervisor of several."""

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
from ..engine.context import call_soon
from ..errors import NotMigrated, UsageError
from ..jobs.user_code import run
from ..telemetry import logs
from ..telemetry.events import Batch, Notice, WorkerStateChanged
from ..worker.assembly import HUNG_EXIT_CODE, start_worker
from ..worker.forked_handlers import reset_signals_in_forks
from ..worker.plan import Plan
from ..worker.stop_signals import SIGNALS, StopSignals
from ..worker.supervisor_link import SupervisorLink
from ..worker.worker import DRAIN, ERROR_WAIT, Worker
from . import output
from .arguments import names
from .common_options import AppOption, CommandError, DatabaseOption, hide_password, open_unmigrated, require_app
from .interpreter import tune_interpreter
from .standard_streams import Streams
from .supervisor_command import process_count, supervise
from .worker_metrics import metrics_answers, serve_metrics

HANDLERS = ("interlock-handler", "interlock-commit", "interlock-call")
"""Names of the threads that run the app's functions."""
LINGER = 0.5
"""Seconds that these threads have to end after everything else has ended."""
DUMP_TIMEOUT = 5.0
"""Seconds for a hung worker to print its threads; standard error may hang too."""


def worker(
    context: typer.Context,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these queues; by default those of its kinds, and default.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(metavar="X,Y", help="Only these kinds; by default all kinds of the app.")
    ] = None,
    processes: Annotated[
        str, typer.Option(metavar="N", help="How many worker processes; auto: one for each usable core.")
    ] = "1",
    slots: Annotated[int, typer.Option(min=1, help="How many jobs run at once in each process.")] = 100,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads for sync handlers in each process; by default the number of cores plus 4, at most 32.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The worker's name; by default host and process id. Several processes append -1, -2, …"),
    ] = None,
    listen: Annotated[
        bool,
        typer.Option("--listen/--no-listen", help="Whether the database wakes the worker; --no-listen polls only."),
    ] = True,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, metavar="PORT", help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to serve them on.")] = "127.0.0.1",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    supervisor: Annotated[int | None, typer.Option(hidden=True, help="The channel to the supervisor.")] = None,
) -> None:
    """Run a worker, or several with --processes, until a signal stops them.

    On SIGTERM or SIGINT the worker claims no more jobs, lets running jobs finish for 25 seconds, returns the rest to
    the queue and exits with 0. A second signal ends it at once, with 128 plus the signal's number; its jobs recover
    when their leases expire. If the database is unreachable, the worker retries every 5 seconds.

    Exits with 1 if the database is not migrated for this app or the app's lifespan raised, with 2 for wrong usage,
    and with 70 if it hung, so that a supervisor restarts it.

    With --processes, this process runs that many workers: it restarts a worker that ends unexpectedly, drains all of
    them on a signal, and serves their metrics as one. It exits with 0 if all drained, or else with the highest exit
    code.

    Example: interlock worker -A shop:app --queues mail,default --slots 50
    """
    worker_name = name or f"{socket.gethostname()[:40]}-{os.getpid()}"
    if (count := process_count(processes)) > 1:
        _configure(log_json, log_level, Streams(), worker=worker_name)
        raise typer.Exit(supervise(worker_name, count, context.obj, metrics_host, metrics_port))
    link = None if supervisor is None else SupervisorLink(supervisor)
    chosen = require_app(app)
    wanted = _known(chosen, names(kinds, "--kinds"))
    streams = Streams()
    _configure(log_json, log_level, streams, worker=None if link is None else worker_name)
    with ExitStack() as stack:
        if database:
            stack.enter_context(chosen.bound_to(database))
        # Report a URL that can never work now, instead of retrying it.
        open_unmigrated(chosen).close()
        stack.callback(chosen.close)
        few = {} if threads is None else {"threads": threads}
        plan = chosen.plan(
            only=wanted, queues=names(queues, "--queues"), slots=slots, name=worker_name, listen=listen, **few
        ).checked()
        process = Process(plan, hide_password(chosen.database.url), streams, link)
        if link is not None:
            link.start(process.drain, {} if metrics_port is None else metrics_answers(plan))
        elif metrics_port is not None:
            served = serve_metrics(plan, metrics_host, metrics_port)
            process.start_fields["metrics"] = served.url
            stack.callback(served.close)
        code = process.run()
    streams.flush()
    raise typer.Exit(code)


def _known(app: App[Any], wanted: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [name for name in wanted if name not in app.kinds]:
        raise CommandError(
            f"--kinds names {', '.join(unknown)}, which this app does not have. It has "
            f"{', '.join(sorted(app.kinds)) or 'none'}."
        )
    return wanted


def _configure(json: bool, level: str, streams: Streams, *, worker: str | None = None) -> None:
    try:
        logs.configure(json=json, level=level, stream=streams.log(), worker=worker)
    except UsageError as error:
        raise CommandError(str(error)) from None


class Process:
    """A worker that owns its process. A signal drains it, a second one ends it, and a hang makes it exit."""

    def __init__(self, plan: Plan, database: str, streams: Streams, link: SupervisorLink | None = None) -> None:
        self.start_fields: dict[str, object] = {
            "name": plan.name,
            "database": database,
            "kinds": ",".join(sorted(plan.kinds)),
            "queues": ",".join(plan.queues),
            "slots": plan.slots,
            "pid": os.getpid(),
        }
        self._plan = replace(plan, on_hang=exit_hung, lifespan=plan.lifespan and _report_lifespan_errors(plan.lifespan))
        self._streams = streams
        self._link = link
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_reason: str | None = None
        self._signals = StopSignals()
        self._ready = self._in_error_wait = False

    def run(self) -> int:
        """Run the worker and return the exit code."""
        # Log first, so that the log names the worker even if it fails to start.
        logs.write(Notice(str(self._plan.name), "the worker starts", self.start_fields))
        ends = [
            self._plan.events.subscribe(self._moved, WorkerStateChanged),
            self._plan.events.subscribe(self._restore_process, Batch),
        ]
        try:
            with _on_signal(self.signalled):
                return run(self._work(), interruptible=False)
        finally:
            for end in ends:
                end()

    async def _work(self) -> int:
        self._loop = asyncio.get_running_loop()
        calls = ThreadPoolExecutor(thread_name_prefix="interlock-call")
        self._loop.set_default_executor(calls)
        code, worker_left = 1, 0
        try:
            async with start_worker(self._plan) as worker:
                self._worker = worker
                if self._stop_reason is not None:
                    worker.stop()
                tune_interpreter()
                done = await worker.run()
                self._notify("the worker has ended", attempts=done)
            code, worker_left = worker.exit_code, worker.busy
        except (NotMigrated, _LifespanFailed) as error:
            output.print_error(str(error))
        calls.shutdown(wait=False)
        if left := max(count_lingering(), worker_left):
            # Python would wait for these threads, possibly forever.
            logging.getLogger("interlock").warning(
                "%d handlers cannot be stopped. They end with the process; their jobs recover when the leases expire",
                left,
            )
            self._streams.flush()
            exit_now(code)
        return code

    # ------------------------------------------------------------ changes that handlers make to the process
    def _restore_process(self, event: Batch) -> None:
        """Undo what handlers changed in the process, once for all whose outcomes were stored together."""
        del event
        if closed := self._streams.restore():
            self._notify(f"a handler closed {' and '.join(closed)}; the worker has reopened it")
        if any(signal.getsignal(number) != self.signalled for number in SIGNALS) and self._loop is not None:
            self._loop.call_soon_threadsafe(self._restore_signals)

    def _restore_signals(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self.signalled)
        self._notify("a handler replaced the worker's signal handlers; the worker has restored them")

    # ------------------------------------------------------------ signals
    def signalled(self, number: int, frame: FrameType | None = None) -> None:
        """Drain and stop; on a second signal, end at once. Works even if the event loop is blocked."""
        del frame
        meaning = self._signals.receive(number, time.monotonic())
        if meaning == "exit":
            os._exit(128 + number)
        if meaning == "drain":
            self.drain(signal.Signals(number).name)

    def drain(self, why: str) -> None:
        """Drain and stop. Any thread may call it, repeatedly; it does not count as a signal."""
        if self._stop_reason is None:
            self._stop_reason = why
            if self._loop is not None:
                call_soon(self._loop, self._stop)

    def _stop(self) -> None:
        if self._worker is not None:
            self._notify(
                f"{self._stop_reason}: the worker claims no more jobs and ends when running jobs finish; after "
                f"{DRAIN:g} s it returns the rest",
                busy=self._worker.busy,
            )
            self._worker.stop()

    # ------------------------------------------------------------ messages
    def _moved(self, event: WorkerStateChanged) -> None:
        if event.target == "Polling":
            self._in_error_wait = False
            if not self._ready:
                self._ready = True
                if self._link is not None:
                    self._link.report_ready()
                else:
                    self._notify("the worker is ready")
        elif event.target == "ErrorWait" and not self._in_error_wait:
            self._in_error_wait = True
            self._notify(f"the worker cannot work now; it retries every {ERROR_WAIT:g} s", why=event.why)

    def _notify(self, sentence: str, **fields: object) -> None:
        name = self._worker.name if self._worker is not None else ""
        self._plan.events.emit(Notice(name, sentence, fields))


@contextmanager
def _on_signal(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    reset_signals_in_forks()
    try:
        yield
    finally:
        for number, kept in before.items():
            signal.signal(number, kept)


class _LifespanFailed(Exception):
    """The app's lifespan raised before the worker started."""


def _report_lifespan_errors(
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Wrap a lifespan, so that an error before the worker starts is one sentence. The traceback is logged at debug."""

    @asynccontextmanager
    async def wrapped() -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(lifespan())
            except Exception as error:
                logging.getLogger("interlock").debug("the app's lifespan raised", exc_info=True)
                raise _LifespanFailed(
                    f"The app's lifespan raised {type(error).__name__}; the worker did not start: {error}"
                ) from error
            yield

    return wrapped


# ---------------------------------------------------------------- the end
def count_lingering() -> int:
    """Return how many threads still run a function of the app."""
    mine = [thread for thread in threading.enumerate() if thread.name.startswith(HANDLERS)]
    end = time.monotonic() + LINGER
    for thread in mine:
        thread.join(max(end - time.monotonic(), 0))
    return sum(thread.is_alive() for thread in mine)


def exit_now(code: int) -> None:
    """Flush the log and end the process now."""
    logging.shutdown()
    os._exit(code)


def exit_hung(seconds: float) -> None:
    """Print the stack of every thread and exit. Takes no lock that a hung thread may hold."""

    def say() -> None:
        sentence = (
            f"interlock: the event loop has not responded for {seconds:.0f} s. "
            f"The worker exits with {HUNG_EXIT_CODE}; its jobs recover when their leases expire.\n"
        )
        os.write(2, sentence.encode())
        faulthandler.dump_traceback(file=2, all_threads=True)

    last = threading.Thread(target=say, daemon=True)
    last.start()
    last.join(DUMP_TIMEOUT)
    os._exit(HUNG_EXIT_CODE)
