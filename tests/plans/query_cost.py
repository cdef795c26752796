"""Measures a query: pages read by PostgreSQL, steps of SQLite's virtual machine, and full table scans."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from interlock.store.postgres.store import PostgresStore
from interlock.store.sqlite.store import SqliteStore

TABLES = ("jobs", "executions", "audit")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class PostgresMeter:
    """Explains each statement of the verb before it runs, with the generic plan under the store's settings, and rolls
    back.
    """

    def __init__(self, store: PostgresStore) -> None:
        self._store, self._transitions = store, store.transitions
        self.transitions = self
        self._db = psycopg.connect(store.session.pool.url, autocommit=True)

    def cost(self, verb: Callable[[], Any]) -> int:
        """Return the number of pages read, from memory or from disk."""
        return sum(_pages(plan) + sum(_pages(part) for part in _written_apart(plan)) for plan in self._plans(verb))

    def walk(self, verb: Callable[[], Any]) -> int:
        """Return the pages read until the rows to write are known and locked."""
        return sum(
            _pages(part)
            for plan in self._plans(verb)
            for part in _nodes(plan)
            if part.get("Subplan Name") == "CTE chosen"
        )

    def scans(self, verb: Callable[[], Any]) -> list[str]:
        """Return the tables that are scanned completely."""
        nodes = [node for plan in self._plans(verb) for node in _nodes(plan)]
        return [
            node["Relation Name"]
            for node in nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in TABLES
        ]

    def whole(self, verb: Callable[[], Any]) -> list[str]:
        """Return the tables that are scanned completely, directly or through an index on all rows."""
        return self._read_whole(self._plans(verb))

    def whole_of(self, statement: str) -> list[str]:
        """Return the tables that the generic plan of this statement scans completely."""
        session = self._store.session
        names = list(dict.fromkeys(_PARAMETER.findall(session.queries[statement])))
        with self._db.transaction(force_rollback=True):
            self._db.execute(session.fixed_plans.replace(":local", "true"))
            self._db.execute(f"PREPARE asked AS {_numbered(session.queries[statement], names)}")
            explained = self._db.execute(f"EXPLAIN (FORMAT JSON) EXECUTE asked ({', '.join(['NULL'] * len(names))})")
            (found,) = explained.fetchone() or ()
            self._db.execute("DEALLOCATE asked")
        return self._read_whole([found[0]["Plan"]])

    def _read_whole(self, plans: list[dict[str, Any]]) -> list[str]:
        nodes = [node for plan in plans for node in _nodes(plan) if node.get("Relation Name") in TABLES]
        full = {
            name
            for (name,) in self._db.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE indpred IS NULL")
        }
        return [
            node["Relation Name"]
            for node in nodes
            if not node.get("Index Cond")
            and (node["Node Type"] == "Seq Scan" or f"{self._store.session.schema}.{node.get('Index Name')}" in full)
        ]

    def close(self) -> None:
        self._db.close()

    def _plans(self, verb: Callable[[], Any]) -> list[dict[str, Any]]:
        plans: list[dict[str, Any]] = []
        pools = self._store.session.fixed, self._store.session.renewing

        def explaining(with_fixed_plans: Callable[..., Any]) -> Callable[..., Any]:
            def explained(steady: str, *statements: Any) -> Any:
                plans.extend(self._explain(steady, statement) for statement in statements)
                return with_fixed_plans(steady, *statements)

            return explained

        for pool in pools:
            pool.with_fixed_plans = explaining(pool.with_fixed_plans)  # type: ignore[method-assign]
        try:
            verb()
        finally:
            for pool in pools:
                del pool.with_fixed_plans
        assert plans, "the verb ran no statement that we could see"
        return plans

    def _explain(self, steady: str, statement: Any) -> dict[str, Any]:
        names = list(dict.fromkeys(_PARAMETER.findall(statement.sql)))
        text = _numbered(statement.sql, names)
        values = ", ".join(psycopg.sql.Literal(statement.params[name]).as_string(self._db) for name in names)
        with self._db.transaction(force_rollback=True):
            self._db.execute(steady.replace(":local", "true"))
            self._db.execute(f"PREPARE asked AS {text}")
            (found,) = (
                self._db.execute(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked{f' ({values})' if names else ''}"
                ).fetchone()
                or ()
            )
            self._db.execute("DEALLOCATE asked")
        return found[0]["Plan"]


def _numbered(sql: str, names: list[str]) -> str:
    """Return the statement with the server's own placeholders."""
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


