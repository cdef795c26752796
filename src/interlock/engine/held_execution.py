"""An execution in a worker's hand: what the slot, the renewing thread and the handler's run know of it together."""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Literal

from ..declaration import Declaration
from ..errors import Cancelled, LeaseLost, UsageError
from ..job import Job, Status
from ..lifecycle import Lifecycle
from ..move import Move
from ..payload import clean, encode
from ..records import Beat, Fence, Lease

Stop = Literal["cancel", "lost", "runtime", "release"]
WHY: dict[Stop, str] = {
    "cancel": "it was asked to stop",
    "lost": "its lease is not ours any more",
    "runtime": "it ran longer than its kind's max_runtime",
    "release": "its worker stops",
}


class Grip:
    """One held execution. It is written by its slot and by the renewing thread, each its own fields."""

    __slots__ = (
        "_halt", "_lock", "_progress", "_usage", "apart", "asked_at", "began", "crashes", "declaration", "doubted", "elsewhere", "ended", "failures", "holder",
        "job", "lifecycle", "owner", "raised", "renews", "seconds", "settling", "slot", "state", "status", "stop", "task", "unpaid", "value",
    )

    def __init__(self, lease: Lease, declaration: Declaration, lifecycle: Lifecycle, *, asked_at: float, slot: int = 0, apart: bool = False) -> None:
        self.job: Job = lease.job
        self.holder = lease.holder
        self.status: Status = lease.status
        self.owner = lease.owner
        self.seconds = lease.seconds
        self.value: str | None = lease.result
        """The committed value, where the execution is past its commit."""
        self.declaration = declaration
        self.lifecycle = lifecycle
        self.slot = slot
        self.apart = apart
        """Whether its functions run in a process of their own."""
        self.state = "Polling"
        """Where its slot is in the worker's machine."""
        self.task: asyncio.Task[None] | None = None
        self.asked_at = asked_at
        """When, on the monotonic clock, the lease that we have was asked for: trust begins there, and ends before the lease does."""
        self.began = asked_at
        self.raised: BaseException | None = None
        """What its handler, guard or commit function raised last."""
        self.stop: Stop | None = None
        self.doubted = False
        """Whether trust ended because the lease could not be renewed, and no other worker is known to have it."""
        self.ended = False
        self.settling = False
        """Its end is being reported: whoever else is refused meanwhile need not wonder."""
        self.renews = True
        self.elsewhere = lease.external_id is not None or lease.holder > 1
        """Whether its handler does not run here: an external system does the work, or another worker began it."""
        self.crashes = lease.crashes
        self.failures = lease.crashes
        """How often what follows the commit has failed or crashed."""
        self.unpaid = False
        """Whether its finish died in a shared process. That death counts only if the finish also dies alone."""
        self._lock = threading.Lock()
        self._halt: Callable[[], None] | None = None
        self._progress: str | None = None
        self._usage: dict[str, float] | None = None

    # ------------------------------------------------------------ whose it is
    @property
    def fence(self) -> Fence:
        return Fence(self.job.id, self.job.attempt, self.holder)

    def trusted_until(self) -> float:
        """Before this moment nobody else can have taken the execution; a little is kept for clocks that differ and for stopping."""
        return self.asked_at + self.seconds - min(1.0, self.seconds / 8)

    def check(self) -> None:
        """Raises what a handler must hear that is no longer to go on."""
        if self.stop is None:
            return
        if self.stop == "cancel":
            raise Cancelled(f"Job {self.job.id} was asked to stop.")
        raise LeaseLost(f"Job {self.job.id}, attempt {self.job.attempt}, must not go on: {WHY[self.stop]}.")

    # ------------------------------------------------------------ stopping
    def on_halt(self, halt: Callable[[], None] | None) -> None:
        """How to stop what runs now, callable from any thread; None when nothing does."""
        # Set before it looks, as `halt` looks after it has set: one of the two always sees the other.
        self._halt = halt
        if halt is not None and self.stop is not None:
            halt()

    def halt(self, why: Stop) -> bool:
        """Stop the handler. The first reason holds, but for a loss, which outweighs a request. False if it was stopped before."""
        with self._lock:
            if self.stop is not None and not (why == "lost" and self.stop != "lost"):
                return False
            first, self.stop = self.stop is None, why
            halt = self._halt
        if halt is not None:
            halt()
        return first

    def trust_again(self) -> None:
        """Resume after the lease was renewed, since no other worker has taken the execution."""
        with self._lock:
            if self.doubted and self.stop == "lost":
                self.stop, self.doubted = None, False

    # ------------------------------------------------------------ what the handler has to show
    def progress(self, done: float, total: float | None, note: str) -> None:
        self._progress = encode([float(done), None if total is None else float(total), clean(note, 200)], what="progress")

    def measure(self, name: str, value: float) -> None:
        with self._lock:
            total = (self._usage or {}).get(name, 0.0) + float(value)
            if not math.isfinite(total):
                raise UsageError(f"The measure {name!r} is {total}: give numbers that can be added up.")
            self._usage = {**(self._usage or {}), name: total}

    def shown(self) -> tuple[str | None, str | None]:
        """Progress and usage, as they are to be stored."""
        usage = self._usage
        return self._progress, None if usage is None else encode(usage, what="usage")

    def beat(self) -> Beat:
        return Beat(self.fence, self.seconds, *self.shown())

    # ------------------------------------------------------------ moved
    def moved(self, move: Move) -> None:
        """The store has carried this out."""
        job = self.job
        job.state, job.phase, job.tries_left = move.state, move.phase, move.tries_left
        job.version += len(move.path)
        self.status = move.to_status
        if move.to_status == "COMMITTED":
            self.value = move.result
            # Too late to be cancelled: what follows the commit is to run.
            if self.stop == "cancel":
                self.stop = None
        self.ended = move.ended_by is not None or move.check_in is not None
