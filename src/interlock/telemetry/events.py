"""Events of a worker. Logs, metrics and your own listeners subscribe to them."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, overload

log = logging.getLogger("interlock")


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of all events. Events are immutable."""


# ---------------------------------------------------------------- workers
@dataclass(frozen=True, slots=True)
class WorkerStateChanged(Event):
    """A worker changed its state."""

    worker: str
    source: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class SlotStateChanged(Event):
    """A slot of a worker changed its state; `job_id` is its job."""

    worker: str
    slot: int
    source: str
    target: str
    why: str
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """A worker claimed `count` jobs; `count` may be 0."""

    worker: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DatabaseCall(Event):
    """One call to the database: `verb` for `size` jobs."""

    verb: str
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """A worker sent a heartbeat. The fields count the leases that were renewed, lost, or locked by a transaction."""

    worker: str
    renewed: int
    lost: int
    busy: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """A worker recovered a job of another worker; `how` is the event of its transition, `finish` or `hold`."""

    worker: str
    kind: str
    job_id: str
    how: str


@dataclass(frozen=True, slots=True)
class WorkerError(Event):
    """An unexpected error, or an unreachable database; `where` names what the worker was doing."""

    worker: str
    where: str
    error: BaseException | str


@dataclass(frozen=True, slots=True)
class DatabaseReachable(Event):
    """A worker reached the database again after errors."""

    worker: str


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A message for the operator of the worker."""

    worker: str
    sentence: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ExternalCheckSucceeded(Event):
    """An external system answered a check of `count` ids in `seconds`."""

    kind: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ExternalCheckFailed(Event):
    """A check of an external system failed; `failures` counts the failures in a row.

    No job changes. The next check is in `again_in` seconds.
    """

    kind: str
    failures: int
    again_in: float
    error: BaseException | str


# ---------------------------------------------------------------- jobs
@dataclass(frozen=True, slots=True)
class Transition(Event):
    """The database stored a transition. Claims and new jobs are not reported here: see `Claimed`."""

    job_id: str
    kind: str
    lifecycle: str
    event: str
    source: str
    target: str
    attempt: int
    actor: str


@dataclass(frozen=True, slots=True)
class AttemptEnded(Event):
    """The database stored the end of an attempt.

    `waited` is the time between due and claimed, `ran` the time in the handler, both in seconds. They are None if the
    handler did not run in this worker.
    """

    job_id: str
    kind: str
    queue: str
    attempt: int
    outcome: str
    waited: float | None
    ran: float | None
    error: str | None = None
    """The last line of the error, if there was one."""
    exception: BaseException | None = None
    """The exception that the job raised. If the job ran in a child process, only its text is available."""
    final: bool = False
    """Whether the job has failed and will not run again."""


@dataclass(frozen=True, slots=True)
class ExecutionLost(Event):
    """This worker lost an execution. It stores nothing more for this attempt."""

    job_id: str
    kind: str
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class MoveRefused(Event):
    """The database refused the move to `wanted`; `actual` describes the stored row."""

    job_id: str
    kind: str
    attempt: int
    wanted: str
    actual: str


@dataclass(frozen=True, slots=True)
class Measured(Event):
    """A handler recorded usage with `run.measure`."""

    job_id: str
    kind: str
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class FinishFailed(Event):
    """The finish function raised or crashed after the commit; `failures` counts how often.

    The worker retries it up to the kind's `tries`.
    """

    job_id: str
    kind: str
    failures: int
    error: BaseException | str


@dataclass(frozen=True, slots=True)
class HookFailed(Event):
    """The hook of a state raised. The job keeps its state."""

    job_id: str
    kind: str
    state: str
    error: BaseException | str


EVENT_TYPES: tuple[type[Event], ...] = (
    WorkerStateChanged, SlotStateChanged, Claimed, DatabaseCall, Renewed, Recovered, WorkerError, DatabaseReachable,
    Notice, ExternalCheckSucceeded, ExternalCheckFailed,
    Transition, AttemptEnded, ExecutionLost, MoveRefused, Measured, FinishFailed, HookFailed,
)  # fmt: skip
"""All event types."""


# ---------------------------------------------------------------- listeners
E = TypeVar("E", bound=Event)
Handler = Callable[[E], None]


class _Subscription:
    """One subscription. A listener that subscribes twice is called twice and unsubscribes twice."""

    __slots__ = ("ignores_success", "listener", "raised")

    def __init__(self, listener: Callable[[Any], None], *, ignores_success: bool = False) -> None:
        self.listener = listener
        self.ignores_success = ignores_success
        self.raised: set[type[Event]] = set()


class Events:
    """Delivers events to listeners. `emit` calls every listener in its own thread before it returns. Thread-safe.

    A listener must be quick, because the worker waits for it. If it raises, the worker and the other listeners
    continue, and it stays subscribed. Its first error for each event type is logged.
    """

    __slots__ = ("_lock", "_subscriptions")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced under the lock and never changed in place, so that `emit` and `wants` need no lock.
        self._subscriptions: dict[type[Event], tuple[_Subscription, ...]] = {}

    @property
    def active(self) -> bool:
        """Whether any listener is subscribed."""
        return bool(self._subscriptions)

    def wants(self, kind: type[Event]) -> bool:
        """Whether a listener is subscribed to this type. If not, the caller need not build the event."""
        return kind in self._subscriptions

    @property
    def wants_success(self) -> bool:
        """Whether a listener handles `AttemptEnded` of attempts that succeed. If not, the caller need not build it."""
        return not all(one.ignores_success for one in self._subscriptions.get(AttemptEnded, ()))

    def subscribe_to_failures(self, listener: "Handler[AttemptEnded]", /) -> Callable[[], None]:
        """Subscribe to `AttemptEnded` with a listener that ignores attempts that succeed. It may still receive them.

        Returns a function that unsubscribes it.
        """
        return self._add(_Subscription(listener, ignores_success=True), (AttemptEnded,))

    @overload
    def subscribe(self, listener: Handler[Event], /) -> Callable[[], None]: ...
    @overload
    def subscribe(self, listener: Handler[E], kind: type[E], /, *kinds: type[E]) -> Callable[[], None]: ...
    def subscribe(self, listener: Callable[[Any], None], /, *kinds: type[Event]) -> Callable[[], None]:
        """Call the listener with every event of these types, or of all types if none is given.

        Returns a function that unsubscribes it. Calling that function again has no effect.
        """
        return self._add(_Subscription(listener), kinds or EVENT_TYPES)

    def _add(self, subscription: _Subscription, kinds: Iterable[type[Event]]) -> Callable[[], None]:
        def end() -> None:
            with self._lock:
                kept = {
                    kind: tuple(one for one in subscriptions if one is not subscription)
                    for kind, subscriptions in self._subscriptions.items()
                }
                self._subscriptions = {kind: subscriptions for kind, subscriptions in kept.items() if subscriptions}

        with self._lock:
            self._subscriptions = {
                **self._subscriptions,
                **{kind: (*self._subscriptions.get(kind, ()), subscription) for kind in kinds},
            }
        return end

    def emit(self, event: Event) -> None:
        """Call the listeners of this event type. Errors of listeners are not raised."""
        kind = type(event)
        for subscription in self._subscriptions.get(kind, ()):
            try:
                subscription.listener(event)
            except KeyboardInterrupt:
                raise
            except BaseException:
                if kind not in subscription.raised:
                    subscription.raised.add(kind)
                    # The listener may be the log itself, which raises again here.
                    with suppress(Exception):
                        log.exception(
                            "A listener raised an error and missed a %s event. Its next errors for this event are not "
                            "logged.",
                            kind.__name__,
                        )
