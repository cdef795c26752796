"""The `Run` and `SyncRun` objects that a handler receives."""

import json
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import cached_property
from typing import Any, Protocol, TypeVar

from ..core.clock import Seconds, seconds
from ..core.payload import check_name
from ..errors import UsageError
from ..jobs.asking import NO_DEFAULT, ask
from ..jobs.question import Question
from ..jobs.run import ResultOf
from ..telemetry.events import Measured
from .effects import DOUBTS, AttemptReceipts, Called, InThread, OnDoubt, adrive, drive, effect, step
from .held_execution import HeldExecution
from .ledger import Ledger

T = TypeVar("T")


class RunHost(Protocol):
    """What a run needs from the process in which its handler runs. In a worker, one host serves all runs."""

    def open_ledger(self, execution: HeldExecution, /) -> Ledger: ...

    def measured(self, event: Measured, /) -> None: ...


class AsyncRunHost(RunHost, Protocol):
    """The process in which async handlers run."""

    async def in_thread(self, execution: HeldExecution, call: Callable[[], Any], /) -> Any:
        """Call a function of the user in a thread."""
        ...

    async def write(self, work: Callable[[], Any], /) -> Any:
        """Call the ledger in a thread."""
        ...

    async def advance(self, execution: HeldExecution, stage: str, /) -> None: ...


class BaseRun:
    """The part that `LiveRun` and `LiveSyncRun` share."""

    def __init__(self, execution: HeldExecution, host: RunHost) -> None:
        job = execution.job
        self.job_id: str = job.id
        self.attempt: int = job.attempt
        self.payload: Mapping[str, Any] = job.payload
        self._execution = execution
        self._host = host

    @property
    def exec_id(self) -> str:
        return f"{self.job_id}:{self.attempt}"

    @property
    def cancelled(self) -> bool:
        return self._execution.stop is not None

    @cached_property
    def _ledger(self) -> Ledger:
        return self._host.open_ledger(self._execution)

    @cached_property
    def _receipts(self) -> AttemptReceipts:
        return AttemptReceipts(self._ledger, self._execution.job.root or self.job_id)

    def ask(self, *, timeout: Seconds, default: object = NO_DEFAULT) -> Question[Any]:
        execution = self._execution
        execution.check()
        if execution.status == "COMMITTED":
            raise UsageError(f"The finish function of {execution.spec.name} asks a question. Ask in the handler.")
        return ask(execution.spec, execution.job, timeout, default)

    def measure(self, name: str, value: float) -> None:
        self._execution.measure(check_name("The name of a measure", name), value)
        self._host.measured(Measured(self.job_id, self._execution.job.kind, name, float(value)))


class LiveStep:
    """A step with a `max_age`. Call it with the function and its arguments."""

    def __init__(self, run_step: Callable[[str, float, Called], Any], name: str, max_age: float) -> None:
        self._run_step, self._name, self._max_age = run_step, name, max_age

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._run_step(self._name, self._max_age, Called(fn, args, kwargs))


