"""The statements of an enqueue on SQLite."""

import json
from collections.abc import Callable, Mapping, Sequence

from ..enqueue_plan import Statement
from ..types import NewJob
from . import rows
from .timestamps import Timestamp


class SqliteDialect:
    """The clock is read when a statement is built."""

    def __init__(self, queries: Mapping[str, str], timestamp: Callable[[], Timestamp]) -> None:
        self._queries = queries
        self._timestamp = timestamp

    def insert(self, jobs: Sequence[NewJob]) -> list[Statement]:
        now = self._timestamp()
        return [
            *(
                Statement(self._queries["enqueue"], {"jobs": batch, "now": now.text}, answers=False)
                for batch in rows.new_jobs(jobs, now)
            ),
            Statement(
                self._queries["enqueue.audit"],
                {"actors": json.dumps({job.id: job.actor for job in jobs}, ensure_ascii=False)},
                answers=False,
            ),
            Statement(self._queries["enqueue.stored"], {"ids": rows.array(job.id for job in jobs)}),
        ]

    def key_holders(self, jobs: Sequence[NewJob], tried: Sequence[bool]) -> Statement:
        del tried  # one writer: the job that has the key cannot have ended since the insert
        return Statement(self._queries["key_holders"], {"keys": rows.keys(jobs)})

    def make_due(self, ids: Sequence[str], resting: Sequence[str]) -> Statement:
        return Statement(
            self._queries["make_due"],
            {"ids": rows.array(ids), "resting": rows.array(resting), "now": self._timestamp().text},
            answers=False,
        )

    def copy_receipts(self, redrives: Mapping[str, str]) -> Statement:
        return Statement(self._queries["copy_receipts"], {"redrives": json.dumps(dict(redrives))}, answers=False)
