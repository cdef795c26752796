"""The reconciler: it asks an outside system about work that was handed over to it, a batch at a time, and moves the jobs by what it hears.

Like everyone it holds a job before it moves it: it adopts what is due, asks once for all of it, and gives it back in the move that stores the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from . import events
from .answers import Complete, Failed, Going, Gone
from .declaration import Declaration, Reconcile
from .errors import LeaseLost, Unavailable, UsageError
from .lifecycle import Lifecycle
from .outcome import Cancelled, Looked, Outcome, Returned, Unrecorded
from .outcome import Failed as HasFailed
from .outcome import Gone as IsGone
from .payload import clean
from .records import Beat, Lease
from .taxonomy import headline
from .user_code import Scope, acaught, asurround, protected
from .worker.desk import Desk
from .worker.grip import Grip
from .worker.settle import Item, Settler
from .worker.verdict import returned

T = TypeVar("T")
MISSING = "missing_external_job"
"""Why a job failed that the outside did not know of for as long as its grace."""
TICK = 1.0
"""Seconds between two looks at who was asked to stop, at most."""
LONGEST = 300.0
"""Seconds to which the pause grows while the outside cannot be asked."""
TRUSTED = 0.8
"""The part of a lease in which the outside must have answered: what is left is for writing it down."""
Finish = Callable[[Lease, Lifecycle, float], None]
"""Takes a committed execution that still needs its finish, and the time at which its lease was requested."""
Held = tuple[Grip, Lease]


class Reconciler:
    """Asks about one kind's executions. Any number of them may ask about one kind: each execution is in one's hands at a time."""

    def __init__(self, desk: Desk, settler: Settler, declaration: Declaration, asked: Reconcile, threads: Executor, finish: Finish) -> None:  # noqa: PLR0917
        self.owner = f"{desk.owner}/reconciler"
        """A name of its own, so that what it is at is never taken for a claim whose reply was lost."""
        self._desk = desk
        self._settler = settler
        self._kind = declaration
        self._asked = asked
        self._threads = threads
        self._finish = finish
        self._over = asyncio.Event()
        self._asking: asyncio.Task[object] | None = None
        self._next = float("-inf")
        self._failures = 0
        self._untold: set[str] = set()

    # ------------------------------------------------------------ its life
    async def keep(self) -> None:
        """A batch every so often, and a look at who is asked to stop every second, until told to end."""
        while not self._over.is_set():
            await self._attempt(self.stop_asked)
            if self._desk.waits.monotonic() >= self._next:
                await self._attempt(self.check_due)
            pause = min(TICK, self._asked.every) * (0.75 + self._desk.draw() / 2)
            waiting = [asyncio.ensure_future(self._over.wait()), asyncio.ensure_future(self._desk.waits.asleep(pause))]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in waiting:
                one.cancel()

    def stop(self) -> None:
        """Ask nothing more. What is being asked is not waited for: those jobs are given back, due at once."""
        self._over.set()
        if self._asking is not None:
            self._asking.cancel()

    async def run_once(self) -> int:
        """Everything that is due, now. Answers how many executions were looked at."""
        return await self._attempt(self.stop_asked) + await self._attempt(self.check_due)

    async def _attempt(self, part: Callable[[], Awaitable[int]]) -> int:
        try:
            return await part()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next round comes
            if isinstance(error, Unavailable):
                self._desk.unwell.set()
            self._desk.events.emit(events.Trouble(self._desk.owner, f"reconciler: {self._kind.name}", error))
            return 0

    # ------------------------------------------------------------ who is asked to stop
    async def stop_asked(self) -> int:
        """End the jobs that were asked to stop, without waiting for their next check."""
        kind, asked_at = self._kind, self._desk.waits.monotonic()
        grips = await self._held(lambda: self._desk.store.recall(self.owner, [kind.name], kind.lease, self._asked.batch), asked_at)
        await self._put_off([grip for grip, _ in await self._stop(grips)])
        return len(grips)

    async def _stop(self, grips: Sequence[Held]) -> list[Held]:
        """End them, and answer those that go on because the outside could not be told. It is told first: only a job that is still held can be told of again."""
        told = await asyncio.gather(*(protected(self._tell(grip, lease.external_id or "")) for grip, lease in grips))
        await self._settle([Item(grip, Cancelled(None, self.owner), _nothing, once=True) for (grip, _), was in zip(grips, told, strict=True) if was])
        return [pair for pair, was in zip(grips, told, strict=True) if not was]

    async def _tell(self, grip: Grip, external_id: str) -> bool:
        if self._kind.on_cancel is None:
            return True
        try:
            await self._theirs(partial(self._kind.on_cancel, external_id), grip)
        except Exception as error:  # noqa: BLE001 - the user's own; it is tried again
            self._desk.events.emit(events.Trouble(self.owner, f"on_cancel of {self._kind.name}", error))
            if grip.job.id not in self._untold:
                self._untold.add(grip.job.id)
                why = f"on_cancel raised {headline(error)}; the reconciler retries it, and still follows the work"
                await self._hop(partial(self._settler.remark, grip, "cancel_failed", why))
            return False
        self._untold.discard(grip.job.id)
        return True

    # ------------------------------------------------------------ what is due
    async def check_due(self) -> int:
        """One batch: what was looked at longest ago comes first. One question for all of it."""
        kind, begun = self._kind, self._desk.waits.monotonic()
        self._next = begun + self._asked.every
        grips = await self._held(lambda: self._desk.store.adopt(self.owner, [kind.name], kind.lease, self._asked.batch, external=True), begun)
        stops, asked = [pair for pair in grips if _asked_to_stop(pair[0])], [pair for pair in grips if not _asked_to_stop(pair[0])]
        asked += await self._stop(stops)
        if asked:
            await self._ask(asked, begun)
        return len(grips)

    async def _ask(self, grips: Sequence[Held], begun: float) -> None:
        ids = list(dict.fromkeys(lease.external_id or "" for _, lease in grips))
        try:
            answers = await self._answers(ids)
        except asyncio.CancelledError:
            await self._settle([Item(grip, Looked(0.0, seen=None), _nothing) for grip, _ in grips])
            if not self._over.is_set():
                raise
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it says nothing about the jobs
            await self._down(grips, begun, error)
            return
        await self._up(len(ids), begun)
        # The next batch begins so long after this one began, and these are due in it again.
        check_in = max(self._asked.every - (self._desk.waits.monotonic() - begun), 0.0)
        await self._settle([self._item(grip, lease, answers.get(lease.external_id or ""), check_in) for grip, lease in grips])

    async def _answers(self, ids: Sequence[str]) -> Mapping[str, object]:
        if self._over.is_set():
            raise asyncio.CancelledError
        self._asking = task = protected(self._theirs(partial(self._asked.ask, ids)))
        try:
            answers: object = await task
        finally:
            self._asking = None
        if not isinstance(answers, Mapping):
            said = f"reconcile of {self._kind.name} answered {str(answers)[:100]!r}"
            raise UsageError(f"{said}: answer a mapping from each id that is there to what is known of it.")
        return cast("Mapping[str, object]", answers)

    async def _theirs(self, call: Callable[[], Awaitable[T]], grip: Grip | None = None) -> T:
        """The user's own function, in the time that a lease leaves for it. Whatever it raises is an error of its own, and never ends the reconciler."""
        owner = Scope(self._kind.name) if grip is None else Scope(self._kind.name, grip.job.id, grip.job.attempt)
        task, deadline = protected(acaught(partial(asurround, self._kind.around, call)), owner), asyncio.timeout(self._kind.lease * TRUSTED)
        value, error = None, None
        try:
            async with deadline:
                value, error = await task
        except (TimeoutError, asyncio.CancelledError) as stopped:
            error = stopped
        if (me := asyncio.current_task()) is not None and me.cancelling():
            raise asyncio.CancelledError
        if deadline.expired():
            raise TimeoutError(f"no answer within {self._kind.lease * TRUSTED:g} s, for which a lease of {self._kind.lease:g} s has room") from error
        if error is None:
            return cast("T", value)
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise error
        raise RuntimeError(f"it raised {type(error).__name__}") from error

    def _item(self, grip: Grip, lease: Lease, answer: object, check_in: float) -> Item:
        try:
            outcome, value = self._outcome(grip, lease, answer, check_in)
        except Exception as error:  # noqa: BLE001 - one answer that cannot be read stops no other
            self._desk.events.emit(events.Trouble(self.owner, f"reconciling job {grip.job.id}", error))
            outcome, value = Looked(check_in, seen=True), None
        return Item(grip, outcome, _nothing, value, once=True)

    def _outcome(self, grip: Grip, lease: Lease, answer: object, check_in: float) -> tuple[Outcome, Any]:
        match answer:
            case Complete(value=value):  # pyright: ignore[reportUnknownVariableType] - of whatever type the kind has
                outcome, value = returned(grip, value)
                return (replace(outcome, begins=True) if isinstance(outcome, Returned) else outcome), value
            case Failed(reason=reason):
                return HasFailed(clean(reason), seen=True), None
            case Gone(reason=reason):
                return IsGone(clean(reason) or "cancelled outside"), None
            case Going(done=done, total=total, note=note):
                if done is not None:
                    grip.progress(done, total, note)
                return Looked(check_in, seen=True, begun=done is not None), None
            case None:
                over = lease.missing_for is not None and lease.missing_for >= self._asked.grace
                return (HasFailed(MISSING) if over else Looked(check_in, seen=False)), None
            case _:
                said = f"reconcile of {self._kind.name} answered {str(answer)[:100]!r} for {lease.external_id!r}"
                raise UsageError(f"{said}: answer Going, Complete, Failed or Gone, and leave out what is not there.")

    # ------------------------------------------------------------ how the outside fares
    async def _up(self, ids: int, begun: float) -> None:
        self._failures = 0
        await self._hop(lambda: self._desk.store.report_outside(self._kind.name, None))
        self._desk.events.emit(events.Checked(self._kind.name, ids, self._desk.waits.monotonic() - begun))

    async def _down(self, grips: Sequence[Held], begun: float, error: Exception) -> None:
        """No job changes for it; the next questions come ever later."""
        self._failures += 1
        pause = min(self._asked.every * 2.0 ** min(self._failures, 30), max(LONGEST, self._asked.every))
        self._next = begun + pause
        self._desk.events.emit(events.OutsideFailed(self._kind.name, self._failures, pause, error))
        await self._hop(lambda: self._desk.store.report_outside(self._kind.name, clean(headline(error), 500)))
        await self._settle([Item(grip, Looked(pause, seen=None), _nothing) for grip, _ in grips])

    # ------------------------------------------------------------ writing it down
    async def _settle(self, items: Sequence[Item]) -> None:
        """Store what was found out. A job that another has moved meanwhile is left alone."""
        if not items:
            return
        # The commit also renews the lease.
        asked_at = self._desk.waits.monotonic()
        await self._hop(lambda: self._settler.each(items))
        await self._put_off([item.grip for item in items if item.error is not None and not isinstance(item.error, LeaseLost)])
        for item in items:
            grip = item.grip
            if isinstance(item.error, Unavailable):
                raise item.error
            if item.error is not None and not isinstance(item.error, LeaseLost):
                self._desk.events.emit(events.Trouble(self.owner, f"reconciling job {grip.job.id}", item.error))
            elif item.error is None and isinstance(item.outcome, Unrecorded):
                await self._hop(partial(self._settler.remark, grip, "commit_failed", item.outcome.error.strip().rpartition("\n")[2]))
            elif item.error is None and grip.status == "COMMITTED" and not grip.ended:
                self._finish(Lease(grip.job, grip.holder, grip.status, grip.owner, grip.seconds, result=grip.value), grip.lifecycle, asked_at)

    async def _put_off(self, grips: Sequence[Grip]) -> None:
        """Keep them until the next check: whoever adopts them then tries again."""
        if grips:
            await self._hop(lambda: self._desk.store.renew([Beat(grip.fence, self._asked.every) for grip in grips]))

    async def _held(self, adopt: Callable[[], list[Lease]], asked_at: float) -> list[Held]:
        def grip(lease: Lease) -> Grip:
            return Grip(lease, self._kind, self._desk.store.lifecycle(lease.job.lifecycle, lease.job.lifecycle_version), asked_at=asked_at)

        return await self._hop(lambda: [(grip(lease), lease) for lease in adopt()])

    async def _hop(self, work: Callable[[], T]) -> T:
        """The database, over one thread hop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _asked_to_stop(grip: Grip) -> bool:
    return grip.job.cancel_requested_at is not None and grip.lifecycle.arrow(grip.job.state, "cancel") is not None


def _nothing(item: Item) -> None:
    """Nobody waits for it: the reconciler looks by itself."""
