"""Enqueue in SQLite's words."""

import json
from collections.abc import Callable, Mapping, Sequence

from ...records import NewJob
from ..enqueue import Statement
from . import rows
from .moment import Moment


class SqliteDialect:
    """The statements of an enqueue. `now` is read when a statement is built."""

    def __init__(self, queries: Mapping[str, str], moment: Callable[[], Moment]) -> None:
        self._queries = queries
        self._moment = moment

    def insert(self, jobs: Sequence[NewJob]) -> list[Statement]:
        now = self._moment()
        return [
            *(Statement(self._queries["enqueue"], {"jobs": batch, "now": now.text}, answers=False) for batch in rows.new_jobs(jobs, now)),
            Statement(self._queries["enqueue.audit"], {"actors": json.dumps({job.id: job.actor for job in jobs}, ensure_ascii=False)}, answers=False),
            Statement(self._queries["enqueue.stored"], {"ids": rows.array(job.id for job in jobs)}),
        ]

    def holders(self, jobs: Sequence[NewJob], tried: Sequence[bool]) -> Statement:
        del tried  # one writer: who kept a job out of the file still holds its key
        return Statement(self._queries["holders"], {"keys": rows.keys(jobs)})

    def hasten(self, ids: Sequence[str], resting: Sequence[str]) -> Statement:
        return Statement(self._queries["hasten"], {"ids": rows.array(ids), "resting": rows.array(resting), "now": self._moment().text}, answers=False)

    def inherit(self, redrives: Mapping[str, str]) -> Statement:
        return Statement(self._queries["inherit"], {"redrives": json.dumps(dict(redrives))}, answers=False)
