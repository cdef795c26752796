"""The supervisor of several worker processes: it starts, restarts and drains them. It never imports the app."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from ..core.backoff import Backoff
from ..core.sleeper import Sleeper
from .assembly import HUNG_EXIT_CODE
from .stop_signals import SIGNALS, StopSignals
from .subprocess.child_process import describe_exit
from .supervised_worker import Arguments, ProcessEnd, SupervisedWorker

_log = logging.getLogger("interlock")
RESTART = Backoff(1.0, factor=2.0, cap=30.0, jitter=False)
"""The pauses before a worker process that ended unexpectedly starts again."""
STABLE_AFTER = 60.0
"""Seconds after which a worker process counts as stable: its next pause is the first one again."""
CANNOT_START = (1, 2)
"""Exit codes of a worker that could not start: a database without tables, an app that cannot be imported."""


class Supervisor:
    """Runs several workers, each in its own process, until a signal comes or none of them can start.

    The first worker starts alone, so that its error is reported once; the others start when it is ready.
    """

    def __init__(
        self,
        name: str,
        count: int,
        arguments: Arguments,
        sleeper: Sleeper,
        *,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        self.restarts = 0
        """How many times a worker has been started again."""
        self._name = name
        self._sleeper = sleeper
        self._on_end = on_end
        self._workers = [
            SupervisedWorker(f"{name}-{number}", arguments, self._became_ready) for number in range(1, count + 1)
        ]
        self._first_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._start_error: int | None = None
        self._signals = StopSignals()

    async def run(self) -> int:
        """Run the workers. Returns 0 if all of them drained, or else the highest exit code.

        If none could start, returns the exit code of the first that failed.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.signalled, number)
        first, *others = self._workers
        kept = [asyncio.create_task(self._keep(first))]
        ready = asyncio.create_task(self._first_ready.wait())
        await asyncio.wait([*kept, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not self._stopping.is_set():
            kept += [asyncio.create_task(self._keep(worker)) for worker in others]
        highest = max(await asyncio.gather(*kept))
        return highest if self._start_error is None else self._start_error

    # ------------------------------------------------------------ one worker
    async def _keep(self, worker: SupervisedWorker) -> int:
        """Run a worker, and start it again if it ends unexpectedly. Returns its last exit code."""
        failures = 0
        while not self._stopping.is_set():
            began = self._sleeper.monotonic()
            try:
                end = await worker.run()
            except OSError as error:
                end, why = ProcessEnd(0, was_ready=False), f"could not be started ({error})"
            else:
                if self._on_end is not None:
                    self._on_end(worker.name)
                how = _describe(end.code)
                why = f"ended ({how})"
                if self._stopping.is_set():
                    return _exit_code(end.code)
                if self._is_hopeless(end):
                    self._write(logging.ERROR, f"worker {worker.name} could not start ({how}); the supervisor ends")
                    self._start_error = end.code
                    self._drain("the supervisor ends")
                    return end.code
            failures = 1 if self._sleeper.monotonic() - began >= STABLE_AFTER else failures + 1
            pause = 0.0 if end.code == HUNG_EXIT_CODE else RESTART.ceiling(failures)
            self._write(logging.WARNING, f"worker {worker.name} {why}; the supervisor starts it again {_in(pause)}")
            await self._pause(pause)
            self.restarts += not self._stopping.is_set()
        return 0

    def _is_hopeless(self, end: ProcessEnd) -> bool:
        """Whether a restart would fail, too. While another worker is ready, the cause may pass: a deploy, an outage."""
        return end.code in CANNOT_START and not end.was_ready and not any(each.ready for each in self._workers)

    async def _pause(self, seconds: float) -> None:
        stop = asyncio.ensure_future(self._stopping.wait())
        pause = asyncio.ensure_future(self._sleeper.asleep(seconds))
        await asyncio.wait([stop, pause], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        pause.cancel()

    def _became_ready(self) -> None:
        self._first_ready.set()
        if not self._stopping.is_set() and all(worker.ready for worker in self._workers):
            self._write(logging.INFO, "the workers are ready", processes=len(self._workers))

    # ------------------------------------------------------------ signals
    def signalled(self, number: int) -> None:
        """Drain all workers; on a second signal, end them and this process at once."""
        meaning = self._signals.receive(number, self._sleeper.monotonic())
        if meaning == "drain":
            why = signal.Signals(number).name
            self._write(logging.INFO, f"{why}: the workers claim no more jobs and end when running jobs finish")
            self._drain(why)
        elif meaning == "exit":
            for worker in self._workers:
                worker.kill()
            os._exit(128 + number)

    def _drain(self, why: str) -> None:
        self._stopping.set()
        for worker in self._workers:
            worker.drain(why)

    # ------------------------------------------------------------ questions
    async def ask_all(self, what: str, within: float, on_answer: Callable[[str, list[Any]], None]) -> list[str]:
        """Ask all workers, and return the names of those that answered.

        `on_answer` is called with each answer as it arrives, and never after the end of the process that answered.
        """

        async def ask(worker: SupervisedWorker) -> bool:
            answer = await worker.ask(what, within)
            if answer is not None:
                on_answer(worker.name, answer)
            return answer is not None

        answered = await asyncio.gather(*map(ask, self._workers))
        return [worker.name for worker, one in zip(self._workers, answered, strict=True) if one]

    async def ask_one_of(self, names: Sequence[str], what: str, within: float) -> list[Any] | None:
        """Ask the first of these workers; None if it does not answer."""
        named = (worker for worker in self._workers if worker.name in names)
        worker = next(named, None)
        return None if worker is None else await worker.ask(what, within)

    def _write(self, level: int, sentence: str, **fields: object) -> None:
        _log.log(level, "%s", sentence, extra={"interlock": {"worker": self._name, **fields, "event": sentence}})


def _exit_code(code: int) -> int:
    """Return the exit code of a process that was asked to drain: 128 plus the number of a signal that killed it."""
    # A worker handles these signals while it has jobs. One that they killed had not begun, or was only cleaning up.
    return 0 if -code in SIGNALS else code if code >= 0 else 128 - code


def _describe(code: int) -> str:
    if code < 0:
        return describe_exit(code)
    if code == HUNG_EXIT_CODE:
        return f"exit code {code}: it hung, or could not stop its handlers"
    return f"exit code {code}"


def _in(seconds: float) -> str:
    return f"in {seconds:g} s" if seconds else "at once"
