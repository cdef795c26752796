"""The statements of an enqueue and of a redrive on PostgreSQL."""

from collections.abc import Mapping, Sequence

from ..codec import array, text_array
from ..dependents import ACTOR
from ..enqueue_plan import Statement, are_alike
from ..flow_types import Dependency, NewBatch
from ..types import NewJob
from . import columns


def _is_untimed(job: NewJob) -> bool:
    """Whether the job takes no window: neither its own nor that of a job that it repeats."""
    return job.unique_for is None and job.redrive_of is None


class PostgresDialect:
    def __init__(self, queries: Mapping[str, str]) -> None:
        self._queries = queries

    def insert(self, jobs: Sequence[NewJob]) -> list[Statement]:
        if len(jobs) == 1 and jobs[0].plain and (jobs[0].unique_key is None or _is_untimed(jobs[0])):
            query = "enqueue.one" if jobs[0].unique_key is None else "enqueue.unique"
            return [Statement(self._queries[query], columns.new_job(jobs[0]))]
        if are_alike(jobs):
            return [Statement(self._queries["enqueue.alike"], columns.alike_jobs(jobs))]
        return [Statement(self._queries["enqueue"], columns.new_jobs(jobs))]

    def key_holders(self, jobs: Sequence[NewJob], tried: Sequence[bool]) -> Statement:
        return Statement(self._queries["key_holders"], columns.keys(jobs, tried))

    def make_due(self, ids: Sequence[str], resting: Sequence[str]) -> Statement:
        return Statement(self._queries["make_due"], {"id": array(ids), "resting": text_array(resting)}, answers=False)

    def replaceable(self, ids: Sequence[str]) -> Statement:
        return Statement(self._queries["replaceable"], {"id": array(ids)})

    def replace(self, jobs: Mapping[str, NewJob]) -> list[Statement]:
        return [Statement(self._queries["replace"], columns.replacements(jobs))]

    def add_batches(self, batches: Sequence[NewBatch]) -> Statement:
        given = {
            "id": array(batch.id for batch in batches),
            "parent": array(batch.parent for batch in batches),
            "name": text_array(batch.name for batch in batches),
            "actor": text_array(batch.actor for batch in batches),
        }
        return Statement(self._queries["batches.add"], given, answers=False)

    def add_dependencies(self, edges: Sequence[tuple[str, Dependency]], arrived: Sequence[str]) -> list[Statement]:
        given = {
            "job_id": array(id for id, _ in edges),
            "needs": array(each.needs for _, each in edges),
            "is_batch": array(each.is_batch for _, each in edges),
            "on_failed": array(each.on_failed for _, each in edges),
            "arrived": array(arrived),
        }
        return [Statement(self._queries["dependencies.add"], given)]

    def copy_receipts(self, redrives: Mapping[str, str]) -> Statement:
        given = {"id": array(redrives), "redrive_of": array(redrives.values())}
        return Statement(self._queries["copy_receipts"], given, answers=False)

    def lock_jobs(self, ids: Sequence[str]) -> Statement:
        return Statement(self._queries["lock_jobs"], {"id": array(ids)})

    def redrivable(self, ids: Sequence[str]) -> Statement:
        return Statement(self._queries["redrivable"], {"ids": array(ids)})

    def dependencies_of(self, ids: Sequence[str]) -> Statement:
        return Statement(self._queries["dependencies.of"], {"ids": array(ids)})

    def lock_dependents(self, ids: Sequence[str]) -> Statement:
        return Statement(self._queries["reopen.lock"], {"ids": array(ids)})

    def reopen(self, repeated: Mapping[str, str]) -> Statement:
        given = {"ids": array(repeated), "new": array(repeated.values()), "actor": ACTOR}
        return Statement(self._queries["reopen"], given)

    def block(self, ids: Sequence[str]) -> list[Statement]:
        return [Statement(self._queries["reopen.block"], {"ids": array(ids), "actor": ACTOR}, answers=False)]

    def note_redrives(self, reasons: Mapping[str, str], actor: str) -> Statement:
        given = {"ids": array(reasons), "reasons": text_array(reasons.values()), "actor": actor}
        return Statement(self._queries["note_redrives"], given, answers=False)
