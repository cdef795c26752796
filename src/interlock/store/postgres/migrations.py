"""Migrations on PostgreSQL: the schema, the registered lifecycles and kinds, and the functions that the triggers call.

A migration replaces the functions, never the triggers: a new function waits for no lock, while a new trigger blocks
every claim behind any open transaction. Each function is one immutable expression over constants, so that PostgreSQL
inlines it where a trigger calls it.
"""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from psycopg import Connection, sql

from ...core.lifecycle import Lifecycle
from ..codec import array, kind_columns, text_array
from ..declared_limits import in_order, store_limits
from ..enqueue_plan import Statement
from ..limit_columns import declared_columns
from ..queryfile import PARAMETER
from ..schema_version import VERSION, check_version
from ..types import Declared, Migrated
from .connection import Run, runner

# One migration at a time, until its transaction ends.
LOCK = 0x696E7465726C6F63
SCHEMA_FILES = ("schema.sql", "triggers.sql", "unique_keys.sql", "flow.sql", "partitions.sql")


def schema_text(schema: str) -> str:
    text = "\n".join(_text(file, schema) for file in SCHEMA_FILES)
    return text.replace("SCHEMA IF NOT EXISTS interlock;", f"SCHEMA IF NOT EXISTS {schema};")


def _text(file: str, schema: str) -> str:
    return (
        files("interlock.store.postgres").joinpath(file).read_text(encoding="utf-8").replace("interlock.", f"{schema}.")
    )


def version_in(conn: Connection[Any], schema: str) -> int | None:
    """The version of the schema in the database; None if there is none."""
    row = conn.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schema}.schema_version",)).fetchone()
    if not row or not row[0]:
        return None
    row = conn.execute(
        sql.SQL("SELECT max(version) FROM {}").format(sql.Identifier(schema, "schema_version"))
    ).fetchone()
    return int(row[0]) if row else None


def migrate(
    conn: Connection[Any],
    queries: Mapping[str, str],
    schema: str,
    declared: Declared,
) -> Migrated:
    conn.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    notes: list[str] = []
    found = version_in(conn, schema)
    if found is None:
        conn.execute(schema_text(schema).encode())
        conn.execute(
            sql.SQL("INSERT INTO {} (version) VALUES (%s)").format(sql.Identifier(schema, "schema_version")), (VERSION,)
        )
        notes.append(f"created schema {schema}, version {VERSION}")
    else:
        check_version(f"tables of schema {schema}", found)
    run = runner(conn)
    versions = {lifecycle.name: _register(run, queries, lifecycle, notes) for lifecycle in declared.lifecycles}
    for kind in declared.kinds:
        run(Statement(queries["register_kind"], kind_columns(kind, versions.get(kind.lifecycle)), answers=False))
    limits_changed = store_limits(run, queries, declared, text_array)
    conn.execute(enforcement(run, queries, schema, versions).encode())
    if limits_changed:
        run(Statement(queries["limits.wait"], {}, answers=False))
    return Migrated(versions, tuple(notes))


def _register(run: Run, queries: Mapping[str, str], lifecycle: Lifecycle, notes: list[str]) -> int:
    known = run(Statement(queries["version_of"], {"name": lifecycle.name, "digest": lifecycle.digest}))
    if known:
        return int(known[0][0])
    given = {"name": lifecycle.name, "digest": lifecycle.digest, "initial": lifecycle.initial}
    version = int(run(Statement(queries["register"], given))[0][0])
    notes.append(f"registered lifecycle {lifecycle.name}, version {version}")
    for name, columns in registration(lifecycle).items():
        run(Statement(queries[name], {"name": lifecycle.name, "version": version} | columns, answers=False))
    for state, count in run(
        Statement(queries["stranded"], {"name": lifecycle.name, "states": text_array(lifecycle.states)})
    ):
        notes.append(
            f"{count} live jobs are in state {state}, which version {version} of {lifecycle.name} lacks; "
            "only a worker with an older version moves them"
        )
    return version