def _pages(node: dict[str, Any]) -> int:
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"]


def _written_apart(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the writes whose result is not read: they run after the plan's root, which does not count them."""
    read = {node.get("CTE Name") for node in _nodes(plan)}
    return [
        node
        for node in _nodes(plan)
        if node["Node Type"] == "ModifyTable"
        and node.get("Subplan Name", "").removeprefix("CTE ") not in read
        and node.get("Subplan Name", "").startswith("CTE ")
    ]


class SqliteMeter:
    """Counts the steps of SQLite's virtual machine, which do not depend on other load."""

    GRAIN = 20

    def __init__(self, store: SqliteStore) -> None:
        self._store, self._transitions = store, store.transitions
        self.transitions = self

    def cost(self, verb: Callable[[], Any]) -> int:
        """Return the steps, rounded to twenty."""
        ticks = 0

        def tick() -> int:
            nonlocal ticks
            ticks += 1
            return 0

        connection = self._store.file.connection()
        connection.set_progress_handler(tick, self.GRAIN)
        try:
            verb()
        finally:
            connection.set_progress_handler(None, 0)
        return ticks * self.GRAIN

    def walk(self, verb: Callable[[], Any]) -> int:
        """Return the steps of the statement that selects due jobs, in hundreds: a due row takes about one."""
        with self._traced() as statements:
            verb()
        picks = [sql for sql in statements if "json_each" in sql and sql.lstrip().upper().startswith("WITH")]
        assert picks, "the claim picked nothing that we could see"
        connection = self._store.file.connection()
        return max(self.cost(lambda sql=sql: connection.execute(sql).fetchall()) for sql in picks) // 100

    def scans(self, verb: Callable[[], Any]) -> list[str]:
        """Return the tables that are scanned completely."""
        connection = self._store.file.connection()
        with self._traced() as statements:
            verb()
        plans = [
            row[3]
            for sql in statements
            if sql.split(" ", 1)[0].upper() in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")
            for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")
        ]
        return [
            line
            for line in plans
            if re.match(r"SCAN (interlock_(jobs|executions|audit)|[jea])\b(?!.*(USING|VIRTUAL))", line)
        ]

    def whole(self, verb: Callable[[], Any]) -> list[str]:
        """Return the tables that are scanned completely, directly or through an index on all rows."""
        connection = self._store.file.connection()
        full = [
            name
            for table in TABLES
            for _, name, _, _, partial in connection.execute(f"PRAGMA index_list(interlock_{table})")
            if not partial
        ]
        with self._traced() as statements:
            verb()
        plans = [
            row[3]
            for sql in statements
            for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")
            if sql.split(" ", 1)[0].upper() in ("SELECT", "WITH")
        ]
        lines = [line for line in plans if re.match(r"SCAN (interlock_(jobs|executions|audit)|[jea])\b", line)]
        return [line for line in lines if " USING " not in line or line.split()[-1] in full]

    def close(self) -> None:
        """The connection belongs to the store."""

    @contextmanager
    def _traced(self) -> Iterator[list[str]]:
        statements: list[str] = []
        connection = self._store.file.connection()
        connection.set_trace_callback(statements.append)
        try:
            yield statements
        finally:
            connection.set_trace_callback(None)


def meter_of(store: Any) -> PostgresMeter | SqliteMeter:
    return PostgresMeter(store) if isinstance(store, PostgresStore) else SqliteMeter(store)