class _Done:
    """An awaitable that is already done, so that awaiting `run.progress(…)` is optional."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_DONE = _Done()


def _read(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _max_age(name: str, given: Mapping[str, Any]) -> float:
    if set(given) != {"max_age"}:
        raise UsageError(
            f"run.step({name!r}) has no function. Write run.step({name!r}, fn, …), or run.step({name!r}, "
            "max_age=…)(fn, …)."
        )
    return seconds(given["max_age"], "max_age")


class LiveRun(BaseRun):
    """The `Run` of an async handler."""

    _host: AsyncRunHost

    def __init__(self, execution: HeldExecution, host: AsyncRunHost) -> None:
        super().__init__(execution, host)

    def step(self, name: str, /, *call: Any, **kwargs: Any) -> Any:
        """Run a step at once, or return a `LiveStep` if only `max_age` is given."""
        if call:
            return self.run_step(name, None, Called(call[0], call[1:], kwargs))
        return LiveStep(self.run_step, name, _max_age(name, kwargs))

    async def run_step(self, name: str, max_age: float | None, call: Called) -> Any:
        self._ledger.refuse_open_transaction("run.step")
        return await adrive(step(self._receipts, name, call, max_age), self._in_thread, self._host.write)

    def progress(self, done: float, total: float | None = None, note: str = "") -> Awaitable[None]:
        self._execution.progress(done, total, note)
        return _DONE

    async def results(self, kind: ResultOf[T], /) -> list[T]:
        self._ledger.refuse_open_transaction("run.results")
        found: list[str | None] = await self._host.write(lambda: self._ledger.results(kind.name))
        return [kind.load_result(_read(text)) for text in found]

    async def advance(self, stage: str, /) -> None:
        self._ledger.refuse_open_transaction("run.advance")
        self._execution.check()
        await self._host.advance(self._execution, stage)

    def effect(self, name: str, /, *, on_doubt: OnDoubt) -> "LiveEffect":
        return LiveEffect(
            self._receipts,
            check_name("The name of an effect", name),
            _check_on_doubt(on_doubt),
            self._in_thread,
            self._host.write,
        )

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._host.in_thread(self._execution, call)


class LiveEffect:
    """One effect of an async handler."""

    def __init__(
        self, receipts: AttemptReceipts, name: str, on_doubt: OnDoubt, in_thread: InThread, write: InThread
    ) -> None:
        self.key = receipts.key(name)
        self._receipts, self._name, self._in_thread, self._write = receipts, name, in_thread, write
        self._on_doubt: OnDoubt = on_doubt

    async def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._receipts.ledger.refuse_open_transaction("run.effect")
        return await adrive(
            effect(self._receipts, self._name, self._on_doubt, Called(fn, args, kwargs)), self._in_thread, self._write
        )


class LiveSyncRun(BaseRun):
    """The `SyncRun` of a `def` handler, in a thread or a child process."""

    def step(self, name: str, /, *call: Any, **kwargs: Any) -> Any:
        """Run a step at once, or return a `LiveStep` if only `max_age` is given."""
        if call:
            return self.run_step(name, None, Called(call[0], call[1:], kwargs))
        return LiveStep(self.run_step, name, _max_age(name, kwargs))

    def run_step(self, name: str, max_age: float | None, call: Called) -> Any:
        self._ledger.refuse_open_transaction("run.step")
        return drive(step(self._receipts, name, call, max_age))

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        self._execution.progress(done, total, note)

    def results(self, kind: ResultOf[T], /) -> list[T]:
        self._ledger.refuse_open_transaction("run.results")
        return [kind.load_result(_read(text)) for text in self._ledger.results(kind.name)]

    def advance(self, stage: str, /) -> None:
        self._ledger.refuse_open_transaction("run.advance")
        self._ledger.advance(stage)

    def effect(self, name: str, /, *, on_doubt: OnDoubt) -> "LiveSyncEffect":
        if callable(on_doubt):
            raise UsageError(
                f"The effect {name!r} has a lookup function, which only an async handler can use. "
                f"Set on_doubt to one of {', '.join(DOUBTS)}."
            )
        return LiveSyncEffect(self._receipts, check_name("The name of an effect", name), _check_on_doubt(on_doubt))


class LiveSyncEffect:
    """One effect of a `def` handler."""

    def __init__(self, receipts: AttemptReceipts, name: str, on_doubt: OnDoubt) -> None:
        self.key = receipts.key(name)
        self._receipts, self._name = receipts, name
        self._on_doubt: OnDoubt = on_doubt

    def __call__(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        self._receipts.ledger.refuse_open_transaction("run.effect")
        value: T = drive(effect(self._receipts, self._name, self._on_doubt, Called(fn, args, kwargs)))
        return value


def _check_on_doubt(on_doubt: OnDoubt) -> OnDoubt:
    if not callable(on_doubt) and on_doubt not in DOUBTS:
        raise UsageError(
            f"on_doubt is {on_doubt!r}. Set it to one of {', '.join(DOUBTS)}, or to an async function that looks the "
            "result up."
        )
    return on_doubt