def registration(lifecycle: Lifecycle) -> dict[str, dict[str, str]]:
    """The rows of a lifecycle, by the query that stores them."""
    changes = lifecycle.state_changes()
    fits = [(state, phase) for state in lifecycle.states for phase in lifecycle.phases(state)]
    return {
        "register_edges": {
            "source": text_array(a.source for a in lifecycle.arrows),
            "event": text_array(a.event for a in lifecycle.arrows),
            "target": text_array(a.target for a in lifecycle.arrows),
        },
        "register_changes": {
            "source": text_array(h.source for h in changes),
            "target": text_array(h.target for h in changes),
            "attempts": array(h.attempts for h in changes),
            "arrows": array(h.arrows for h in changes),
        },
        "register_phases": {"state": text_array(s for s, _ in fits), "phase": text_array(p for _, p in fits)},
    }


def enforcement(run: Run, queries: Mapping[str, str], schema: str, now: Mapping[str, int]) -> str:
    """The three functions, from the registered rows that are still needed; `now` has the versions of this migration."""
    live = run(Statement(queries["live_versions"], {"name": text_array(now), "version": array(now.values())}))
    needed = {(name, version) for name, version, _ in live}
    changes = [row for row in run(Statement(queries["enforced_changes"], {})) if (row[0], row[1]) in needed]
    fits = [row for row in run(Statement(queries["enforced_phases"], {})) if (row[0], row[1]) in needed]
    return functions(
        schema,
        [
            f"{name}/{version}:{source}>{target}+{attempts}+{arrows}"
            for name, version, source, target, attempts, arrows in changes
        ],
        [f"{name}/{version}:{state}={phase}" for name, version, state, phase in fits],
        [f"{name}/{version}:{initial}" for name, version, initial in live],
    )


def functions(schema: str, changes: Iterable[str], fits: Iterable[str], starts: Iterable[str]) -> str:
    def function(signature: str, key: str, accepted: Iterable[str]) -> str:
        # Names are checked at declaration to be letters, digits, _ and -, so they need no quoting inside the array.
        return f"""CREATE OR REPLACE FUNCTION {schema}.{signature} RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN {key} = ANY ('{array(accepted)}'::text[]);
"""

    # The casts matter: text || integer is only stable, and the function would not be inlined.
    pinned = "lifecycle || '/' || version::text || ':' ||"
    return (
        function(
            "accepts_change(lifecycle text, version int, source text, target text, attempts int, arrows int)",
            f"{pinned} source || '>' || target || '+' || attempts::text || '+' || arrows::text",
            changes,
        )
        + function(
            "accepts_phase(lifecycle text, version int, state text, phase text)",
            f"{pinned} state || '=' || phase",
            fits,
        )
        + function("accepts_start(lifecycle text, version int, state text)", f"{pinned} state", starts)
    )


def as_text(
    queries: Mapping[str, str],
    schema: str,
    declared: Declared,
) -> str:
    """The same migration as SQL to read, or to run on an empty database by other means."""
    parts = [schema_text(schema), f"INSERT INTO {schema}.schema_version (version) VALUES ({VERSION});"]  # noqa: S608  # a checked name, for reading
    for lifecycle in declared.lifecycles:
        given: dict[str, str] = {
            "name": lifecycle.name,
            "digest": lifecycle.digest,
            "initial": lifecycle.initial,
            "version": "1",
        }
        parts.append(_inlined(queries["register"], given))
        parts += [_inlined(queries[name], given | columns) for name, columns in registration(lifecycle).items()]
    registered = [
        {name: None if value is None else str(value) for name, value in kind_columns(kind, 1).items()}
        for kind in declared.kinds
    ]
    parts += [_inlined(queries["register_kind"], columns) for columns in registered]
    parts += [_inlined(queries["limits.declare"], declared_columns(limit)) for limit in in_order(declared.limits)]
    one = [(lifecycle, f"{lifecycle.name}/1:") for lifecycle in declared.lifecycles]
    parts.append(
        functions(
            schema,
            sorted(
                {
                    f"{pin}{h.source}>{h.target}+{h.attempts}+{h.arrows}"
                    for lifecycle, pin in one
                    for h in lifecycle.state_changes()
                }
            ),
            [
                f"{pin}{state}={phase}"
                for lifecycle, pin in one
                for state in lifecycle.states
                for phase in lifecycle.phases(state)
            ],
            [f"{pin}{lifecycle.initial}" for lifecycle, pin in one],
        )
    )
    return "\n".join(parts)


def _inlined(statement: str, params: Mapping[str, str | None]) -> str:
    """A statement with its parameters as literals, for reading only."""
    return PARAMETER.sub(lambda m: _literal(params[m[1]]), statement) + ";"


def _literal(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"
