"""The PostgreSQL store: it carries out what it is told, and PostgreSQL's own clock decides about leases."""

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
from typing_extensions import override

from ...errors import InterlockError, NotMigrated, Unavailable
from ...job import AuditEntry, Job, Phase
from ...lifecycle import Lifecycle
from ...move import Move, Take
from ...records import Beat, Enqueued, Fence, KindFacts, Lease, Migrated, NewJob, Refusal, Renewal, Way
from ...store import Tx
from .. import borrowed
from ..again import COMMITS, again
from ..archive import digest_of
from ..codec import JOB_WIDTH, array, each_once, is_id, lease, text_array
from ..commit import Refused, committing, too_long
from ..ear import Ears
from ..enqueue import Dialect, Rows, Statement, enqueueing
from ..halve import halved
from ..inside import OpenTransaction, inside
from ..queryfile import load, schema_name
from ..registry import Registry
from ..tx import PlainTx
from . import columns, enforce
from .pool import Pool, Run, asks_again, is_unwell, overslept, runner
from .reading import Reading
from .receipts import Receipts
from .settle import Settle, as_is
from .wake import Wake
from .workers import Workers

_ASIDE = 60.0
_log = logging.getLogger("interlock")


class PostgresDialect:
    """Enqueue in PostgreSQL's words."""

    def __init__(self, queries: dict[str, str]) -> None:
        self._queries = queries

    def insert(self, jobs: Sequence[NewJob]) -> list[Statement]:
        return [Statement(self._queries["enqueue"], columns.new_jobs(jobs))]

    def holders(self, jobs: Sequence[NewJob], tried: Sequence[bool]) -> Statement:
        return Statement(self._queries["holders"], columns.keys(jobs, tried))

    def hasten(self, ids: Sequence[str], resting: Sequence[str]) -> Statement:
        return Statement(self._queries["hasten"], {"id": array(ids), "resting": text_array(resting)}, answers=False)

    def inherit(self, redrives: Mapping[str, str]) -> Statement:
        return Statement(self._queries["inherit"], {"id": array(redrives), "redrive_of": array(redrives.values())}, answers=False)


