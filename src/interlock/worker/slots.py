"""Slots: each carries one execution at a time, from its lease to its stored end."""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable

from .. import events
from ..errors import LeaseLost, TransitionRefused, Unavailable
from ..lifecycle import Lifecycle
from ..outcome import Finished, Handed, Outcome, Returned
from ..payload import clean
from ..records import Fence, Lease
from ..taxonomy import describe
from ..user_code import protected
from .attempt import Attempts
from .desk import Desk, soon
from .grip import Grip
from .process import CannotStart, Died
from .report import Reporter
from .rooms import must_run_alone
from .settle import Item
from .states import check

Escaped = Callable[[BaseException], None]
RENEWED = 0.25
"""Seconds between two checks whether a lease was renewed."""


class Slots:
    """The executions that a worker holds, each in a slot with a place of its own in the machine. All of it lives in the event loop."""

    def __init__(self, desk: Desk, attempts: Attempts, reporter: Reporter, size: int, escaped: Escaped) -> None:
        self.size = size
        self.grips: dict[int, Grip] = {}
        """By their own identity: a lost execution may still run here while its job's next one does."""
        self.fallen: dict[Fence, None] = {}
        """Executions that failed here and wait for their lease to expire. Forgotten when another worker takes them."""
        self.promised = 0
        """The number of slots for which a claim is under way."""
        self.coming: deque[Lease] = deque()
        """Leases that the keeper's thread has adopted and the event loop has not taken yet."""
        self._stopped = False
        self._waiting: set[int] = set()
        """Executions that wait until nothing else runs."""
        self._queued: deque[Grip] = deque()
        """Executions that wait for a slot while the worker renews their leases."""
        self.freed = asyncio.Event()
        self.done = 0
        """Attempts that have ended here."""
        self._desk = desk
        self._attempts = attempts
        self._reporter = reporter
        self._escaped = escaped
        self._numbers = list(range(size))
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------ room
    @property
    def busy(self) -> int:
        return len(self.grips)

    @property
    def free(self) -> int:
        """Free slots, without those that a claim or an adopted execution will take. Thread-safe."""
        return max(self.size - len(self.grips) - self.promised - len(self.coming), 0)

    def running(self, chosen: Callable[[Grip], bool]) -> int:
        """How many executions of this worker match. Thread-safe."""
        return sum(1 for grip in list(self.grips.values()) if chosen(grip))

    def missed(self) -> None:
        """A slot reached for a job, and another worker was faster."""
        number = self._numbers[0] if self._numbers else 0
        self._moved(number, None, "Polling", "Claiming", "a job is due")
        self._moved(number, None, "Claiming", "Polling", "another worker was faster")

    # ------------------------------------------------------------ one execution
    def take(self, lease: Lease, lifecycle: Lifecycle, asked_at: float, *, apart: bool) -> None:
        """Run an execution that was claimed, or finish one that was adopted after its commit.

        Without a free slot it waits for one, and the worker renews its lease meanwhile.
        """
        grip = Grip(lease, self._desk.kinds[lease.job.kind], lifecycle, asked_at=asked_at, slot=self.size, apart=apart)
        self.grips[id(grip)] = grip
        self._queued.append(grip)
        self._begin_queued()

    def _begin_queued(self) -> None:
        while self._queued and self._numbers:
            grip = self._queued.popleft()
            grip.slot = heapq.heappop(self._numbers)
            self._go(grip, "Claiming", "a job is due")
            self._go(grip, "Processing", "the lease is ours")
            self._begin(grip)

    def _begin(self, grip: Grip) -> None:
        # The grip keeps its task: the loop itself would let it be collected.
        grip.task = protected(self._carry(grip))

    async def _carry(self, grip: Grip) -> None:
        try:
            if not grip.apart and must_run_alone(grip):
                await self._until_alone(grip)
            if grip.status == "COMMITTED":
                await self._finish(grip)
                return
            outcome, value = await self._attempts.prepare(grip)
            if outcome is None:
                self._give_up(grip, "it was lost before it began")
                return
            self._reporting(grip, outcome)
            self._reporter.post(grip, outcome, self._settled, value)
        except asyncio.CancelledError:
            self._give_up(grip, "the event loop is closing")
            raise
        except BaseException as error:  # noqa: BLE001 - no slot may die silently
            self._fall(grip, error)

    async def _until_alone(self, grip: Grip) -> None:
        """If no child can be started, wait until nothing else runs here. The worker claims nothing meanwhile."""
        self._waiting.add(id(grip))
        grip.on_halt(lambda: soon(self._loop, self.freed.set))
        grip.began = math.inf
        try:
            while grip.stop is None and len(self.grips) > len(self._waiting) + len(self._queued):
                self.freed.clear()
                await self.freed.wait()
        finally:
            self._waiting.discard(id(grip))
            grip.on_halt(None)
            grip.began = self._desk.waits.monotonic()

    async def _finish(self, grip: Grip) -> None:
        """What follows the commit, until it is done or has failed as often as its kind has tries. It never fails the job."""
        outcome = Finished()
        while grip.stop is None:
            error = await self._attempts.finish(grip)
            if error is None or grip.stop is not None:
                break
            if isinstance(error, Died) and error.others:
                # Any job in the process may have killed it. The next attempt runs alone, and shows which one.
                grip.unpaid = grip.unpaid or error.shared
                continue
            if not isinstance(error, CannotStart):
                grip.failures += 2 if isinstance(error, Died) and grip.unpaid else 1
                self._desk.events.emit(events.FinishFailed(grip.job.id, grip.job.kind, grip.failures, error))
            if grip.failures >= grip.declaration.tries:
                outcome = Finished(clean(describe(error)))
                break
            await self._attempts.pause(grip, grip.declaration.backoff.delay(max(grip.failures, 1), self._desk.draw()))
        if grip.stop is not None and await self._trusted_again(grip):
            await self._finish(grip)
            return
        if grip.stop is not None:
            self._give_up(grip, "another will finish it")
            return
        self._reporting(grip, outcome)
        self._reporter.post(grip, outcome, self._settled)

    async def _trusted_again(self, grip: Grip) -> bool:
        """Wait until an expired lease that no other worker has taken is renewed. False if it is not."""
        while grip.doubted and not self._stopped and not self._desk.over.is_set():
            if self._desk.waits.monotonic() < grip.trusted_until():
                grip.trust_again()
                return True
            await self._desk.waits.asleep(RENEWED)
        return False

    # ------------------------------------------------------------ its end
    def _reporting(self, grip: Grip, outcome: Outcome) -> None:
        if grip.state == "Processing":
            good = isinstance(outcome, Returned | Handed) or (isinstance(outcome, Finished) and outcome.error is None)
            self._go(grip, "ReportingSuccess" if good else "ReportingFailure", type(outcome).__name__)

    def _settled(self, item: Item) -> None:
        """The store has answered."""
        grip, error = item.grip, item.error
        grip.settling = False
        if error is not None and (item.again is not None or isinstance(error, LeaseLost | TransitionRefused | Unavailable)):
            self._give_up(grip, str(error))
        elif error is not None:
            self._fall(grip, error)
        elif grip.ended:
            self._free(grip, "stored")
        else:
            # Past its commit: the same slot goes on with what follows.
            self._begin(grip)

    def _give_up(self, grip: Grip, why: str) -> None:
        """It is not ours any more, or cannot be given back: whoever adopts it goes on."""
        grip.renews = False
        if grip.state == "Processing":
            self._go(grip, "ReportingFailure", why)
        self._free(grip, why)

    def _fall(self, grip: Grip, error: BaseException) -> None:
        """Something of ours broke. The job is left to its lease, and the worker waits a while."""
        grip.renews = False
        self.fallen[grip.fence] = None
        self._go(grip, "ErrorWait", type(error).__name__)
        self._desk.events.emit(events.Trouble(self._desk.owner, f"job {grip.job.id}", error))
        self._go(grip, "Connecting", "the loop starts over")
        self._drop(grip)
        self._escaped(error)

    def _free(self, grip: Grip, why: str) -> None:
        self._go(grip, "Polling", why)
        self._drop(grip)

    def _drop(self, grip: Grip) -> None:
        del self.grips[id(grip)]
        if grip.slot < self.size:
            heapq.heappush(self._numbers, grip.slot)
        self.done += 1
        self.freed.set()
        self._begin_queued()

    def _go(self, grip: Grip, target: str, why: str) -> None:
        source, grip.state = grip.state, target
        self._moved(grip.slot, grip.job.id, source, target, why)

    def _moved(self, number: int, job_id: str | None, source: str, target: str, why: str) -> None:
        check(source, target)
        if self._desk.events.wants(events.SlotMoved):
            self._desk.events.emit(events.SlotMoved(self._desk.owner, number, source, target, why, job_id))

    # ------------------------------------------------------------ the end of all
    def stop(self) -> None:
        """Have every handler stop, and its job given back."""
        self._stopped = True
        self._reporter.hurry()
        for grip in list(self.grips.values()):
            if not grip.settling:
                grip.halt("release")

    async def ended(self, timeout: float) -> bool:  # noqa: ASYNC109 - a deadline is what this is about
        """Whether every slot came free in time."""
        end = self._desk.waits.monotonic() + timeout
        while self.grips and (left := end - self._desk.waits.monotonic()) > 0:
            self.freed.clear()
            try:
                async with asyncio.timeout(left):
                    await self.freed.wait()
            except TimeoutError:
                break
        return not self.grips
