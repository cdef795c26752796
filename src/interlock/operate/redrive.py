"""Redrives jobs that ended without success: new jobs with the same payloads, one or many at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..core.job import Job
from ..core.payload import encode_tags
from ..engine.context import SettleContext
from ..errors import Unavailable
from ..jobs.enqueue import admission, foreign_job
from ..jobs.options import Options
from ..jobs.request import JobRequest, new_jobs
from ..store.bisect import bisect
from ..store.selection import Redriven
from ..store.types import KindFacts, NewJob


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """Options of a redrive."""

    reason: str | None = None
    fresh: bool = False
    """Whether the new jobs start without the receipts of the old ones."""
    again: bool = False
    """Whether to redrive jobs that were redriven before."""


REOPENED = "its failed dependencies were redriven"
Outcome = Redriven | Exception
"""What the store did with one job, or the error because of which it did nothing."""


def is_unavailable(error: Exception) -> bool:
    """Whether the database is unreachable, so that no other job can be changed either."""
    return isinstance(error, Unavailable)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A new job that redrives another one, with the request for it if the kind's `admit` function must see it."""

    redrive_of: str
    new: NewJob
    request: JobRequest[Any] | None


def redrive_jobs(context: SettleContext, jobs: Sequence[Job], options: RedriveOptions) -> list[Outcome]:
    """Redrive each of these jobs, with `context.owner` as the actor. One job's error does not stop the others.

    The jobs share a transaction, except those of kinds with an `admit` function, which may refuse a job. The results
    are in the order of the jobs. Jobs that were cancelled because these jobs failed are redriven, too, and wait for
    the new jobs.
    """
    redrives = _Redrives(context, options)
    outcomes = redrives.redrive(jobs)
    redrives.reopen()
    return outcomes


class _Redrives:
    def __init__(self, context: SettleContext, options: RedriveOptions) -> None:
        self._context = context
        self._options = options
        self._facts: dict[str, KindFacts | None] = {}
        self._outcomes: dict[str, Outcome] = {}

    def redrive(self, jobs: Sequence[Job]) -> list[Outcome]:
        together, alone = list[_Prepared](), list[_Prepared]()
        for job in jobs:
            try:
                prepared = self._prepare(job)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - an error of the user's code that checks the payload
                self._outcomes[job.id] = error
            else:
                (together if prepared.request is None else alone).append(prepared)
        for batch in (together, *([prepared] for prepared in alone)):
            for prepared, refusal in bisect(batch, self._store, is_unavailable):
                self._outcomes[prepared.redrive_of] = refusal
        return [self._outcomes[job.id] for job in jobs]

    def _prepare(self, job: Job) -> _Prepared:
        """Build the new job. The current code of the kind checks its payload."""
        store, known = self._context.store, self._context.kinds.get(job.kind)
        request: JobRequest[Any] | None = None
        if known is None:
            if job.kind not in self._facts:
                self._facts[job.kind] = store.registry.kind(job.kind)
            new = foreign_job(store, job.kind, job.payload, self._facts[job.kind])
        else:
            arguments = known.signature.check(job.payload)
            request = JobRequest(known, arguments, known.signature.dump(arguments), Options())
            (new,) = new_jobs(store, [request])
        new = replace(
            new,
            queue=job.queue,
            priority=job.priority,
            unique_key=job.unique_key,
            concurrency_key=job.concurrency_key,
            batch=job.batch,
            tags=encode_tags(job.tags) if job.tags else None,
            redrive_of=job.id,
            root=job.root or job.id,
            inherits=not self._options.fresh,
            actor=self._context.owner,
        )
        return _Prepared(job.id, new, request if request is not None and request.spec.admit else None)

    def _store(self, batch: Sequence[_Prepared]) -> None:
        """Store the new jobs in one transaction. With `admit`, there is one job, and the app opens the transaction."""
        context, options = self._context, self._options
        new = [prepared.new for prepared in batch]
        redrive = partial(context.store.bulk.redrive, new, again=options.again, reason=options.reason)
        request = batch[0].request
        admit = None if request is None else admission([request], new)
        if admit is None or context.transaction is None:
            answers = redrive(admit=admit)
        else:
            with context.transaction() as handle:
                answers = redrive(conn=handle, admit=admit)
        self._outcomes |= {answer.redrive_of: answer for answer in answers}

    def reopen(self) -> None:
        """Redrive the jobs that the failures had cancelled, once all that they wait for has been redriven."""
        stored = [each for each in self._outcomes.values() if isinstance(each, Redriven) and each.result == "stored"]
        new = [each.id for each in stored if each.awaited and each.id is not None]
        jobs = self._context.store.flow.reopenable(new) if new else []
        if jobs:
            redrive_jobs(self._context, jobs, replace(self._options, reason=REOPENED, again=False))