class PostgresStore(Settle, Receipts, Wake, Workers, Reading):
    """Jobs in one schema of a PostgreSQL database."""

    driver = "psycopg"
    database = "postgresql"

    def __init__(self, url: str, *, schema: str = "interlock") -> None:
        self.schema = schema_name(schema)
        self.queries = load("interlock.stores.postgres", ("interlock.", f"{schema}."))
        self.pool = Pool(url)
        # Users' code may keep a connection for long, so it gets its own pool and cannot starve a worker.
        self.users = Pool(url)
        self.renewing = Pool(url, size=1)
        self.dialect: Dialect = PostgresDialect(self.queries)
        self._checked = False
        self._instance: str | None = None
        self._aside: dict[str, float] = {}
        self._ears = Ears()
        self.registry = Registry(self._ask)

    # ------------------------------------------------------------ schema
    def migrate(self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts]) -> Migrated:
        return self.pool.transact(lambda conn: enforce.migrate(conn, self.queries, self.schema, lifecycles, kinds))

    def migration(self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts]) -> str:
        return enforce.as_text(self.queries, self.schema, lifecycles, kinds)

    def is_empty(self) -> bool:
        return self.pool.transact(lambda conn: enforce.version_in(conn, self.schema)) is None

    def is_new(self) -> bool:
        return False

    @override
    def check(self) -> None:
        """Is the schema there, and of this code's version? Asked once."""
        if self._checked:
            return
        found = self.pool.transact(lambda conn: enforce.version_in(conn, self.schema))
        if found is None:
            raise NotMigrated(f"the database has no Interlock schema {self.schema!r} yet; run: interlock migrate -A module:app")
        if found > enforce.VERSION:
            raise InterlockError(enforce.newer(self.schema, found))
        if found < enforce.VERSION:
            raise NotMigrated(f"the Interlock schema {self.schema!r} is of version {found}, older than this code; run: interlock migrate -A module:app")
        self._checked = True
        self.instance()

    def instance(self) -> str:
        """The database's own name for itself: a caller's connection must know the same."""
        if self._instance is None:
            self.check()
            self._instance = str(self.pool.transact(lambda conn: runner(conn)(Statement(self.queries["instance"], {})))[0][0])
        return self._instance

    def whose(self) -> Generator[Statement, Rows, str | None]:
        found = yield Statement(self.queries["exists"], {"table": f"{self.schema}.schema_version"})
        if not found[0][0]:
            return None
        rows = yield Statement(self.queries["instance"], {})
        return str(rows[0][0])

    def joined(self) -> OpenTransaction | None:
        return borrowed.joined(self)

    @override
    def _reading(self) -> Run | None:
        return borrowed.reading(self)

    # ------------------------------------------------------------ jobs come in
    def enqueue(self, jobs: Sequence[NewJob], *, conn: object | None = None, admit: Callable[[Any, NewJob], None] | None = None) -> list[Enqueued]:
        self.check()
        if conn is not None:
            return borrowed.enqueue(self, conn, jobs, admit)

        def work(own: psycopg.Connection[Any]) -> list[Enqueued]:
            run, tx = runner(own), PlainTx(own)
            return borrowed.drive(enqueueing(self.dialect, jobs, borrowed.admitting(self, admit, tx)), run)

        return (self.users if admit else self.pool).transact(work)

    async def aenqueue(self, jobs: Sequence[NewJob], *, conn: object, admit: Callable[[Any, NewJob], None] | None = None) -> list[Enqueued]:
        return await borrowed.aenqueue(self, conn, jobs, admit)

    # ------------------------------------------------------------ jobs are worked on
    def claim(self, by: str, ways: Sequence[Way], queues: Sequence[str], limit: int, *, suspects: int | None = None,
              alone: bool = True) -> list[Lease]:
        self.check()
        if not ways or not queues or limit < 1:
            return []
        bound = limit if suspects is None else max(0, min(suspects, limit))
        given = columns.ways(ways) | {"queues": text_array(sorted(set(queues))), "limit": limit, "suspects": bound, "alone": alone, "by": by, "only": None}
        given["silent"] = any(not way.path for way in ways)
        try:
            return self._claim(given, by)
        except psycopg.Error as error:
            if is_unwell(error):
                raise
        picked = [row[0] for row in self._steadily("pick", given | {"aside": self._set_aside()})]
        leases: list[Lease] = []
        for id, culprit in halved(picked, lambda ids: leases.extend(self._claim(given | {"only": array(ids)}, by)), is_unwell):
            self._put_aside(id, culprit)
        return leases

    def _claim(self, given: dict[str, Any], by: str) -> list[Lease]:
        limits = Statement(self.queries["limits"], {"kinds": given["kinds"], "queues": given["queues"]})
        claim = Statement(self.queries["claim"], given | {"aside": self._set_aside()})
        if given["silent"]:
            rows = self.pool.transact(lambda conn: self._claim_remarking(runner(conn), limits, claim))
        else:
            rows = self.pool.steadily(self.queries["steady"], limits, claim)[1]
        return [lease(row, as_is, holder=1, status=row[JOB_WIDTH], owner=by, seconds=row[JOB_WIDTH + 1]) for row in rows]

    def _claim_remarking(self, run: Run, limits: Statement, claim: Statement) -> Rows:
        """A claim in which some jobs make no transition; a remark records it."""
        run(Statement(self.queries["steady"], {}))
        run(limits)
        rows = run(claim)
        if silent := [row[0] for row in rows if row[-2] == 0]:
            run(Statement(self.queries["claim.remark"], {"id": array(silent)}, answers=False))
        return rows

    @override
    def _set_aside(self) -> str:
        now = time.monotonic()
        self._aside = {id: until for id, until in list(self._aside.items()) if until > now}
        return array(self._aside)

    def _put_aside(self, id: str, error: BaseException) -> None:
        """A row that spoils its batch must not stop the others."""
        self._aside[id] = time.monotonic() + _ASIDE
        _log.error("job %s cannot be claimed and is set aside for %d s: %s", id, _ASIDE, error)
        try:
            self.remark(id, attempt=None, event="set_aside", actor="store", reason=str(error))
        except (psycopg.Error, Unavailable):
            _log.exception("job %s: that it is set aside could not be remarked", id)

    def move(self, moves: Sequence[Move]) -> list[Refusal]:
        self.check()
        each_once(moves)
        refusals: list[Refusal] = []
        ordered = sorted(moves, key=lambda m: (m.job_id, m.attempt))
        culprits = halved(ordered, lambda batch: refusals.extend(self._move(batch)), is_unwell)
        return refusals + [self._unstorable(move, error) for move, error in culprits]

    def commit(self, move: Move | Take, body: Callable[[Any, Job], None], *,
               transaction: Callable[[], AbstractContextManager[Any]] | None = None, timeout: float = 60.0) -> Refusal | None:
        self.check()

        def once() -> None:
            if transaction is not None:
                borrowed.commit(self, transaction, move, body, timeout)
                return
            with self.pool.begin() as conn:
                run = runner(conn)
                # No time at all would mean for ever, and the server counts no further than some weeks.
                run(Statement(self.queries["guarded"], {"idle": f"{max(round(min(timeout, 2e6) * 1000), 1)}ms"}))
                committing(self, run, move, body, PlainTx(conn), timeout)

        try:
            again(once, asks_again, COMMITS)
        except Refused as refused:
            return refused.refusal
        except Unavailable as error:
            if overslept(error):
                raise too_long(move, timeout) from error
            raise
        return None

    def renew(self, beats: Sequence[Beat]) -> Renewal:
        self.check()
        renewal = Renewal()
        ordered = sorted(beats, key=lambda b: (b.fence.job_id, b.fence.attempt))
        rows = self._renewing("renew", columns.beats(ordered)) if ordered else ()
        kept = {int(row[0]) - 1: bool(row[2]) for row in rows}
        renewal.renewed = [ordered[n].fence for n in sorted(kept)]
        renewal.cancels = [ordered[n].fence for n in sorted(kept) if kept[n]]
        skipped = [n for n in range(len(ordered)) if n not in kept]
        if skipped:
            asked = columns.fences([ordered[n].fence for n in skipped]) | {"ord": array(skipped)}
            for n, ours in self._renewing("unrenewed", asked):
                (renewal.busy if ours else renewal.lost).append(ordered[int(n)].fence)
        return renewal

    def _renewing(self, query: str, params: dict[str, Any]) -> Rows:
        return self.renewing.steadily(self.queries["steady"], Statement(self.queries[query], params))[0]

    def strays(self, by: str, held: Sequence[Fence]) -> list[Fence]:
        self.check()
        return [Fence(*row) for row in self._steadily("strays", {"by": by, "job_id": array(fence.job_id for fence in held)})]

    def adopt(self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external: bool = False,
              committed: Sequence[str] | None = None) -> list[Lease]:
        self.check()
        if not kinds or limit < 1:
            return []
        if external:
            return self._adopt("adopt_external", by, kinds, lease, limit)
        return self._adopt("adopt", by, kinds, lease, limit, committed=columns.names(kinds if committed is None else committed))

    def recall(self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external_id: str | None = None) -> list[Lease]:
        self.check()
        if not kinds or limit < 1:
            return []
        if external_id is None:
            return self._adopt("recall", by, kinds, lease, limit)
        return self._adopt("recall_named", by, kinds, lease, limit, external_id=external_id)

    def take(self, takes: Sequence[Take]) -> list[Refusal]:
        self.check()
        each_once(takes)
        refusals: list[Refusal] = []
        culprits = halved(sorted(takes, key=lambda t: t.job_id), lambda batch: refusals.extend(self._take(batch)), is_unwell)
        return refusals + [self._unstorable(take, error) for take, error in culprits]

    def request_cancel(self, id: str, *, by: str, reason: str | None) -> bool:
        self.check()
        given = {"id": id, "by": by, "reason": reason}
        return is_id(id) and bool(self._remarking("lock_live", [id], "request_cancel", given)[0][0])

    def remark(self, job_id: str, *, attempt: int | None, event: str, actor: str, reason: str | None) -> None:
        self.check()
        if is_id(job_id):
            given = {"id": job_id, "attempt": attempt, "event": event, "actor": actor, "reason": reason}
            self._remarking("lock_jobs", [job_id], "remark", given, answers=False)

    # ------------------------------------------------------------ jobs go
    def prune(self, *, phase: Phase, age: float, limit: int, kinds: Sequence[str] | None = None) -> int:
        self.check()
        given = {"phase": phase, "age": age, "limit": limit, "kinds": None if kinds is None else text_array(kinds)}
        return self.pool.transact(lambda conn: self._count(conn, "prune", given))

    def archive(self, *, age: float, write: Callable[[Sequence[AuditEntry]], None], limit: int) -> int:
        self.check()

        def work(conn: psycopg.Connection[Any]) -> int:
            run: Run = runner(conn)
            run(Statement(self.queries["archiving"], {}, answers=False))
            ids = [str(row[0]) for row in run(Statement(self.queries["archivable"], {"age": age, "limit": limit}))]
            if not ids:
                return 0
            histories = self._histories(run, ids)
            write([entry for history in histories.values() for entry in history])
            run(Statement(self.queries["archive"], {
                "job_id": array(ids), "entries": array(len(h) for h in histories.values()), "digest": text_array(digest_of(h) for h in histories.values())}))
            return self._count(conn, "unaudit", {"job_id": array(ids)}) and len(ids)

        return self.pool.transact(work)

    # ------------------------------------------------------------ its own life
    @contextmanager
    def transaction(self) -> Generator[Tx]:
        self.check()
        with self.users.begin() as conn:
            tx = PlainTx(conn)
            with inside(self, tx):
                yield tx

    def close(self) -> None:
        self._checked = False
        self._ears.close()
        for pool in (self.pool, self.users, self.renewing):
            pool.close()
