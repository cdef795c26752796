"""The SQLite store: one file, one machine, one writer at a time. The clock it is given decides about leases."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from typing_extensions import override

from ...clock import Clock
from ...errors import InterlockError, NotMigrated
from ...job import AuditEntry, Job, Phase
from ...lifecycle import Lifecycle
from ...move import Move, Take
from ...records import Beat, Enqueued, Fence, KindFacts, Lease, Migrated, NewJob, Refusal, Renewal, Way
from ...store import Tx
from .. import borrowed
from ..again import COMMITS, again
from ..archive import digest_of
from ..codec import each_once
from ..commit import Refused, Run, committing
from ..ear import Ears
from ..enqueue import Dialect, Rows, Statement, enqueueing
from ..halve import halved
from ..inside import OpenTransaction, inside
from ..queryfile import load, schema_name
from ..registry import Registry
from ..tx import PlainTx
from . import enforce, rows
from .claims import Claims
from .dialect import SqliteDialect
from .file import File, runner
from .leases import Leases
from .library import Library, locate
from .moment import Moment
from .reading import Reading
from .receipts import Receipts
from .settle import Settle
from .wake import Wake
from .workers import Workers


class SqliteStore(Claims, Leases, Settle, Receipts, Wake, Workers, Reading):
    """Jobs in one SQLite file, in tables whose names begin with the schema's."""

    database = "sqlite"

    def __init__(self, path: str, library: Library, schema: str, clock: Clock) -> None:
        self.schema = schema_name(schema)
        self.clock = clock
        self.driver = library.name
        self.queries = load(__package__ or "", ("interlock_", f"{schema}_"))
        self.file = File(path, library)
        self.dialect: Dialect = SqliteDialect(self.queries, self.moment)
        self._checked = False
        self._instance: str | None = None
        self._aside = {}
        self._ears = Ears()
        self.registry = Registry(self._ask)

    @classmethod
    def at(cls, url: str, *, schema: str = "interlock", clock: Clock) -> Self:
        """The store that a URL names."""
        path, library = locate(url)
        return cls(path, library, schema, clock)

    @override
    def moment(self) -> Moment:
        return Moment(self.clock.now())

    @override
    def _reading(self) -> Run | None:
        return borrowed.reading(self)

    @property
    def journal(self) -> str:
        """How the file is kept whole: `wal`, or `truncate` where the library is not safe for that."""
        return self.file.journal

    # ------------------------------------------------------------ schema
    def migrate(self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts]) -> Migrated:
        with self.file.write() as conn:
            return enforce.migrate(runner(conn), self.queries, self.schema, lifecycles, kinds)

    def migration(self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts]) -> str:
        return enforce.as_text(self.queries, self.schema, lifecycles, kinds)

    def is_empty(self) -> bool:
        return self._found() is None

    def is_new(self) -> bool:
        return not self.file.exists() or self.file.read(lambda run: run(Statement(self.queries["instance.tables"], {}))[0][0]) == 0

    def _found(self) -> int | None:
        # A file that is not there is not made by looking.
        return self.file.read(lambda run: enforce.version_in(run, self.queries, self.schema)) if self.file.exists() else None

    @override
    def check(self) -> None:
        """Are the tables there, and of this code's version? Asked once."""
        if self._checked:
            return
        found = self._found()
        if found is None:
            raise NotMigrated(f"{self.file.path} has no Interlock tables {self.schema}_… yet; run: interlock migrate -A module:app")
        if found > enforce.VERSION:
            raise InterlockError(enforce.newer(self.schema, found))
        if found < enforce.VERSION:
            raise NotMigrated(f"the Interlock schema {self.schema!r} is of version {found}, older than this code; run: interlock migrate -A module:app")
        self._checked = True

    def instance(self) -> str:
        """The database's own name for itself: a caller's connection must know the same."""
        if self._instance is None:
            self.check()
            self._instance = str(self.file.read(lambda run: run(Statement(self.queries["instance"], {})))[0][0])
        return self._instance

    def whose(self) -> Generator[Statement, Rows, str | None]:
        found = yield Statement(self.queries["exists"], {"table": f"{self.schema}_schema_version"})
        if not found[0][0]:
            return None
        known = yield Statement(self.queries["instance"], {})
        return str(known[0][0])

    def joined(self) -> OpenTransaction | None:
        return borrowed.joined(self)

    # ------------------------------------------------------------ jobs come in
    def enqueue(self, jobs: Sequence[NewJob], *, conn: object | None = None, admit: Callable[[Any, NewJob], None] | None = None) -> list[Enqueued]:
        self.check()
        if conn is not None:
            self.file.check_place()
            return borrowed.enqueue(self, conn, jobs, admit)
        if not jobs:
            return []
        with self.file.lend() as own:
            return borrowed.drive(enqueueing(self.dialect, jobs, borrowed.admitting(self, admit, PlainTx(own, self.file.telling))), self.file.careful(own))

    async def aenqueue(self, jobs: Sequence[NewJob], *, conn: object, admit: Callable[[Any, NewJob], None] | None = None) -> list[Enqueued]:
        self.check()
        self.file.check_place()
        return await borrowed.aenqueue(self, conn, jobs, admit)

    # ------------------------------------------------------------ jobs are worked on
    def claim(self, by: str, ways: Sequence[Way], queues: Sequence[str], limit: int, *, suspects: int | None = None,
              alone: bool = True) -> list[Lease]:
        self.check()
        bound = limit if suspects is None else max(0, min(suspects, limit))
        return self._claim_due(by, ways, queues, limit, bound, alone=alone) if ways and queues and limit > 0 else []

    def move(self, moves: Sequence[Move]) -> list[Refusal]:
        self.check()
        each_once(moves)
        refusals: list[Refusal] = []
        culprits = halved(moves, lambda batch: refusals.extend(self._settle(batch)), self.file.library.is_unwell)
        return refusals + [self._unstorable(move, error) for move, error in culprits]

    def commit(
        self, move: Move | Take, body: Callable[[Any, Job], None], *, transaction: Callable[[], AbstractContextManager[Any]] | None = None,
        timeout: float = 60.0,
    ) -> Refusal | None:
        self.check()

        def once() -> None:
            if transaction is not None:
                self.file.check_place()
                borrowed.commit(self, transaction, move, body, timeout)
                self.file.check_place()
                return
            with self.file.lend() as conn:
                committing(self, self.file.careful(conn), move, body, PlainTx(conn, self.file.telling), timeout)

        try:
            again(once, self.file.library.asks_again, COMMITS)
        except Refused as refused:
            return refused.refusal
        return None

    def renew(self, beats: Sequence[Beat]) -> Renewal:
        self.check()
        return self._renew(beats)

    def strays(self, by: str, held: Sequence[Fence]) -> list[Fence]:
        self.check()
        return self._strays(by, held)

    def adopt(self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external: bool = False,
              committed: Sequence[str] | None = None) -> list[Lease]:
        self.check()
        query, past = "adopt_external" if external else "adopt", kinds if committed is None else committed
        return self._adopt(query, by, kinds, lease, limit, committed=past) if kinds and limit > 0 else []

    def recall(self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external_id: str | None = None) -> list[Lease]:
        self.check()
        query = "recall" if external_id is None else "recall_named"
        return self._adopt(query, by, kinds, lease, limit, external_id=external_id) if kinds and limit > 0 else []

    def take(self, takes: Sequence[Take]) -> list[Refusal]:
        self.check()
        each_once(takes)
        refusals: list[Refusal] = []
        culprits = halved(takes, lambda batch: refusals.extend(self._settle(batch)), self.file.library.is_unwell)
        return refusals + [self._unstorable(take, error) for take, error in culprits]

    def request_cancel(self, id: str, *, by: str, reason: str | None) -> bool:
        self.check()
        asked = {"id": id, "ids": rows.array([id]), "by": by, "reason": reason, "now": self.moment().text}
        with self.file.write() as conn:
            run = runner(conn)
            found = run(Statement(self.queries["request_cancel"], asked))
            if found and found[0][1]:
                run(Statement(self.queries["request_cancel.job"], asked, answers=False))
                run(Statement(self.queries["remark"], asked | {"attempt": found[0][0], "event": "cancel_requested", "actor": by}, answers=False))
        return bool(found)

    @override
    def remark(self, job_id: str, *, attempt: int | None, event: str, actor: str, reason: str | None) -> None:
        self.check()
        given = {"ids": rows.array([job_id]), "attempt": attempt, "event": event, "actor": actor, "reason": reason, "now": self.moment().text}
        with self.file.write() as conn:
            conn.execute(self.queries["remark"], given)

    # ------------------------------------------------------------ jobs go
    def prune(self, *, phase: Phase, age: float, limit: int, kinds: Sequence[str] | None = None) -> int:
        self.check()
        given = {"phase": phase, "before": self.moment().plus(-age), "limit": limit, "kinds": None if kinds is None else rows.array(kinds)}
        with self.file.write() as conn:
            return conn.execute(self.queries["prune"], given).rowcount

    def archive(self, *, age: float, write: Callable[[Sequence[AuditEntry]], None], limit: int) -> int:
        self.check()
        now = self.moment()
        with self.file.write() as conn:
            run = runner(conn)
            ids: list[str] = [row[0] for row in run(Statement(self.queries["archivable"], {"before": now.plus(-age), "limit": limit}))]
            if ids:
                histories = self._histories(run, ids)
                write([entry for id in ids for entry in histories[id]])
                marks = [{"job_id": id, "entries": len(entries), "digest": digest_of(entries), "now": now.text} for id, entries in histories.items()]
                conn.executemany(self.queries["archive"], marks)
                conn.executemany(self.queries["unaudit"], marks)
            return len(ids)

    # ------------------------------------------------------------ its own life
    @contextmanager
    def transaction(self) -> Generator[Tx]:
        self.check()
        with self.file.lend() as conn:
            tx = PlainTx(conn, self.file.telling)
            with inside(self, tx):
                yield tx

    def close(self) -> None:
        self._checked = False
        self._ears.close()
        self.file.close()
