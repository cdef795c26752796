"""Settles waiting jobs that an operator or the maintenance loop cancels, rejects or expires."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.decide import decide_take
from ..core.job import Job
from ..core.transition import Policy, Take
from ..errors import InterlockError, TransitionRefused, Unavailable
from ..jobs.spec import KindSpec
from ..store.types import KindFacts
from .context import SettleContext
from .settle import Body, commit
from .settle_events import report_hook_failure, report_take

WaitingEvent = Literal["cancel", "reject", "expire"]


@dataclass(slots=True)
class WaitingResult:
    """The result for one waiting job. If there is no error and `stored` is False, another process moved the job."""

    job: Job
    stored: bool = False
    error: Exception | None = None
    hook_of: str | None = None
    """The state whose hook raised the error."""


class WaitingSettler:
    """Ends waiting jobs and runs the hooks of their kinds. It does not retry: the operator or the next round does."""

    def __init__(self, context: SettleContext, actor: str) -> None:
        self._context = context
        self._actor = actor
        self._foreign: dict[str, KindFacts | None] = {}
        """The facts about kinds that this process does not declare, each read once."""

    def settle(self, job: Job, event: WaitingEvent, reason: str | None) -> bool:
        """End one waiting job. Returns False if another process has moved it since it was read.

        Raises `TransitionRefused` if the lifecycle does not allow the event, and any error of a hook. The job is then
        unchanged.
        """
        take = self._decide(job, event, reason)
        body, spec = self._body(take)
        if body is not None and spec is not None:
            return self._commit(job, take, body, spec)
        if self._context.store.transitions.take([take]):
            return False
        report_take(self._context, job, take)
        return True

    def settle_all(self, jobs: Sequence[Job], event: WaitingEvent, reason: str | None) -> list[WaitingResult]:
        """End many waiting jobs. Jobs without hooks share one statement; one job's error does not stop the others."""
        results, batch = list[WaitingResult](), list[tuple[WaitingResult, Take]]()
        for job in jobs:
            result = WaitingResult(job)
            results.append(result)
            try:
                take = self._decide(job, event, reason)
            except Unavailable:
                raise
            except InterlockError as error:
                result.error = error
                continue
            body, spec = self._body(take)
            if body is None or spec is None:
                batch.append((result, take))
            else:
                self._settle_with_hooks(result, take, body, spec)
        self._settle_batch(batch)
        return results

    def _settle_with_hooks(self, result: WaitingResult, take: Take, body: Body, spec: KindSpec) -> None:
        try:
            result.stored = self._commit(result.job, take, body, spec)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - an error of the user's hook
            result.error, result.hook_of = error, take.arrow.target

    def _settle_batch(self, batch: Sequence[tuple[WaitingResult, Take]]) -> None:
        if not batch:
            return
        refusals = {
            refusal.job_id: refusal for refusal in self._context.store.transitions.take([take for _, take in batch])
        }
        for result, take in batch:
            refusal = refusals.get(take.job_id)
            if refusal is None:
                result.stored = True
                report_take(self._context, result.job, take)
            elif refusal.error is not None:
                result.error = InterlockError(refusal.error)

    def _commit(self, job: Job, take: Take, body: Body, spec: KindSpec) -> bool:
        try:
            refusal = commit(self._context, take, body, spec, retry=False)
        except Unavailable:
            raise
        except Exception as error:
            report_hook_failure(self._context, job, take.arrow.target, error)
            raise
        if refusal is None:
            report_take(self._context, job, take)
        return refusal is None

    def _body(self, take: Take) -> tuple[Body | None, KindSpec | None]:
        spec = self._context.kinds.get(take.kind)
        return (None if spec is None else spec.take_body(take)), spec

    def _decide(self, job: Job, event: WaitingEvent, reason: str | None) -> Take:
        """Return the transition. If this process does not declare the kind, read the kind from the database."""
        store, spec = self._context.store, self._context.kinds.get(job.kind)
        lifecycle = store.registry.lifecycle(job.lifecycle, job.lifecycle_version)
        if spec is None and job.kind not in self._foreign:
            self._foreign[job.kind] = store.registry.kind(job.kind)
        foreign = self._foreign.get(job.kind)
        policy = spec.policy if spec else Policy(key_until=foreign.key_until if foreign else ())
        take = decide_take(lifecycle, job, event, policy, actor=self._actor, reason=reason)
        state = take.arrow.target
        if foreign and state in foreign.hooks:
            raise TransitionRefused(
                f"Job {job.id} cannot enter {state} from this process: {job.kind} has a hook on {state}, which must "
                f"run. Use the app that declares {job.kind}, or pass -A module:app."
            )
        return take
