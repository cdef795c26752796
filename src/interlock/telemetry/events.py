"""What happens in a worker, said once and in one place: logs, metrics and a caller's own listeners hear it from here."""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, overload

log = logging.getLogger("interlock")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. It is a fact, already true when it is emitted: no listener can change it."""


# ---------------------------------------------------------------- workers
@dataclass(frozen=True, slots=True)
class WorkerMoved(Event):
    """A worker took an arrow of its own lifecycle."""

    worker: str
    source: str
    target: str
    why: str


@dataclass(frozen=True, slots=True)
class SlotMoved(Event):
    """A slot of a worker took an arrow; `job_id` is what it holds."""

    worker: str
    slot: int
    source: str
    target: str
    why: str
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """A worker asked for work and got `count` jobs, perhaps none."""

    worker: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Batch(Event):
    """One round trip that did `verb` (settle, start, release, ...) for `size` jobs at once."""

    verb: str
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """A worker sent a beat: how many executions were leased on, lost, or locked at that moment."""

    worker: str
    renewed: int
    lost: int
    busy: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """A worker took up what another left behind; `how` names what it did with it."""

    worker: str
    kind: str
    job_id: str
    how: str


@dataclass(frozen=True, slots=True)
class Trouble(Event):
    """An unexpected error, or a database that cannot be reached; `where` names what the worker was doing."""

    worker: str
    where: str
    error: BaseException | str


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A sentence for whoever runs the worker."""

    worker: str
    sentence: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Checked(Event):
    """A reconciler asked the outside about `count` pieces of work at once, and had its answer after so many seconds."""

    kind: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class OutsideFailed(Event):
    """The outside could not be asked, for the `failures`th time in a row. No job changes for it; it is asked again in so many seconds."""

    kind: str
    failures: int
    again_in: float
    error: BaseException | str


# ---------------------------------------------------------------- jobs
@dataclass(frozen=True, slots=True)
class Transition(Event):
    """The database stored an arrow; `source` is None for a job that came to be."""

    job_id: str
    kind: str
    lifecycle: str
    event: str
    source: str | None
    target: str
    attempt: int
    actor: str


@dataclass(frozen=True, slots=True)
class AttemptEnded(Event):
    """An attempt is over, and the database says so. `waited` is the time from due to claimed, `ran` that of the handler, in seconds; None where work that was
    handed over has come to its end."""

    job_id: str
    kind: str
    queue: str
    attempt: int
    outcome: str
    waited: float | None
    ran: float | None
    error: str | None = None
    """What went wrong, in one line, where something did."""
    exception: BaseException | None = None
    """The exception that the job raised, with its traceback. From a child process it carries only the text."""
    final: bool = False
    """Whether the job has failed with this attempt, and will not run again."""


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """An execution is no longer this worker's. Nothing more of the attempt will be stored."""

    job_id: str
    kind: str
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class MoveRefused(Event):
    """The database refused the move to `wanted`; what `stands` is what is there in its place."""

    job_id: str
    kind: str
    attempt: int
    wanted: str
    stands: str


@dataclass(frozen=True, slots=True)
class Measured(Event):
    """A handler recorded usage with `run.measure`."""

    job_id: str
    kind: str
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class FinishFailed(Event):
    """`finish` raised after the commit; it has done so `failures` times for this job and will be tried again."""

    job_id: str
    kind: str
    failures: int
    error: BaseException | str


@dataclass(frozen=True, slots=True)
class HookFailed(Event):
    """The hook of a state raised. The job stands where it stands."""

    job_id: str
    kind: str
    state: str
    error: BaseException | str


KINDS: tuple[type[Event], ...] = (
    WorkerMoved, SlotMoved, Claimed, Batch, Renewed, Recovered, Trouble, Notice, Checked, OutsideFailed,
    Transition, AttemptEnded, LeaseLost, MoveRefused, Measured, FinishFailed, HookFailed,
)  # fmt: skip
"""Everything that can happen."""


# ---------------------------------------------------------------- who listens
E = TypeVar("E", bound=Event)
Listener = Callable[[E], None]


class _Ear:
    """One subscription: a listener that subscribes twice is told twice, and each is ended alone."""

    __slots__ = ("hear", "raised")

    def __init__(self, hear: Callable[[Any], None]) -> None:
        self.hear = hear
        self.raised: set[type[Event]] = set()


class Events:
    """Tells every listener what happened, in the thread where it happened and before `emit` answers; from any number of threads at once.

    A listener must be quick, since the worker waits for it. One that raises hurts nobody: the worker and the other listeners go on, and it
    stays, since one strange event must not end the metrics of a worker that runs for months. Its first error at each kind of event is logged.
    """

    __slots__ = ("_ears", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced whole under the lock and never changed in place, so that `emit` and `wants` need none.
        self._ears: dict[type[Event], tuple[_Ear, ...]] = {}

    @property
    def active(self) -> bool:
        """Whether anybody listens at all."""
        return bool(self._ears)

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody listens to this kind: if not, it need not be built."""
        return kind in self._ears

    @overload
    def subscribe(self, listener: Listener[Event], /) -> Callable[[], None]: ...
    @overload
    def subscribe(self, listener: Listener[E], kind: type[E], /, *kinds: type[E]) -> Callable[[], None]: ...
    def subscribe(self, listener: Callable[[Any], None], /, *kinds: type[Event]) -> Callable[[], None]:
        """Calls the listener with every event of these kinds, or with all. Answers what ends that, which may be called more than once."""
        ear = _Ear(listener)

        def end() -> None:
            with self._lock:
                kept = {kind: tuple(one for one in ears if one is not ear) for kind, ears in self._ears.items()}
                self._ears = {kind: ears for kind, ears in kept.items() if ears}

        with self._lock:
            self._ears = {**self._ears, **{kind: (*self._ears.get(kind, ()), ear) for kind in kinds or KINDS}}
        return end

    def emit(self, event: Event) -> None:
        """Tells whoever listens to this kind of event. It never raises what a listener raised."""
        kind = type(event)
        for ear in self._ears.get(kind, ()):
            try:
                ear.hear(event)
            except KeyboardInterrupt:
                raise
            except BaseException:
                if kind not in ear.raised:
                    ear.raised.add(kind)
                    # The log may be what raised.
                    with suppress(Exception):
                        log.exception(
                            "A listener raised an error and missed a %s event. Its next errors for this event are not logged.",
                            kind.__name__)
