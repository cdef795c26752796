"""The statements of an enqueue on PostgreSQL."""

from collections.abc import Mapping, Sequence

from ..codec import array, text_array
from ..enqueue_plan import Statement, are_alike
from ..types import NewJob
from . import columns


class PostgresDialect:
    def __init__(self, queries: Mapping[str, str]) -> None:
        self._queries = queries

    def insert(self, jobs: Sequence[NewJob]) -> list[Statement]:
        if len(jobs) == 1:
            return [Statement(self._queries["enqueue.one"], columns.new_job(jobs[0]))]
        if are_alike(jobs):
            return [Statement(self._queries["enqueue.alike"], columns.alike_jobs(jobs))]
        return [Statement(self._queries["enqueue"], columns.new_jobs(jobs))]

    def key_holders(self, jobs: Sequence[NewJob], tried: Sequence[bool]) -> Statement:
        return Statement(self._queries["key_holders"], columns.keys(jobs, tried))

    def make_due(self, ids: Sequence[str], resting: Sequence[str]) -> Statement:
        return Statement(self._queries["make_due"], {"id": array(ids), "resting": text_array(resting)}, answers=False)

    def copy_receipts(self, redrives: Mapping[str, str]) -> Statement:
        given = {"id": array(redrives), "redrive_of": array(redrives.values())}
        return Statement(self._queries["copy_receipts"], given, answers=False)
