"""Keeping leases: renewed by list from a thread of its own, so that a blocked event loop keeps them; and watched, so that no handler outlives its lease."""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from .. import events
from ..records import Fence, WorkerFacts
from .desk import Desk
from .grip import Grip, Stop

SLOWEST = 10.0
"""Seconds between two signs of life at most, whatever the leases are."""
BUSY = 0.25
"""Seconds until a row that was locked is asked for again."""
GLANCE = 0.1


class Hung(Protocol):
    """Told that the event loop has not answered for so long that its leases must go."""

    def __call__(self, seconds: float, /) -> None: ...


class Leases:
    """Renews what the worker holds, tells each grip what it must hear, and keeps the worker's own row."""

    def __init__(self, desk: Desk, grips: Mapping[int, Grip], facts: Callable[[], WorkerFacts], pace: float) -> None:
        self._desk = desk
        self._grips = grips
        self._facts = facts
        self.pace = min(pace, SLOWEST)
        """Seconds between two beats: a third of the shortest lease."""
        self._soon = threading.Event()
        self.failing_since: float | None = None

    @property
    def failing(self) -> bool:
        """Whether the last renewal did not get through: then nothing new is claimed."""
        return self.failing_since is not None

    def keep(self) -> None:
        """Beat until the worker ends: the body of the renewing thread."""
        self.beat()
        while not self._desk.over.wait(self._pause()):
            self.beat()

    def _pause(self) -> float:
        return BUSY if self._soon.is_set() or self.failing else self.pace

    def beat(self) -> None:
        """One statement for everything that is due to be renewed, and one for the worker's row."""
        self._soon.clear()
        asked = self._desk.waits.monotonic()
        due = {grip.fence: grip for grip in list(self._grips.values()) if self._renewable(grip, asked)}
        try:
            if due:
                self._renew(due, asked)
            self._desk.store.report_worker(self._facts())
        except Exception as error:  # noqa: BLE001 - this thread outlives everything: without it every lease is lost
            self.failing_since = self.failing_since or asked
            self._desk.unwell.set()
            self._desk.events.emit(events.Trouble(self._desk.owner, "renew", error))
        else:
            self.failing_since = None

    def _renewable(self, grip: Grip, now: float) -> bool:
        # A beat early rather than a beat late: what is due before the next one is due now.
        # If only trust has ended, the execution is still ours to return: renew it, so that others see that we live.
        return grip.renews and not grip.ended and (grip.stop != "lost" or grip.doubted) and now + self.pace >= grip.asked_at + grip.seconds / 3

    def _renew(self, due: Mapping[Fence, Grip], asked: float) -> None:
        renewal = self._desk.store.renew([grip.beat() for grip in due.values()])
        for fence in renewal.renewed:
            due[fence].asked_at = asked
        for fence in renewal.cancels:
            if due[fence].status != "COMMITTED":
                self.tell(due[fence], "cancel")
        for fence in renewal.lost:
            due[fence].doubted = False
            # What is just being reported is not lost: its report will say what became of it.
            if not due[fence].settling and not due[fence].ended:
                self.tell(due[fence], "lost")
        if renewal.busy:
            self._soon.set()
        taken = self._desk.waits.monotonic() - asked
        self._desk.events.emit(events.Renewed(self._desk.owner, len(renewal.renewed), len(renewal.lost), len(renewal.busy), taken))

    def tell(self, grip: Grip, why: Stop) -> None:
        """Have a handler stop."""
        if grip.halt(why) and why == "lost":
            job = grip.job
            self._desk.events.emit(events.LeaseLost(job.id, job.kind, job.attempt, "another holds it, or nobody could renew it in time"))


class Watch:
    """Looks, from a thread that never waits for the database, whether trust has ended, a handler runs too long, or the loop does not answer."""

    def __init__(self, desk: Desk, grips: Mapping[int, Grip], leases: Leases, *, answered: Callable[[], float], patience: float, hung: Hung) -> None:
        self._desk = desk
        self._grips = grips
        self._leases = leases
        self._answered = answered
        self._patience = patience
        self._hung = hung

    def keep(self) -> None:
        """Look until the worker ends: the body of the watching thread."""
        while not self._desk.over.wait(GLANCE):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - this thread outlives everything
                self._desk.events.emit(events.Trouble(self._desk.owner, "watch", error))

    def look(self) -> None:
        now = self._desk.waits.monotonic()
        silent = now - self._answered()
        if silent > self._patience:
            for grip in list(self._grips.values()):
                grip.renews = False
            self._hung(silent)
        for grip in list(self._grips.values()):
            if grip.settling or grip.ended:
                continue
            if now >= grip.trusted_until():
                grip.doubted = grip.doubted or grip.stop != "lost"
                self._leases.tell(grip, "lost")
            limit = grip.declaration.max_runtime
            if limit is not None and now - grip.began > limit and grip.renews:
                # Whether it obeys or not: the lease is not renewed, so that it ends.
                grip.renews = False
                self._leases.tell(grip, "runtime")
