"""Executions whose lease has ended: adopted, then moved by their new holder, as everyone moves."""

from collections.abc import Callable, Sequence

from .. import events
from ..declaration import Declaration
from ..errors import LeaseLost, Unavailable
from ..move import Move
from ..outcome import Finished, Lost, Outcome
from ..records import Beat, Lease
from ..worker.desk import Desk
from ..worker.grip import Grip
from ..worker.settle import Item, Settler
from .patience import Patience

LIMIT = 100
Finish = Callable[[Lease, float], None]
"""Takes an execution that only needs its finish, and the time at which its lease was requested."""
Room = Callable[[], int]
"""Returns how many such executions can start now."""
SOONEST = 1.0
"""Seconds until a move whose hook raised is tried again, at least."""


class Recovery:
    """Takes over what others left behind. What ran is lost, at the price of a try; what was committed is finished, never repeated."""

    def __init__(self, desk: Desk, settler: Settler, owner: str, lease: float, finish: Finish, room: Room) -> None:  # noqa: PLR0917 - as the keeper's
        self._desk = desk
        self._settler = settler
        self._owner = owner
        self._lease = lease
        self._finish = finish
        self._room = room
        self._finishing = sorted(name for name, kind in desk.kinds.items() if kind.finish is not None)
        self._others = sorted(set(desk.kinds) - set(self._finishing))
        self.owed = False
        """Whether executions may be left for which there was no free slot."""

    def sweep(self, patience: Patience) -> int:
        """Adopt and settle, a batch at a time, while there is something. Answers how many were settled, or given to be finished."""
        done, kinds = 0, sorted(self._desk.kinds)
        while patience.over() and not self._desk.over.is_set():
            room = self._room() if self._finishing else LIMIT
            found, settled = self._adopt(kinds, LIMIT, None if room >= LIMIT else self._others)
            patience.swept()
            done += settled
            self.owed = False
            if found < LIMIT:
                return done + (self._adopt_committed(room) if room < LIMIT else 0)
        return done

    def _adopt_committed(self, room: int) -> int:
        """Take over as many committed executions as there are free slots. Others, or a later sweep, take the rest."""
        found, done = self._adopt(self._finishing, room, None)
        self.owed = found >= room
        return done

    # ------------------------------------------------------------ one batch
    def _adopt(self, kinds: Sequence[str], limit: int, committed: Sequence[str] | None) -> tuple[int, int]:
        """Adopt and settle one batch. Returns how many executions were found, and how many were settled."""
        if limit < 1:
            return 0, 0
        asked_at = self._desk.waits.monotonic()
        leases = self._desk.store.adopt(self._owner, kinds, self._lease, limit, committed=committed)
        return len(leases), self._take_up(leases, asked_at)

    def _take_up(self, leases: Sequence[Lease], asked_at: float) -> int:
        handed, items = 0, list[Item]()
        for lease in leases:
            try:
                item = self._item(lease, asked_at)
                if item is None:
                    self._finish(lease, asked_at)
                    handed += 1
                    self._recovered(lease, "finish")
                else:
                    items.append(item)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - one that cannot be taken up is left to its new lease, and stops no other
                self._trouble(lease, error)
        return handed + self._settle(items)

    def _item(self, lease: Lease, asked_at: float) -> Item | None:
        """What is to be stored of it; None where what follows its commit is to run first."""
        declaration = self._desk.kinds[lease.job.kind]
        outcome = self._outcome(lease, declaration)
        if outcome is None:
            return None
        lifecycle = self._desk.store.lifecycle(lease.job.lifecycle, lease.job.lifecycle_version)
        grip = Grip(lease, declaration, lifecycle, asked_at=asked_at)
        # Each adoption after the first means that a hook raised, or a keeper died here.
        grip.failures = max(lease.holder - 2, 0)
        return Item(grip, outcome, _nothing, once=True)

    def _outcome(self, lease: Lease, declaration: Declaration) -> Outcome | None:
        if lease.status != "COMMITTED":
            return Lost()
        if declaration.finish is None:
            return Finished()
        # This adoption included: however few its tries are, what follows a commit is run once.
        crashes = lease.crashes
        if crashes <= declaration.tries:
            return None
        why = f"what follows its commit did not come to an end {crashes} times, and is given up"
        self._desk.events.emit(events.FinishFailed(lease.job.id, lease.job.kind, crashes, why))
        return Finished(why)

    def _settle(self, items: Sequence[Item]) -> int:
        self._settler.each(items)
        for item in items:
            if item.error is not None and not isinstance(item.error, LeaseLost | Unavailable):
                self._put_off(item)
        return sum(self._settled(item) for item in items)

    def _put_off(self, item: Item) -> None:
        """The move was not made, as where a hook raised: whoever adopts the execution next tries it again, ever later."""
        grip = item.grip
        delay = max(grip.declaration.backoff.delay(grip.failures, self._desk.draw()), SOONEST)
        self._desk.store.renew([Beat(grip.fence, delay)])

    # ------------------------------------------------------------ telling
    def _settled(self, item: Item) -> bool:
        job, move = item.grip.job, item.move
        if item.error is None and move is not None:
            self._desk.events.emit(events.Recovered(self._owner, job.kind, job.id, _how(move)))
            return True
        if isinstance(item.error, Unavailable):
            raise item.error
        if item.error is not None and not isinstance(item.error, LeaseLost):
            self._desk.events.emit(events.Trouble(self._owner, f"recovering job {job.id}", item.error))
        return False

    def _recovered(self, lease: Lease, how: str) -> None:
        self._desk.events.emit(events.Recovered(self._owner, lease.job.kind, lease.job.id, how))

    def _trouble(self, lease: Lease, error: Exception) -> None:
        self._desk.events.emit(events.Trouble(self._owner, f"recovering job {lease.job.id}", error))


def _how(move: Move) -> str:
    return "hold" if move.held_reason is not None else move.ended_by or ""


def _nothing(item: Item) -> None:
    """Nobody waits for it: the sweep looks by itself."""
