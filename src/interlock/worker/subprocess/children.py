"""Child processes for handlers: some for heavy kinds, others for suspects in quarantine, in groups or alone."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import PayloadError
from ..events import Trouble
from ..outcome import Errored, Failed, Outcome, Released, Returned, Snoozed
from ..payload import clean
from ..telemetry import logs
from ..user_code import protected
from .desk import Desk, soon
from .grip import WHY, Grip
from .process import CannotStart, Child, Died, Errand, What
from .quarantine import IDLE, Groups, Stock
from .rooms import must_run_alone, suspicious
from .runs import StoreLedger
from .verdict import stopped
from .wire import Message, outcome_heard

FEWEST, MOST = 4, 8
"""The number of groups, and of children for single suspects, is that of the processors within these limits."""
AGAIN = 3
"""Idle children in a row that may turn out dead when they are given a job."""


class Halted(Exception):
    """The execution was told to stop while it waited for a child."""


class RaisedThere(Exception):
    """What a function raised in a child, told by its last line; its traceback there is a note."""

    def __init__(self, text: str) -> None:
        super().__init__(text.rpartition("\n")[2])
        self.add_note(f"In the child process:\n{text}")


class Room:
    """Children of one sort, each with one job at a time: started when they are needed, used again, replaced when they have died."""

    def __init__(self, most: int, stock: Stock) -> None:
        self.most = most
        self.busy = 0
        self._stock = stock
        self._turns = asyncio.Semaphore(most)

    async def take(self) -> Child:
        await self._turns.acquire()
        self.busy += 1
        try:
            return await self._stock.take()
        except BaseException:
            self._leave()
            raise

    def give(self, child: Child) -> None:
        self._stock.give(child)
        self._leave()

    def _leave(self) -> None:
        self.busy -= 1
        self._turns.release()


class Children:
    """The processes of one worker. A child that dies ends its own job only; the next need starts another."""

    def __init__(
        self, desk: Desk, target: str | None, *, most: int | None = None, database: str | None = None,
        warmed: Callable[[], None] | None = None,
    ) -> None:
        """`target` is `module:app`, None where the app cannot be imported by name. `database` is the URL that verbs of the app use in a child, too.

        `warmed` is called when a quarantine child has started, so that more suspects can be claimed.
        """
        self._desk = desk
        self._target = target
        self._database = database
        self._pool = Room(most or os.cpu_count() or 1, Stock(self._start, idle=None))
        places = min(max(os.cpu_count() or 1, FEWEST), MOST)
        self._quarantine = Stock(self._start, idle=IDLE, started=warmed)
        self._alone, self._groups = Room(places, self._quarantine), Groups(places, self._quarantine)
        self._living: set[Child] = set()
        self._closed = False

    @property
    def importable(self) -> bool:
        return self._target is not None

    @property
    def most(self) -> int:
        """How many executions of kinds with process=True may run at once."""
        return self._pool.most if self.importable else 0

    @property
    def busy(self) -> int:
        """How many of them do."""
        return self._pool.busy

    @property
    def warm(self) -> bool:
        """Whether a quarantine child runs."""
        return self._quarantine.warm

    @property
    def most_alone(self) -> int:
        """How many suspects may run alone at once, each in its own child."""
        return self._alone.most

    @property
    def quarantined(self) -> int:
        """How many suspects are in quarantine."""
        return self._alone.busy + self._groups.busy

    # ------------------------------------------------------------ what runs in them
    async def prepare(self, grip: Grip, ledger: StoreLedger) -> tuple[Outcome, Any]:
        """Run the handler of a started execution in a child; the value is as its commit function is to see it."""
        try:
            said = await self._told(grip, ledger, "prepare")
        except Halted:
            return stopped(grip), None
        except CannotStart as error:
            return self._unable(grip, error), None
        except Died as error:
            return self._outcome_of(error, grip), None
        outcome = outcome_heard(said["outcome"])
        if not isinstance(outcome, Returned):
            return outcome, None
        try:
            return outcome, grip.declaration.signature.load_value(json.loads(outcome.value))
        except PayloadError as error:
            return Failed(clean(str(error))), None

    @staticmethod
    def _outcome_of(death: Died, grip: Grip) -> Outcome:
        if grip.stop is not None:
            return stopped(grip)
        if death.ended:
            return Released("the worker ended its process because of another job")
        return Errored(clean(str(death)), retryable=True, crashed=True, shared=death.shared)

    async def finish(self, grip: Grip, ledger: StoreLedger) -> None:
        """Run what follows the commit in a child. Raises what it raised, told by `RaisedThere`; `Died` if the process ended in its place."""
        try:
            said = await self._told(grip, ledger, "finish")
        except (Halted, Died):
            grip.check()
            raise
        except CannotStart as error:
            self._unable(grip, error)
            raise
        if said["say"] == "raised":
            grip.check()
            raise RaisedThere(said["text"])

    async def _told(self, grip: Grip, ledger: StoreLedger, what: What) -> Message:
        room = self._room_of(grip)
        for last in (*[False] * (AGAIN - 1), True):
            child = await self._unless_halted(grip, room.take())
            try:
                said = await child.carry(Errand(self._desk, what, grip, ledger))
            except Died as error:
                if error.began or last or grip.stop is not None:
                    raise
                continue
            finally:
                room.give(child)
            if said["say"] == "broken":
                raise CannotStart(said["why"])
            return said
        raise AssertionError("the last round answers or raises")

    def _room_of(self, grip: Grip) -> Room | Groups:
        """The pool for this execution: heavy kinds have their own, other suspects run in a group or alone."""
        if grip.declaration.process or not suspicious(grip.job.lease_losses, grip.crashes):
            return self._pool
        return self._alone if must_run_alone(grip) else self._groups

    def _unable(self, grip: Grip, error: CannotStart) -> Outcome:
        """No fault of the job, and no try of it; it comes back later, since at once would be once more in vain."""
        sentence = f"a process for it could not be started: {error}"
        self._desk.events.emit(Trouble(self._desk.owner, "child", sentence))
        if self._closed:
            return Released(WHY["release"])
        return Snoozed(grip.declaration.backoff.delay(max(grip.job.attempt, 1), self._desk.draw()), clean(sentence))

    # ------------------------------------------------------------ their life
    async def _unless_halted(self, grip: Grip, taking: Coroutine[Any, Any, Child]) -> Child:
        task, loop = protected(taking), asyncio.get_running_loop()
        grip.on_halt(lambda: soon(loop, task.cancel))
        try:
            return await task
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if grip.stop is None or (waiter is not None and waiter.cancelling()):
                raise
            raise Halted from None
        finally:
            grip.on_halt(None)

    async def _start(self) -> Child:
        if self._target is None:
            raise CannotStart("the app cannot be imported by name: start the worker with -A MODULE:APP")
        if self._closed:
            raise CannotStart("the worker is ending")
        try:
            child = await Child.spawn(self._target)
        except OSError as error:
            raise CannotStart(str(error)) from None
        self._living = {each for each in self._living if each.alive} | {child}
        await child.greet({"say": "hello", "path": sys.path, "database": self._database, "logs": logs.chosen()})
        return child

    async def close(self) -> None:
        """End them all: the idle ones leave the app's lifespan first, the busy ones are killed."""
        self._closed = True
        await asyncio.gather(*(child.close() for child in self._living))
