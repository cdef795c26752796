"""What an operator does to a job: cancel it, reject it. Each holds the job first, as everyone does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .declaration import Declaration
from .enqueue import Transaction
from .errors import TransitionRefused
from .job import Job
from .lifecycle import Lifecycle
from .move import Policy, decide_take
from .payload import clean
from .store import Store

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Operator:
    """Someone who carries jobs out, with what the process knows of their kinds."""

    store: Store
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
        if known and (hook := known.hooks.get(state)):
            return self.store.commit(take, hook, transaction=self.transaction) is None
        return not self.store.take([take])


def _ended(job: Job, lifecycle: Lifecycle) -> Job:
    if job.state in lifecycle.targets("cancel"):
        return job
    raise TransitionRefused(f"Job {job.id} has ended as {job.state}: there is nothing left to cancel.")
