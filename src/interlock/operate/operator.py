"""What an operator does to a job: cancel it, reject it, release it from a hold, drive it again. Each holds the job first, as everyone does."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from .call import Call, Options
from .declaration import Declaration
from .enqueue import Transaction, enqueue_job, foreign_job
from .errors import TransitionRefused, UsageError
from .job import Job
from .lifecycle import Lifecycle
from .move import Policy, decide_take
from .payload import clean, encode, encode_tags
from .records import Decision, Enqueued, NewJob
from .stores import OpenStore

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Operator:
    """Someone who carries jobs out, with what the process knows of their kinds."""

    store: OpenStore
    kinds: Mapping[str, Declaration]
    transaction: Transaction | None
    by: str

    @property
    def actor(self) -> str:
        return clean(f"operator:{self.by}", 255)

    def cancel(self, id: str, reason: str | None) -> Job:
        """End a waiting job, or ask a running one to stop; `TransitionRefused` if neither can be.

        Between the look and the act the job may begin or stop running, so both are tried, three rounds long.
        """
        for _ in range(ROUNDS):
            job, lifecycle = self._look(id)
            if job.ended:
                return _ended(job, lifecycle)
            if job.phase == "pending":
                if self._take(lifecycle, job, "cancel", reason):
                    return self.store.get(id)
            elif not lifecycle.targets("cancel"):
                raise TransitionRefused(f"Job {id} runs in {job.state}, and its lifecycle {lifecycle.name} draws no `cancel`: wait for its end.")
            elif self.store.request_cancel(id, by=self.actor, reason=reason):
                return self.store.get(id)
        raise TransitionRefused(f"Job {id} was not cancelled: it is past its commit, or others move it faster than we can. Look, and ask again if it goes on.")

    def reject(self, id: str, reason: str) -> Job:
        """Carry a waiting job out by `reject`; `TransitionRefused` if it does not wait, or its state does not draw that."""
        for _ in range(ROUNDS):
            job, lifecycle = self._look(id)
            if self._take(lifecycle, job, "reject", reason):
                return self.store.get(id)
        raise TransitionRefused(f"Job {id} was not rejected: others move it faster than we can. Look at it, and ask again if it waits.")

    def release(self, id: str, reason: str, decision: Decision | None) -> Job:
        """End a job's hold; `TransitionRefused` if it is not held."""
        if not self.store.release(id, by=self.actor, reason=reason, decision=decision):
            job = self.store.get(id)
            raise TransitionRefused(f"Job {id} is not held: it is {job.phase} in {job.state}. There is nothing to release.")
        return self.store.get(id)

    def redrive(self, id: str, reason: str | None, *, fresh: bool) -> Enqueued:
        """A new job in the place of one that ended without success, with the same payload and, unless `fresh`, its receipts."""
        job, _ = self._look(id)
        if job.phase != "failed":
            raise TransitionRefused(f"Job {id} is {job.phase} in {job.state}: only a job that ended without success is driven again.")
        made = replace(
            self._anew(job), queue=job.queue, priority=job.priority, unique_key=job.unique_key, tags=encode_tags(job.tags) if job.tags else None,
            redrive_of=job.id, root=job.root or job.id, inherits=not fresh, actor=self.actor)
        stored = self._admitted(job, made)
        if not stored.created:
            key = f"{stored.id} is active under its unique key {job.unique_key!r}"
            raise TransitionRefused(f"Job {id} is not driven again: {key}. Wait for that one, or cancel it.")
        self.store.remark(id, attempt=None, event="redrive", actor=self.actor, reason=f"as {stored.id}" + (f": {reason}" if reason else ""))
        return stored

    def _anew(self, job: Job) -> NewJob:
        known = self.kinds.get(job.kind)
        if known is None:
            return foreign_job(self.store, job.kind, job.payload)
        arguments = known.signature.check(job.payload)
        return Call(known, arguments, known.signature.dump(arguments), Options()).job(self.store)

    def _admitted(self, job: Job, made: NewJob) -> Enqueued:
        known = self.kinds.get(job.kind)
        call = None if known is None else Call(known, known.signature.check(job.payload), made.payload, Options())
        return enqueue_job(self.store, made, call, transaction=self.transaction)

    def _look(self, id: str) -> tuple[Job, Lifecycle]:
        job = self.store.get(id)
        return job, self.store.lifecycle(job.lifecycle, job.lifecycle_version)

    def _take(self, lifecycle: Lifecycle, job: Job, event: Literal["cancel", "reject"], reason: str | None) -> bool:
        known = self.kinds.get(job.kind)
        foreign = None if known else self.store.kind(job.kind)
        policy = known.policy if known else Policy(key_until=foreign.key_until if foreign else ())
        take = decide_take(lifecycle, job, event, policy, actor=self.actor, reason=reason)
        state = take.arrow.target
        if foreign and state in foreign.hooks:
            raise TransitionRefused(
                f"Job {job.id} cannot go to {state} from here: {job.kind} runs a function of its own there, which this process does not have. "
                f"Do it where {job.kind} is declared: with its app, or with -A module:app.")
        if known and (body := known.taking(take)):
            return self.store.commit(take, body, transaction=self.transaction) is None
        return not self.store.take([take])


def decision_of(effect: Literal["happened", "did_not"] | None, receipt: Any) -> Decision | None:
    """What an operator says of an outside call in doubt, checked."""
    if effect not in (None, "happened", "did_not"):
        raise UsageError(f'effect is {effect!r}: give "happened" or "did_not", or leave it out where nothing is in doubt.')
    if receipt is not None and effect != "happened":
        raise UsageError('A receipt is given for a call that did not happen, or of which nothing is said: give effect="happened" with it.')
    return None if effect is None else Decision(effect == "happened", encode(receipt, what="receipt") if effect == "happened" else None)


def _ended(job: Job, lifecycle: Lifecycle) -> Job:
    if job.state in lifecycle.targets("cancel"):
        return job
    raise TransitionRefused(f"Job {job.id} has ended as {job.state}: there is nothing left to cancel.")
