"""A leased execution in memory, shared by its slot, the heartbeat thread and the handler's run."""

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from ..core.job import Job, Status
from ..core.lifecycle import Lifecycle
from ..core.payload import clean, encode
from ..core.transition import Move
from ..errors import Cancelled, LeaseLost, UsageError
from ..jobs.spec import KindSpec
from ..jobs.user_code import ProtectedTask
from ..store.types import Fence, Heartbeat, Lease

_lock = threading.Lock()
"""Guards the reason for a stop and the usage of all executions. Both change rarely, so they share one lock."""
Stop = Literal["cancel", "lost", "runtime", "shutdown"]
WHY: dict[Stop, str] = {
    "cancel": "a cancel was requested",
    "lost": "its worker lost the lease",
    "runtime": "it ran longer than its kind's max_runtime",
    "shutdown": "its worker is stopping",
}


class HeldExecution:
    """One leased execution. Its slot and the heartbeat thread write to it, each to different fields."""

    __slots__ = (
        "_halt",
        "_progress",
        "_usage",
        "asked_at",
        "began",
        "crashes",
        "ended",
        "failures",
        "handler_task",
        "holder",
        "in_slot",
        "job",
        "last_exception",
        "lease_doubtful",
        "lifecycle",
        "owner",
        "queued_at",
        "ran_elsewhere",
        "renews",
        "reported",
        "seconds",
        "separate_process",
        "settling",
        "shared_crash",
        "slot",
        "spec",
        "state",
        "status",
        "stop",
        "task",
        "value",
        "withdrawn",
    )

    value: str | None
    """The committed value, if the execution is committed."""
    separate_process: bool
    """Whether its functions run in a child process."""
    state: str
    """The state of its slot."""
    slot: int
    """The number of its slot in events; -1 before it has one."""
    in_slot: bool
    """Whether it takes one of the worker's slots. An execution that waits to start takes none, nor does one whose end
    waits to be stored.
    """
    queued_at: float
    """When it began to wait for a slot, on the clock of the event loop."""
    asked_at: float
    """When the current lease was requested, on the monotonic clock. The lease lasts from then on."""
    last_exception: BaseException | None
    """The last exception of its handler, guard or commit function."""
    lease_doubtful: bool
    """Whether the lease was not renewed in time, and it is unknown whether another worker has taken the execution."""
    settling: bool
    """Whether its end is being stored. The store may then refuse a heartbeat, which is no error."""
    ran_elsewhere: bool
    """Whether its handler did not run in this worker: an external system does the work, or another worker began it."""
    failures: int
    """How often its finish function, or a hook, has failed or crashed."""
    withdrawn: bool
    """Whether the worker is stopping: unless its success is already being stored, the job returns to its queue."""
    handler_task: ProtectedTask[None] | None
    """The task of its slot while the handler runs in it, so that `halt` cancels the handler and nothing else."""
    shared_crash: bool
    """Whether its finish function crashed in a process that it shared with other jobs.

    The crash counts only if the finish function also crashes alone.
    """

    def __init__(
        self,
        lease: Lease,
        spec: KindSpec,
        lifecycle: Lifecycle,
        *,
        asked_at: float,
        separate_process: bool = False,
    ) -> None:
        self.job: Job = lease.job
        self.holder = lease.holder
        self.status: Status = lease.status
        self.owner = lease.owner
        self.seconds = lease.seconds
        self.value = lease.result
        self.spec = spec
        self.lifecycle = lifecycle
        self.slot = -1
        self.in_slot = False
        self.queued_at = 0.0
        self.separate_process = separate_process
        self.state = "Polling"
        self.task: ProtectedTask[None] | None = None
        self.asked_at = asked_at
        self.began = asked_at
        self.last_exception = None
        self.stop: Stop | None = None
        self.lease_doubtful = False
        self.ended = False
        self.settling = False
        self.withdrawn = False
        self.renews = True
        self.ran_elsewhere = lease.external_id is not None or lease.holder > 1
        self.crashes = lease.crashes
        self.failures = lease.crashes
        self.shared_crash = False
        self.handler_task = None
        self._halt: Callable[[], None] | None = None
        self._progress: str | None = None
        self.reported: str | None = None
        """The progress that the last renewal stored."""
        self._usage: dict[str, float] | None = None

    # ------------------------------------------------------------ the lease
    @property
    def fence(self) -> Fence:
        return Fence(self.job.id, self.job.attempt, self.holder)

    def trusted_until(self) -> float:
        """Return the monotonic time until which no other worker can take the execution.

        The result leaves a margin for clock differences and for stopping the handler.
        """
        return self.asked_at + self.seconds - min(1.0, self.seconds / 8)

    @property
    def must_cancel(self) -> bool:
        """Whether the job has a cancel request, and its lifecycle allows `cancel` from its state."""
        requested = self.job.cancel_requested_at is not None
        return requested and self.lifecycle.arrow(self.job.state, "cancel") is not None

    def check(self) -> None:
        """Raise `Cancelled` or `LeaseLost` if the handler must stop."""
        if self.stop is None:
            return
        if self.stop == "cancel":
            raise Cancelled(f"Job {self.job.id} must stop: a cancel was requested.")
        raise LeaseLost(f"Job {self.job.id}, attempt {self.job.attempt}, must stop: {WHY[self.stop]}.")

    # ------------------------------------------------------------ stopping
    def on_halt(self, halt: Callable[[], None] | None) -> None:
        """Set the callback that stops the running function; None if no function runs. `halt` calls it in any thread."""
        # `halt` sets `stop` and then reads `_halt`; this does the reverse, so one of the two always sees the other.
        self._halt = halt
        if halt is not None and self.stop is not None:
            halt()

    def halt(self, why: Stop) -> bool:
        """Stop the handler. Returns False if it was already stopped.

        The first reason is kept, unless the new one is a lost lease.
        """
        with _lock:
            if self.stop is not None and not (why == "lost" and self.stop != "lost"):
                return False
            first, self.stop = self.stop is None, why
            halt, task = self._halt, self.handler_task
        if halt is not None:
            halt()
        elif task is not None:
            with suppress(RuntimeError):
                task.get_loop().call_soon_threadsafe(task.cancel)
        return first

    def resume_after_renewal(self) -> None:
        """Resume the execution after a late renewal: no other worker has taken it."""
        with _lock:
            if self.lease_doubtful and self.stop == "lost":
                self.stop, self.lease_doubtful = None, False

    # ------------------------------------------------------------ progress and usage
    def progress(self, done: float, total: float | None, note: str) -> None:
        self._progress = encode(
            [float(done), None if total is None else float(total), clean(note, 200)], what="progress"
        )

    def measure(self, name: str, value: float) -> None:
        with _lock:
            total = (self._usage or {}).get(name, 0.0) + float(value)
            if not math.isfinite(total):
                raise UsageError(f"The measure {name!r} adds up to {total}. Pass finite numbers.")
            self._usage = {**(self._usage or {}), name: total}

    def progress_and_usage(self) -> tuple[str | None, str | None]:
        """Return progress and usage as JSON, for the store."""
        usage = self._usage
        return self._progress, None if usage is None else encode(usage, what="usage")

    @property
    def has_new_progress(self) -> bool:
        """Whether the handler reported progress since the last renewal."""
        return self._progress != self.reported

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.fence, self.seconds, *self.progress_and_usage())

    # ------------------------------------------------------------ transitions
    def apply_move(self, move: Move) -> None:
        """Update the execution after the store has stored this move."""
        job = self.job
        job.state, job.phase, job.tries_left = move.state, move.phase, move.tries_left
        job.version += len(move.path)
        self.status = move.to_status
        if move.to_status == "COMMITTED":
            self.value = move.result
            # A cancel after the commit is too late, because the finish function must run.
            if self.stop == "cancel":
                self.stop = None
        self.ended = move.ended_by is not None or move.check_in is not None
