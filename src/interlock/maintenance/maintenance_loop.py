"""The keeper of a worker: it recovers, expires, schedules and prunes, on a timer of its own. There is no leader: every worker has one."""

import threading
from collections.abc import Callable, Mapping

from .. import events
from ..errors import Unavailable
from ..job import Phase
from ..schedule import Schedule
from ..worker.desk import Desk
from ..worker.settle import Settler
from .expire import Expiry
from .patience import Patience
from .prune import Pruning
from .recover import Finish, Recovery, Room
from .schedule import Scheduler

EVERY = 1.0
"""Seconds between two rounds, jittered."""


class Keeper:
    """Does what is due for the kinds that it knows, also while its worker's loop is busy. Any number of keepers on one database do each thing once."""

    def __init__(  # noqa: PLR0917 - the parts, and what each needs
        self, desk: Desk, settler: Settler, schedules: Mapping[str, Schedule], retention: Mapping[Phase, float], lease: float,
        finish: Finish, room: Room,
    ) -> None:
        self._desk = desk
        self.owner = f"{desk.owner}/keeper"
        """A name of its own, so that what the keeper is at is never taken for a claim whose reply was lost."""
        self._patience = Patience(desk)
        self._recovery = Recovery(desk, settler, self.owner, lease, finish, room)
        self._parts: dict[str, Callable[[], int]] = {
            "recover": self._sweep,
            "expire": Expiry(desk, self.owner).run,
            "schedule": Scheduler(desk, schedules, self.owner).run,
            "prune": Pruning(desk, retention).run,
        }
        self._busy = threading.Lock()
        self._swept_at = float("-inf")

    def keep(self) -> None:
        """A round at once, then one a second until the worker ends: the body of the keeper's thread."""
        self.run_once()
        while not self._desk.over.wait(EVERY * (0.75 + self._desk.draw() / 2)):
            self.run_once()

    def run_once(self) -> int:
        """Everything that is due, now. Answers how much was done. What goes wrong in one part is told, and stops no other."""
        with self._busy:
            return sum(self._attempt(name, part) for name, part in self._parts.items())

    def recover(self) -> int:
        """Recover expired leases now, unless a sweep runs, or ended less than a second ago with nothing left over.

        `Unavailable` propagates.
        """
        if (self._desk.waits.monotonic() - self._swept_at < EVERY and not self.owed) or not self._busy.acquire(blocking=False):
            return 0
        try:
            return self._attempt("recover", self._sweep, through=Unavailable)
        finally:
            self._busy.release()

    @property
    def owed(self) -> bool:
        """Whether the last sweep may have left executions for which there was no free slot."""
        return self._recovery.owed

    def was_away(self) -> None:
        """The database was out of reach: the others get one beat to renew before their leases are looked at. All else goes on."""
        self._patience.was_away()

    # ------------------------------------------------------------ the parts
    def _sweep(self) -> int:
        done = self._recovery.sweep(self._patience)
        self._swept_at = self._desk.waits.monotonic()
        return done

    def _attempt(self, name: str, part: Callable[[], int], *, through: type[Exception] | tuple[()] = ()) -> int:
        try:
            return part()
        except through:
            self.was_away()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts go on
            if isinstance(error, Unavailable):
                self.was_away()
            self._desk.events.emit(events.Trouble(self._desk.owner, f"keeper: {name}", error))
            return 0
