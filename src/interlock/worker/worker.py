"""The worker's loop: it connects, recovers, polls, backs off and idles, and after an error it waits and begins again. It ends by a signal only."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from .. import events
from ..errors import InterlockError, NotMigrated, Unavailable
from ..lifecycle import Lifecycle
from ..records import Lease, Way, WorkerFacts
from ..store import Listening
from .desk import Desk, soon
from .leases import Leases
from .pace import Pace
from .report import Reporter
from .slots import Slots
from .states import Position
from .strays import release_strays

T = TypeVar("T")
ERROR_WAIT = 5.0
DRAIN = 25.0
GRACE = 3.0
LOOK = 1.0
"""Seconds after which a full worker looks at its own state."""
GATHER = 0.02
"""Seconds for which a nearly full worker lets slots come free before it claims again."""


class Keeper(Protocol):
    """Recovers, expires, schedules and prunes: what a worker does for all."""

    def recover(self) -> int:
        """Sweep now, unless that was done a moment ago. Answers how much was done."""
        ...

    def run_once(self) -> int:
        """Everything that is due, now. Answers how much was done."""
        ...

    @property
    def owed(self) -> bool:
        """Whether the last sweep may have left executions for which there was no free slot."""
        ...

    def was_away(self) -> None:
        """The database was out of reach: the others get time to renew before their leases are looked at."""
        ...


class Rooms(Protocol):
    """How many executions of which sort may run at once."""

    def split(self, ways: Sequence[Way], free: int) -> list[tuple[Sequence[Way], int]]:
        """What to claim: ways, and how many jobs by them. One entry wherever possible."""
        ...

    def suspects(self, free: int) -> tuple[int, bool]:
        """How many suspects may be claimed, and whether suspects that must run alone may be among them."""
        ...

    def apart(self, lease: Lease) -> bool: ...


class Worker:
    """One worker: a loop over slots. Its state, as the `workers` table shows it, is that of the loop."""

    name: str

    def __init__(  # noqa: PLR0917 - the parts, in the order in which a job meets them
        self, desk: Desk, queues: Sequence[str], slots: Slots, rooms: Rooms, reporter: Reporter, leases: Leases, keeper: Keeper, claimer: Executor, *,
        facts: Callable[[str, int], WorkerFacts], listen: bool, until_idle: bool = False, reconcile: Callable[[], Awaitable[int]],
        quiet: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = desk.owner
        self.exit_code = 0
        self.position = Position("Startup", self._moved)
        self._desk, self._slots, self._rooms, self._reporter, self._leases, self._keeper = desk, slots, rooms, reporter, leases, keeper
        self._queues = tuple(queues)
        self._claimer = claimer
        self._facts = facts
        self._listen = listen
        self._until_idle = until_idle
        self._reconcile = reconcile
        self._quiet = quiet
        self._pace = Pace(desk.draw)
        self._ways: list[Way] = []
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._escaped: BaseException | None = None
        self._ear: Listening | None = None
        self._starved = False
        self._told = False

    # ------------------------------------------------------------ what can be seen
    @property
    def state(self) -> str:
        return self.position.state

    @property
    def busy(self) -> int:
        return self._slots.busy

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def facts(self) -> WorkerFacts:
        return self._facts(self.state, self.busy)

    def _moved(self, source: str, target: str, why: str) -> None:
        self._desk.events.emit(events.WorkerMoved(self._desk.owner, source, target, why))

    # ------------------------------------------------------------ its life
    async def run(self) -> int:
        """Work until told to stop; answers how many attempts ended here. `NotMigrated` if the database does not know this code."""
        self.position.go("Connecting", "the worker is run")
        try:
            while not self._stopping.is_set():
                try:
                    await self._round()
                except NotMigrated:
                    raise
                except Exception as error:  # noqa: BLE001 - seed of ErrorWait: whatever it is, the worker goes on
                    await self._error_wait(error)
        finally:
            await self._end()
        return self._slots.done

    def stop(self, exit_code: int = 0) -> None:
        """Stop claiming; finish or release what runs; then end. In the event loop."""
        self.exit_code = self.exit_code or exit_code
        self._stopping.set()
        self._wake.set()
        self._slots.freed.set()

    def wake(self) -> None:
        """Something may be due: look now, not when the pause is over. In the event loop."""
        self._wake.set()

    def _tell(self) -> None:
        self._told = True
        self._wake.set()

    def release(self) -> None:
        """Give back what runs, now. In the event loop."""
        self._slots.stop()

    def escape(self, error: BaseException) -> None:
        """A slot broke: the loop is to wait and begin again."""
        self._escaped = error
        self._wake.set()
        self._slots.freed.set()

    def beat(self) -> None:
        """Renew what is held now, before that is due, and hear what was asked meanwhile. It blocks; from any thread."""
        self._leases.beat()

    def adopt(self, lease: Lease, lifecycle: Lifecycle, asked_at: float) -> None:
        """Finish a committed execution of another worker, whose lease was requested at `asked_at`. In the event loop."""
        self._slots.take(lease, lifecycle, asked_at, apart=self._rooms.apart(lease))

    async def _end(self) -> None:
        self._close_ear()
        await self._quiet()
        if not await self._slots.ended(DRAIN):
            self._slots.stop()
            await self._slots.ended(GRACE)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._reporter.settled()
        self._desk.over.set()
        if not self._desk.unwell.is_set():
            with suppress(InterlockError):
                await self._hop(lambda: self._desk.store.remove_worker(self._desk.owner))

    # ------------------------------------------------------------ the loop
    async def _round(self) -> None:
        """Once around: from Connecting back to it."""
        await self._connect()
        self.position.go("Recovery", "connected")
        done = await self._hop(self._keeper.recover)
        self.position.go("Polling", f"{done} recovered" if done else "nothing to recover, or looked a moment ago")
        await self._poll()
        if self._stopping.is_set():
            return
        self.position.go("Backoff", "nothing is due")
        pause = await self._pause()
        self.position.go("Idle", f"for {pause:.3f} s at most")
        await self._idle(pause)
        self.position.go("Connecting", "the pause is over")

    async def _connect(self) -> None:
        """Make sure of the database. After trouble: ask it, release what a lost reply left to us, and let others renew before we sweep."""
        troubled = self._desk.unwell.is_set()
        if self._ways and not troubled:
            return
        await self._hop(self._desk.now)
        self._ways = await self._hop(self._find_ways)
        if troubled:
            self._desk.unwell.clear()
            self._keeper.was_away()
            held = [grip.fence for grip in self._slots.grips.values()]
            await self._hop(partial(release_strays, self._desk, held, self._slots.fallen))
        if self._listen and self._ear is None:
            loop = asyncio.get_running_loop()
            self._ear = await self._hop(lambda: self._desk.store.listen(lambda: soon(loop, self._tell)))

    def _find_ways(self) -> list[Way]:
        store = self._desk.store
        return [way for declaration in self._desk.kinds.values() for way in declaration.ways(declaration.version(store))]

    async def _poll(self) -> None:
        """Claim while there is something, and slots for it."""
        # Who was told that something came in does not ask again whether it did.
        sure = self._pace.fresh or self._told
        self._told = False
        while not self._stopping.is_set():
            self._check_well()
            if self._slots.free <= 0 and not await self._room():
                continue
            if not sure and not await self._anything_due():
                return
            if self._stopping.is_set():
                return
            if self._keeper.owed:
                # Committed executions go before jobs that have not begun.
                await self._hop(self._keeper.recover)
            claimed = await self._claim()
            if not claimed:
                if not sure:
                    self._slots.missed()
                return
            self._pace.reset()
            sure = True
            await self._gather()

    def _check_well(self) -> None:
        if escaped := self._escaped:
            self._escaped = None
            raise escaped
        if self._leases.failing or self._desk.unwell.is_set():
            raise Unavailable("The database cannot be reached, so nothing is claimed.")

    async def _room(self) -> bool:
        """A slot came free. Now and then it answers False, so that the loop sees whether the database is well."""
        self._slots.freed.clear()
        try:
            async with asyncio.timeout(LOOK):
                await self._slots.freed.wait()
        except TimeoutError:
            return False
        await self._gather()
        return self._slots.free > 0

    async def _gather(self) -> None:
        """A nearly full worker lets a few slots come free before it asks, so that it claims several jobs at once."""
        end = self._desk.waits.monotonic() + GATHER
        while self._slots.busy and self._slots.free < self._slots.size // 4 and self._desk.waits.monotonic() < end and not self._stopping.is_set():
            await self._desk.waits.asleep(GATHER / 8)

    async def _anything_due(self) -> bool:
        soon = await self._hop(lambda: self._desk.store.due_in(self._ways, self._queues))
        return soon is not None and soon <= 0

    async def _claim(self) -> int:
        count, begun = 0, self._desk.waits.monotonic()
        for ways, most in self._rooms.split(self._ways, self._slots.free):
            limit = min(most, self._slots.free)
            if limit > 0:
                count += await self._claim_by(ways, limit)
        self._desk.events.emit(events.Claimed(self._desk.owner, count, self._desk.waits.monotonic() - begun))
        return count

    async def _claim_by(self, ways: Sequence[Way], limit: int) -> int:
        asked_at, (suspects, alone) = self._desk.waits.monotonic(), self._rooms.suspects(limit)
        claim = partial(self._desk.store.claim, self._desk.owner, ways, self._queues, limit, suspects=suspects, alone=alone)
        self._slots.promised = limit
        try:
            leases = await self._hop(claim)
        finally:
            self._slots.promised = 0
        for lease in leases:
            self._slots.take(lease, self._desk.kinds[lease.job.kind].lifecycle, asked_at, apart=self._rooms.apart(lease))
        return len(leases)

    # ------------------------------------------------------------ waiting
    async def _pause(self) -> float:
        """How long to idle: ever longer, but never past the moment when something is due."""
        pause = self._pace.next()
        soon = await self._hop(lambda: self._desk.store.due_in(self._ways, self._queues))
        # Due and yet not ours to claim, for want of room for its kind: what ends next may make room.
        self._starved = soon is not None and soon <= 0
        return pause if soon is None or self._starved else min(pause, soon)

    async def _idle(self, pause: float) -> None:
        if self._until_idle:
            await self._idle_or_stop()
            return
        wants_slots = self._starved or self._keeper.owed
        if wants_slots:
            self._slots.freed.clear()
        waits = [asyncio.ensure_future(self._wake.wait())] + ([asyncio.ensure_future(self._slots.freed.wait())] if wants_slots else [])
        try:
            await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._wake.clear()

    async def _idle_or_stop(self) -> None:
        """A worker that only empties the queue: wait for what runs, let the keeper do its part, and stop when there is nothing left."""
        if self._slots.busy:
            self._slots.freed.clear()
            await self._slots.freed.wait()
        elif not await self._hop(self._keeper.run_once) + await self._reconcile():
            soon = await self._hop(lambda: self._desk.store.due_in(self._ways, self._queues))
            if soon is None or soon > 0:
                self.stop()
            else:
                # Due, and yet not claimed: for want of room for its kind, here or elsewhere.
                await self._desk.waits.asleep(self._pace.next())
                return
        self._pace.reset()

    async def _error_wait(self, error: BaseException) -> None:
        self._desk.events.emit(events.Trouble(self._desk.owner, self.state, error))
        self.position.go("ErrorWait", type(error).__name__)
        self._close_ear()
        self._desk.unwell.set()
        stop = asyncio.ensure_future(self._stopping.wait())
        pause = asyncio.ensure_future(self._desk.waits.asleep(ERROR_WAIT))
        await asyncio.wait([stop, pause], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        pause.cancel()
        self.position.go("Connecting", "the wait is over")

    def _close_ear(self) -> None:
        if ear := self._ear:
            self._ear = None
            threading.Thread(target=ear.close, daemon=True).start()

    async def _hop(self, work: Callable[[], T]) -> T:
        """The database, over one thread hop."""
        return await asyncio.get_running_loop().run_in_executor(self._claimer, work)
