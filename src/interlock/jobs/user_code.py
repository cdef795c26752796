"""Calls user code so that none of its errors or cancellations ends the worker, and tracks the job of each call."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar

from typing_extensions import override

T = TypeVar("T")
Result = tuple[Any, BaseException | None]
"""The value that a function returned, or the error that it raised."""

_log = logging.getLogger("interlock")


@dataclass(eq=False, slots=True)
class CallScope:
    """One call of a user's function: its kind, and its job and attempt if it has any."""

    kind: str
    job_id: str | None = None
    attempt: int | None = None
    warned: bool = False


binders: list[Callable[[CallScope | None], object]] = []
"""Functions that run in the context of each call of user code, before it begins, so that its log lines name its job."""
scope: contextvars.ContextVar[CallScope | None] = contextvars.ContextVar("interlock_scope", default=None)
"""The call that this code runs in; None in the worker's own code. Copies of a handler's context inherit it."""


def context_of(owner: CallScope | None) -> contextvars.Context:
    """A copy of this context in which user code of this call runs; None means the worker's own code."""
    context = contextvars.copy_context()
    context.run(enter_scope, owner)
    return context


def enter_scope(owner: CallScope | None) -> None:
    """Make the current context one in which user code of this call runs; None means the worker's own code."""
    scope.set(owner)
    for bind in binders:
        bind(owner)


# ---------------------------------------------------------------- calling
def try_call(call: Callable[[], Any]) -> Result:
    """Call a function and return its value or error.

    Errors are returned because a future refuses `StopIteration` and `GeneratorExit` closes the coroutine that awaits.
    """
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - the caller decides
        return None, error


async def atry_call(call: Callable[[], Awaitable[Any]]) -> Result:
    """`try_call` for a coroutine function."""
    try:
        return await call(), None
    except BaseException as error:  # noqa: BLE001 - the caller decides
        return None, error


async def in_thread(call: Callable[[], Any]) -> Any:
    """Call a function in a thread of the event loop, and raise its error here."""
    value, error = await asyncio.to_thread(try_call, call)
    if error is not None:
        raise error
    return value


# ---------------------------------------------------------------- context managers around a call
Around = Callable[[], AbstractContextManager[Any]]
"""Returns a context manager to enter around each call of a user's function, in the same thread or task."""


class _AroundStack(ExitStack):
    """Context managers around one call. They cannot suppress its error."""

    def enter(self, around: Sequence[Around]) -> None:
        for make in around:
            self.enter_context(make())

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Literal[False]:
        super().__exit__(kind, error, trace)
        return False


def call_within(around: Sequence[Around], call: Callable[[], T]) -> T:
    """Call a function inside these context managers. They cannot suppress its error."""
    if not around:
        return call()
    with _AroundStack() as stack:
        stack.enter(around)
        return call()


async def acall_within(around: Sequence[Around], call: Callable[[], Awaitable[T]]) -> T:
    """`call_within` for a coroutine function. Its task enters and leaves the context managers."""
    if not around:
        return await call()
    with _AroundStack() as stack:
        stack.enter(around)
        return await call()


# ---------------------------------------------------------------- tasks
class ProtectedTask(asyncio.Task[T]):
    """A task that only the call that owns it can cancel, because a handler may cancel all of `asyncio.all_tasks`."""

    owner: CallScope | None = None
    refused: int = 0
    """How many cancellations by user code were refused."""

    def cancel(self, msg: Any | None = None) -> bool:
        caller = scope.get()
        if caller is None or caller is self.owner:
            return super().cancel(msg)
        self.refused += 1
        if not caller.warned:
            caller.warned = True
            _log.warning(
                "Job %s (%s) tried to cancel tasks of its worker or of other jobs. The worker refused; they continue.",
                caller.job_id,
                caller.kind,
            )
        return False


def protected(
    work: Coroutine[Any, Any, T], owner: CallScope | None = None, context: contextvars.Context | None = None
) -> ProtectedTask[T]:
    """Start a task that only its owner's code, or the worker itself, can cancel.

    It runs in the owner's scope: in `context`, or in a copy of the current one.
    """
    context = context_of(owner) if context is None else context
    task: ProtectedTask[T] = ProtectedTask(work, loop=asyncio.get_running_loop(), context=context)
    task.owner = owner
    return task


# ---------------------------------------------------------------- the event loop
def run(work: Coroutine[Any, Any, T], *, interruptible: bool = True) -> T:
    """`asyncio.run` that user code cannot end by cancelling tasks, stopping the loop, or `SystemExit` in a task.

    `KeyboardInterrupt` ends it if it is `interruptible`; a process with its own signal handlers is not.
    """
    # A handler may call this to run another worker, whose code does not belong to the handler's call.
    runner, context = asyncio.Runner(), context_of(None)
    try:
        task: ProtectedTask[T] = ProtectedTask(work, loop=runner.get_loop(), context=context)
        while True:
            try:
                return runner.run(_wait_for(task), context=context)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                if task.done() or (interruptible and isinstance(error, KeyboardInterrupt)):
                    raise
                _log.error(
                    "user code stopped the event loop (%s: %s); the worker resumes it", type(error).__name__, error
                )
    finally:
        context.run(_close_runner, runner)


def _close_runner(runner: asyncio.Runner) -> None:
    try:
        runner.close()
    except (SystemExit, RuntimeError) as error:
        _log.error("a task that user code left behind raised %s: %s", type(error).__name__, error)


async def _wait_for(task: ProtectedTask[T]) -> T:
    """Wait for the task. A cancellation is passed on, unless user code cancelled everything."""
    me, refused = asyncio.current_task(), task.refused
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            if task.refused == refused:
                task.cancel()
            refused = task.refused
            if me is not None:
                me.uncancel()
    return task.result()
