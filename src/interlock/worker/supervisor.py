"""The supervisor of several worker processes: it starts, replaces and drains them. It never imports the app."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ..core.backoff import Backoff
from ..core.sleeper import Sleeper
from .assembly import HUNG_EXIT_CODE
from .plan import DRAIN
from .stop_signals import SIGNALS, StopSignals
from .subprocess.child_process import describe_exit
from .supervised_worker import Arguments, ProcessEnd, SupervisedWorker

_log = logging.getLogger("interlock")
RESTART = Backoff(1.0, factor=2.0, cap=30.0, jitter=False)
"""The pauses before a worker process that ended unexpectedly starts again."""
STABLE_AFTER = 60.0
"""Seconds after which a worker process counts as stable: its next pause is the first one again."""
CANNOT_START, CANNOT_IMPORT = (1, 2), 2
"""Exit codes of a worker that could not start: a database without tables (1), an app that cannot be imported (2)."""
EXIT_TIME = 30.0
"""Seconds that a worker has to end after its drain time. It stops handlers, and the app's lifespan ends."""
RELOAD_DRAIN, RELOAD_TIME = 1.0, 10.0
"""Seconds that running jobs, and the whole process, have to end when the code has changed."""


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
        drain: float = DRAIN,
        reloads: bool = False,
        on_end: Callable[[SupervisedWorker], None] | None = None,
    ) -> None:
        """`drain` is the drain time of the workers. If the code `reloads`, a worker that cannot start waits for the
        next change.
        """
        self.restarts = 0
        """How many times a worker has been started again after it ended unexpectedly."""
        self._name = name
        self._arguments = arguments
        self._sleeper = sleeper
        self._drain_time = drain
        self._reloads = reloads
        self._on_end = on_end
        self._workers = [self._new_worker(f"{name}-{number}") for number in range(1, count + 1)]
        """The workers without those that have been replaced."""
        self._kept: dict[SupervisedWorker, asyncio.Task[int]] = {}
        """The tasks that keep the workers running. A replaced worker stays here until its process has ended."""
        self._replacing: set[asyncio.Task[None]] = set()
        self._one_replacement = asyncio.Lock()
        self._first_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._code_changed = asyncio.Event()
        self._start_error: int | None = None
        self._signals = StopSignals()

    def _new_worker(self, name: str) -> SupervisedWorker:
        return SupervisedWorker(name, self._arguments, on_ready=self._became_ready, on_limit=self._limit_reached)

    @property
    def workers(self) -> Sequence[SupervisedWorker]:
        """All workers that have been started, also those that are being replaced."""
        return list(self._kept)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def run(self) -> int:
        """Run the workers. Returns 0 if all of them drained, or else the highest exit code.

        If none could start, returns the exit code of the first that failed.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.signalled, number)
        first, *others = self._workers
        self._start(first)
        ready = asyncio.create_task(self._first_ready.wait())
        await asyncio.wait([self._kept[first], ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not self._stopping.is_set():
            for worker in others:
                self._start(worker)
        highest = 0
        while self._kept:
            await asyncio.wait(self._kept.values(), return_when=asyncio.FIRST_COMPLETED)
            for worker, task in list(self._kept.items()):
                if task.done():
                    del self._kept[worker]
                    highest = max(highest, task.result())
        return highest if self._start_error is None else self._start_error

    # ------------------------------------------------------------ one worker
    def _start(self, worker: SupervisedWorker) -> None:
        self._kept[worker] = asyncio.create_task(self._keep(worker))

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
                    self._on_end(worker)
                why = f"ended ({_describe(end.code)})"
                if (last := self._last_code(worker, end)) is not None:
                    return last
                if worker.restarting:
                    worker.restarting, failures = False, 0
                    continue
                if self._reloads and end.code == CANNOT_IMPORT and not end.was_ready:
                    self._write(
                        logging.ERROR, f"worker {worker.name} could not start; it waits for a change of the code"
                    )
                    await self._pause(None)
                    continue
            failures = 1 if self._sleeper.monotonic() - began >= STABLE_AFTER else failures + 1
            pause = 0.0 if end.code == HUNG_EXIT_CODE else RESTART.ceiling(failures)
            self._write(logging.WARNING, f"worker {worker.name} {why}; the supervisor starts it again {_in(pause)}")
            await self._pause(pause)
            self.restarts += not self._stopping.is_set()
        return 0

    def _last_code(self, worker: SupervisedWorker, end: ProcessEnd) -> int | None:
        """Return the exit code if the worker does not start again, or else None."""
        if self._stopping.is_set():
            return _exit_code(end.code)
        if worker.replaced:
            self._write(logging.INFO, f"the recycled worker {worker.name} has ended ({_describe(end.code)})")
            return 0
        if not self._reloads and self._is_hopeless(end):
            self._write(
                logging.ERROR, f"worker {worker.name} could not start ({_describe(end.code)}); the supervisor ends"
            )
            self._start_error = end.code
            self._drain("the supervisor ends")
            return end.code
        return None

    def _is_hopeless(self, end: ProcessEnd) -> bool:
        """Whether a restart would fail, too. While another worker is ready, the cause may pass: a deploy, an outage."""
        return end.code in CANNOT_START and not end.was_ready and not any(each.ready for each in self._kept)

    async def _pause(self, seconds: float | None) -> None:
        """Wait, unless the supervisor stops or the code changes. None waits for one of these."""
        pause = asyncio.Event().wait() if seconds is None else self._sleeper.asleep(seconds)
        await _first_of(self._stopping.wait(), self._code_changed.wait(), pause)

    def _became_ready(self) -> None:
        self._first_ready.set()
        if not self._stopping.is_set() and all(worker.ready for worker in self._workers):
            self._write(logging.INFO, "the workers are ready", processes=len(self._workers))

    # ------------------------------------------------------------ replacement
    def _limit_reached(self, worker: SupervisedWorker, why: str) -> None:
        task = asyncio.create_task(self._replace(worker, worker.pid, why))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, old: SupervisedWorker, pid: int | None, why: str) -> None:
        """Start another worker in place of one that has reached a limit. When it is ready, the old one retires.

        Replacements start one after the other, and a worker is replaced only when the one before it has ended. So
        there are at most twice as many processes.
        """
        if old.predecessor is not None:
            await asyncio.wait([old.predecessor])
        async with self._one_replacement:
            if self._stopping.is_set() or old.pid != pid:
                return
            self._write(logging.INFO, f"worker {old.name} is recycled: {why}; another worker starts in its place")
            new = self._new_worker(old.name)
            old.replaced, new.predecessor = True, self._kept[old]
            self._workers[self._workers.index(old)] = new
            self._start(new)
            await _first_of(new.first_ready.wait(), self._stopping.wait())
            if not self._stopping.is_set():
                old.retire()

    def reload(self, why: str) -> None:
        """Start all workers again, because the code has changed. Their running jobs return to the queue."""
        if self._stopping.is_set():
            return
        self._write(logging.INFO, f"{why}: the workers start again, and their running jobs return to the queue")
        for worker in self._kept:
            if worker.running:
                worker.restarting = True
                worker.drain(why, RELOAD_DRAIN, kill_after=RELOAD_TIME)
        # End the pause of every worker that waits to start.
        self._code_changed.set()
        self._code_changed.clear()

    # ------------------------------------------------------------ signals
    def signalled(self, number: int) -> None:
        """Drain all workers; on a second signal, end them and this process at once."""
        meaning = self._signals.receive(number, self._sleeper.monotonic())
        if meaning == "drain":
            why = signal.Signals(number).name
            self._write(logging.INFO, f"{why}: the workers claim no more jobs and end when running jobs finish")
            self._drain(why)
        elif meaning == "exit":
            for worker in self._kept:
                worker.kill()
            os._exit(128 + number)

    def _drain(self, why: str) -> None:
        self._stopping.set()
        for worker in self._kept:
            worker.drain(why, None, kill_after=self._drain_time + EXIT_TIME)

    # ------------------------------------------------------------ questions
    async def ask_all(
        self, what: str, within: float, on_answer: Callable[[SupervisedWorker, list[Any]], None]
    ) -> list[SupervisedWorker]:
        """Ask all workers, and return those that answered.

        `on_answer` is called with each answer as it arrives, and never after the end of the process that answered.
        """

        async def ask(worker: SupervisedWorker) -> bool:
            answer = await worker.ask(what, within)
            if answer is not None:
                on_answer(worker, answer)
            return answer is not None

        workers = self.workers
        answered = await asyncio.gather(*map(ask, workers))
        return [worker for worker, one in zip(workers, answered, strict=True) if one]

    def _write(self, level: int, sentence: str, **fields: object) -> None:
        _log.log(level, "%s", sentence, extra={"interlock": {"worker": self._name, **fields, "event": sentence}})


async def _first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Wait until one of these has ended, and cancel the others."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


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
