"""An operator's commands on one job: cancel, reject, release, redrive and delete."""

from dataclasses import dataclass
from typing import Any, Literal

from ..core.job import Job
from ..core.lifecycle import Lifecycle
from ..core.payload import clean, encode
from ..engine.context import SettleContext
from ..engine.settle_waiting import WaitingSettler
from ..errors import NotFound, TransitionRefused, UsageError
from ..store import OpenStore
from ..store.types import Decision, Enqueued
from .redrive import RedriveOptions, redrive_jobs

ROUNDS = 3


def operator_name(by: str) -> str:
    """The actor in the audit for a person or program that operates on jobs."""
    return clean(f"operator:{by}", 255)


@dataclass(frozen=True, slots=True)
class Operator:
    """Operates on jobs in the name of `context.owner`, with the kinds that this process declares."""

    context: SettleContext

    @property
    def store(self) -> OpenStore:
        return self.context.store

    @property
    def actor(self) -> str:
        return self.context.owner

    def cancel(self, id: str, reason: str | None) -> Job:
        """End a waiting job, or ask a running one to stop. `TransitionRefused` if neither is possible.

        The job may start or stop running between the read and the write, so both are tried up to three times.
        """
        for _ in range(ROUNDS):
            job = self.store.inspect.get(id)
            lifecycle = self.store.registry.lifecycle(job.lifecycle, job.lifecycle_version)
            if job.ended:
                return _check_cancelled(job, lifecycle)
            if job.phase == "pending":
                if self._settle(job, "cancel", reason):
                    return self.store.inspect.get(id)
            elif not lifecycle.targets("cancel"):
                raise TransitionRefused(
                    f"Job {id} is running in {job.state}, and its lifecycle {lifecycle.name} has no `cancel` "
                    "transition. Wait until it ends."
                )
            elif self.store.control.request_cancel(id, by=self.actor, reason=reason):
                return self.store.inspect.get(id)
        raise TransitionRefused(
            f"Job {id} was not cancelled: it has passed its commit, or workers keep moving it. "
            "Check its state and cancel again if it still runs."
        )

    def reject(self, id: str, reason: str) -> Job:
        """Reject a waiting job. `TransitionRefused` if it is not waiting or its lifecycle does not allow it."""
        for _ in range(ROUNDS):
            if self._settle(self.store.inspect.get(id), "reject", reason):
                return self.store.inspect.get(id)
        raise TransitionRefused(
            f"Job {id} was not rejected: workers keep moving it. Check its state and reject again if it still waits."
        )

    def _settle(self, job: Job, event: Literal["cancel", "reject"], reason: str | None) -> bool:
        return WaitingSettler(self.context, self.actor).settle(job, event, reason)

    def release(self, id: str, reason: str, decision: Decision | None) -> Job:
        """End a job's hold; `TransitionRefused` if it is not held."""
        if not self.store.control.release(id, by=self.actor, reason=reason, decision=decision):
            job = self.store.inspect.get(id)
            raise TransitionRefused(
                f"Job {id} is not held, so it cannot be released: it is {job.phase} in {job.state}."
            )
        return self.store.inspect.get(id)

    def redrive(self, id: str, reason: str | None, *, fresh: bool) -> Enqueued:
        """Enqueue a failed job again as a new job, with the same payload and, unless `fresh`, its receipts."""
        job = self.store.inspect.get(id)
        if job.phase != "failed":
            raise TransitionRefused(
                f"Job {id} is {job.phase} in {job.state}. Only a job that ended without success can be redriven."
            )
        (redriven,) = redrive_jobs(self.context, [job], RedriveOptions(reason, fresh=fresh, again=True))
        if isinstance(redriven, Exception):
            raise redriven
        if redriven.id is None:
            raise NotFound(f"Job {id} was not redriven: it was deleted in the meantime.")
        if redriven.result != "stored":
            raise TransitionRefused(
                f"Job {id} was not redriven: {redriven.id} is active under the same unique key {job.unique_key!r}. "
                "Wait for that job or cancel it."
            )
        return Enqueued(redriven.id, created=True)

    def delete(self, id: str, reason: str | None) -> Job:
        """Delete a job that has ended, and return it as it was. `TransitionRefused` if it has not ended."""
        job = self.store.inspect.get(id)
        if not self.store.bulk.delete([id], by=self.actor, reason=reason):
            if job.ended:
                raise TransitionRefused(f"Job {id} was not deleted: another job still waits for it or its batch.")
            raise TransitionRefused(
                f"Job {id} is {job.phase} in {job.state}. Only a job that has ended can be deleted."
            )
        return job


def decision_of(effect: Literal["happened", "did_not"] | None, receipt: Any) -> Decision | None:
    """Check an operator's decision about an effect in doubt, and return it."""
    if effect not in (None, "happened", "did_not"):
        raise UsageError(
            f'effect is {effect!r}. Pass "happened" or "did_not", or leave it out if no effect is in doubt.'
        )
    if receipt is not None and effect != "happened":
        raise UsageError('A receipt is only for an effect that happened. Pass effect="happened" with it.')
    return (
        None
        if effect is None
        else Decision(effect == "happened", encode(receipt, what="receipt") if effect == "happened" else None)
    )


def _check_cancelled(job: Job, lifecycle: Lifecycle) -> Job:
    if job.state in lifecycle.targets("cancel"):
        return job
    raise TransitionRefused(f"Job {job.id} has already ended in {job.state}, so it cannot be cancelled.")
