"""A worker that owns its process: it drains on a signal, is recycled at a limit, and exits if it hangs."""

import asyncio
import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from ..engine.context import call_soon
from ..errors import NotMigrated
from ..jobs.user_code import run
from ..telemetry import logs
from ..telemetry.events import DatabaseCall, Notice, WorkerStateChanged
from ..worker.assembly import HUNG_EXIT_CODE, start_worker
from ..worker.forked_handlers import reset_signals_in_forks
from ..worker.health import HEALTH, Health
from ..worker.plan import Plan
from ..worker.recycle import format_size, resident_memory
from ..worker.stop_signals import SIGNALS, StopSignals
from ..worker.supervisor_link import SupervisorLink
from ..worker.worker import ERROR_WAIT, Worker
from . import output
from .interpreter import tune_interpreter
from .standard_streams import Streams

HANDLERS = ("interlock-handler", "interlock-commit", "interlock-call")
"""Names of the threads that run the app's functions."""
LINGER = 0.5
"""Seconds that these threads have to end after everything else has ended."""
DUMP_TIMEOUT = 5.0
"""Seconds for a hung worker to print its threads; standard error may hang too."""


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
        self._plan = replace(
            plan,
            on_hang=exit_hung,
            on_limit=None if link is None else self._limit_reached,
            lifespan=plan.lifespan and _report_lifespan_errors(plan.lifespan),
        )
        self._streams = streams
        self._link = link
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_reason: str | None = None
        self._drain = plan.drain
        self._limit = ""
        self._signals = StopSignals()
        self._ready = self._in_error_wait = False

    def run(self) -> int:
        """Run the worker and return the exit code."""
        # Log first, so that the log names the worker even if it fails to start.
        logs.write(Notice(str(self._plan.name), "the worker starts", self.start_fields))
        ends = [
            self._plan.events.subscribe(self._moved, WorkerStateChanged),
            self._plan.events.subscribe(self._restore_process, DatabaseCall),
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
                    worker.stop(drain=self._drain)
                self._check_memory_limit(worker)
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
    def _restore_process(self, event: DatabaseCall) -> None:
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

    def drain(self, why: str, seconds: float | None = None) -> None:
        """Drain and stop. Any thread may call it, repeatedly; it does not count as a signal.

        Running jobs have this many seconds to end; by default those of the plan.
        """
        if self._stop_reason is None:
            self._stop_reason = why
            self._drain = self._drain if seconds is None else seconds
            if self._loop is not None:
                call_soon(self._loop, self._stop)

    def _stop(self) -> None:
        if self._worker is not None:
            self._notify(
                f"{self._stop_reason}: the worker claims no more jobs and ends when running jobs finish; after "
                f"{self._drain:g} s it returns the rest",
                busy=self._worker.busy,
            )
            self._worker.stop(drain=self._drain)

    # ------------------------------------------------------------ recycling
    def _check_memory_limit(self, worker: Worker) -> None:
        """Stop a worker that is over its limit before its first job: it would be recycled again and again."""
        limit, used = self._plan.limits.max_memory, resident_memory()
        if limit is not None and used > limit:
            output.print_error(
                f"--max-memory is {format_size(limit)}, but this worker uses {format_size(used)} before its first job: "
                "give a higher limit."
            )
            worker.stop(2)

    def _limit_reached(self, why: str) -> None:
        """Ask the supervisor for a worker that replaces this one. Until it is ready, this one goes on."""
        self._limit = why
        if self._link is not None:
            self._link.report_limit(why)

    def retire(self) -> None:
        """Claim no more jobs, and end when the running ones have ended. Any thread may call it."""
        if self._loop is not None and self._worker is not None:
            call_soon(self._loop, self._worker.retire, self._limit)

    # ------------------------------------------------------------ health
    def health(self) -> Health:
        """Return the health of the worker, from any thread."""
        if self._worker is None:
            return Health([], ["The worker is starting."])
        return self._worker.health()

    def health_answers(self) -> dict[str, Callable[[], list[Any]]]:
        """Return the question of a supervisor about the health, and the function that answers it."""

        def answer() -> list[Any]:
            health = self.health()
            return [health.unhealthy, health.unready]

        return {HEALTH: answer}

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
