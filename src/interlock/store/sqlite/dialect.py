"""The statements of an enqueue and of a redrive on SQLite."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..dependents import ACTOR
from ..enqueue_plan import Statement
from ..flow_types import Dependency, NewBatch
from ..types import NewJob
from . import rows
from .timestamps import Timestamp


class SqliteDialect:
    """The clock is read when a statement is built."""

    def __init__(self, queries: Mapping[str, str], timestamp: Callable[[], Timestamp]) -> None:
        self._queries = queries
        self._timestamp = timestamp

    def insert(self, jobs: Sequence[NewJob]) -> list[Statement]:
        now, plain = self._timestamp(), all(job.plain for job in jobs)
        query = self._queries["enqueue" if plain else "enqueue.flow"]
        return [
            *(
                Statement(query, {"jobs": batch, "now": now.text}, answers=False)
                for batch in rows.new_jobs(jobs, now, plain=plain)
            ),
            Statement(
                self._queries["enqueue.audit"],
                {"actors": json.dumps({job.id: job.actor for job in jobs}, ensure_ascii=False)},
                answers=False,
            ),
            *self._take_windows(jobs, now),
            Statement(self._queries["enqueue.stored"], {"ids": rows.array(job.id for job in jobs)}),
        ]

    def _take_windows(self, jobs: Sequence[NewJob], now: Timestamp) -> Iterator[Statement]:
        until = {job.id: now.plus(job.unique_for) for job in jobs if job.unique_key and job.unique_for is not None}
        if until:
            yield Statement(self._queries["enqueue.windows"], {"until": json.dumps(until)}, answers=False)
        repeating = [job.id for job in jobs if job.unique_key and job.redrive_of]
        if repeating:
            yield Statement(self._queries["enqueue.inherited_windows"], {"ids": rows.array(repeating)}, answers=False)

    def key_holders(self, jobs: Sequence[NewJob], tried: Sequence[bool]) -> Statement:
        del tried  # one writer: the job that has the key cannot have ended since the insert
        return Statement(self._queries["key_holders"], {"keys": rows.keys(jobs), "now": self._timestamp().text})

    def make_due(self, ids: Sequence[str], resting: Sequence[str]) -> Statement:
        return Statement(
            self._queries["make_due"],
            {"ids": rows.array(ids), "resting": rows.array(resting), "now": self._timestamp().text},
            answers=False,
        )

    def replaceable(self, ids: Sequence[str]) -> Statement:
        return Statement(self._queries["replaceable"], {"ids": rows.array(ids)})

    def replace(self, jobs: Mapping[str, NewJob]) -> list[Statement]:
        given = rows.replacements(jobs, self._timestamp())
        return [
            *(Statement(self._queries["replace"], each, answers=False) for each in given),
            *(Statement(self._queries["replace.audit"], each, answers=False) for each in given),
            Statement(self._queries["replace.stored"], {"ids": rows.array(jobs)}),
        ]

    def add_batches(self, batches: Sequence[NewBatch]) -> Statement:
        known = rows.array((batch.id, batch.parent, batch.name, batch.actor) for batch in batches)
        given = {"batches": known, "now": self._timestamp().text}
        return Statement(self._queries["batches.add"], given, answers=False)

    def add_dependencies(self, edges: Sequence[tuple[str, Dependency]], arrived: Sequence[str]) -> list[Statement]:
        known = rows.array((id, each.needs, each.is_batch, each.on_failed) for id, each in edges)
        given = {"edges": known, "arrived": rows.array(arrived), "now": self._timestamp().text}
        return [
            Statement(self._queries["dependencies.add"], given, answers=False),
            Statement(self._queries["dependencies.add_arrived"], given, answers=False),
            Statement(self._queries["dependencies.missing"], given),
        ]

    def copy_receipts(self, redrives: Mapping[str, str]) -> Statement:
        return Statement(self._queries["copy_receipts"], {"redrives": json.dumps(dict(redrives))}, answers=False)

    def lock_jobs(self, ids: Sequence[str]) -> Statement:
        del ids  # one writer: the whole file is locked
        return Statement(self._queries["lock.file"], {}, answers=False)

    def redrivable(self, ids: Sequence[str]) -> Statement:
        return Statement(self._queries["redrivable"], {"ids": rows.array(ids)})

    def dependencies_of(self, ids: Sequence[str]) -> Statement:
        return Statement(self._queries["dependencies.of"], {"ids": rows.array(ids)})

    def lock_dependents(self, ids: Sequence[str]) -> Statement:
        return self.lock_jobs(ids)

    def reopen(self, repeated: Mapping[str, str]) -> Statement:
        given = {"ids": rows.array(repeated), "repeated": json.dumps(dict(repeated)), "actor": ACTOR}
        return Statement(self._queries["reopen"], given)

    def block(self, ids: Sequence[str]) -> list[Statement]:
        given = {"ids": rows.array(ids), "actor": ACTOR, "now": self._timestamp().text}
        return [
            Statement(self._queries["reopen.block_audit"], given, answers=False),
            Statement(self._queries["reopen.block"], given, answers=False),
        ]

    def note_redrives(self, reasons: Mapping[str, str], actor: str) -> Statement:
        given = {
            "reasons": json.dumps(dict(reasons), ensure_ascii=False),
            "actor": actor,
            "now": self._timestamp().text,
        }
        return Statement(self._queries["note_redrives"], given, answers=False)
