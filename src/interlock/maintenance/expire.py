"""Waiting jobs whose time to live has ended: carried out by `expire`, with the hook of the state that they end in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import events
from ..errors import InterlockError, Unavailable
from ..job import Job
from ..move import Take, decide_take
from ..payload import clean
from ..taxonomy import headline
from ..user_code import surround
from ..worker.desk import Desk

LIMIT = 100
ROUNDS = 100
"""Batches at one go at most: the rest comes a second later."""
SOONEST = 1.0
WHY = "its time to live has ended"


@dataclass(slots=True)
class _Shelved:
    """A job that could not be carried out, and when, on the monotonic clock, that is tried again."""

    failures: int
    until: float


class Expiry:
    """Expires jobs of the kinds that it knows. One that cannot be expired waits ever longer for its next turn, and stops no other."""

    def __init__(self, desk: Desk, owner: str) -> None:
        self._desk = desk
        self._owner = owner
        self._shelf: dict[str, _Shelved] = {}

    def run(self) -> int:
        """Everything that is due now. Answers how many jobs were expired."""
        done, kinds = 0, sorted(self._desk.kinds)
        for _ in range(ROUNDS):
            limit = LIMIT + len(self._shelf)
            jobs = self._desk.store.expired(kinds, limit)
            self._shelf = {job.id: shelved for job in jobs if (shelved := self._shelf.get(job.id))}
            due = [job for job in jobs if self._due(job.id)]
            done += self._expire(due)
            if not due or len(jobs) < limit or self._desk.over.is_set():
                break
        return done

    def _due(self, id: str) -> bool:
        shelved = self._shelf.get(id)
        return shelved is None or shelved.until <= self._desk.waits.monotonic()

    # ------------------------------------------------------------ one batch
    def _expire(self, jobs: Sequence[Job]) -> int:
        plain, done = list[tuple[Job, Take]](), 0
        for job in jobs:
            declaration = self._desk.kinds[job.kind]
            try:
                lifecycle = self._desk.store.lifecycle(job.lifecycle, job.lifecycle_version)
                take = decide_take(lifecycle, job, "expire", declaration.policy, actor=self._owner, reason=WHY)
            except InterlockError as error:
                self._fail(job, error)
                continue
            if body := declaration.taking(take):
                done += self._alone(job, take, body)
            else:
                plain.append((job, take))
        return done + self._together(plain)

    def _together(self, plain: Sequence[tuple[Job, Take]]) -> int:
        if not plain:
            return 0
        refusals = {refusal.job_id: refusal for refusal in self._desk.store.take([take for _, take in plain])}
        for job, take in plain:
            refusal = refusals.get(job.id)
            if refusal is None:
                self._expired(job, take)
            elif refusal.error is not None:
                self._fail(job, InterlockError(refusal.error))
            # Otherwise another was faster, and what stands there is right.
        return len(plain) - len(refusals)

    def _alone(self, job: Job, take: Take, body: Callable[[Any, Job], None]) -> bool:
        """In a transaction of its own, with its hook. A hook that raises leaves the job where it is."""
        declaration = self._desk.kinds[job.kind]
        try:
            refusal = surround(declaration.around, lambda: self._desk.store.commit(
                take, body, transaction=self._desk.transaction, timeout=declaration.commit_timeout))
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the hook's own
            self._hook_failed(job, take, error)
            return False
        if refusal is None:
            self._expired(job, take)
        return refusal is None

    # ------------------------------------------------------------ what came of it
    def _expired(self, job: Job, take: Take) -> None:
        self._shelf.pop(job.id, None)
        arrow = take.arrow
        self._desk.events.emit(
            events.Transition(job.id, job.kind, job.lifecycle, arrow.event, arrow.source, arrow.target, take.attempt + 1, take.actor))

    def _hook_failed(self, job: Job, take: Take, error: Exception) -> None:
        state = take.arrow.target
        self._desk.events.emit(events.HookFailed(job.id, job.kind, state, error))
        if self._shelve(job) == 1:
            reason = clean(f"the hook for {state} raised {headline(error)}; the keeper retries it")
            self._desk.store.remark(job.id, attempt=None, event="hook_failed", actor=self._owner, reason=reason)

    def _fail(self, job: Job, error: InterlockError) -> None:
        self._shelve(job)
        self._desk.events.emit(events.Trouble(self._owner, f"expiring job {job.id}", error))

    def _shelve(self, job: Job) -> int:
        before = self._shelf.get(job.id)
        failures = before.failures + 1 if before else 1
        delay = max(self._desk.kinds[job.kind].backoff.delay(failures, self._desk.draw()), SOONEST)
        self._shelf[job.id] = _Shelved(failures, self._desk.waits.monotonic() + delay)
        return failures
