"""Migrations on SQLite: the schema, and the registered lifecycles and kinds as rows, which the triggers look up."""

import sqlite3
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from ...core.lifecycle import Lifecycle
from ..codec import kind_columns
from ..commit_boundary import Run
from ..declared_limits import in_order, store_limits
from ..enqueue_plan import Statement
from ..limit_columns import declared_columns
from ..queryfile import PARAMETER
from ..schema_version import VERSION, check_version
from ..types import Declared, Migrated
from . import rows


def schema_text(schema: str) -> str:
    return "\n".join(_text(file, schema) for file in ("schema.sql", "triggers.sql", "unique_keys.sql", "flow.sql"))


def _text(file: str, schema: str) -> str:
    return files(__package__ or "").joinpath(file).read_text(encoding="utf-8").replace("interlock_", f"{schema}_")


def version_in(run: Run, queries: Mapping[str, str], schema: str) -> int | None:
    """The version of the schema in the file; None if there is none."""
    if not run(Statement(queries["exists"], {"table": f"{schema}_schema_version"}))[0][0]:
        return None
    found: int | None = run(Statement(queries["instance.version"], {}))[0][0]
    return found


def migrate(
    run: Run,
    queries: Mapping[str, str],
    schema: str,
    declared: Declared,
) -> Migrated:
    notes: list[str] = []
    found = version_in(run, queries, schema)
    if found is None:
        for statement in _statements(schema_text(schema)):
            run(Statement(statement, {}, answers=False))
        run(Statement(queries["instance.first"], {"version": VERSION}, answers=False))
        notes.append(f"created the tables {schema}_…, version {VERSION}")
    else:
        check_version(f"tables {schema}_…", found)
    versions = {lifecycle.name: _register(run, queries, lifecycle, notes) for lifecycle in declared.lifecycles}
    for kind in declared.kinds:
        run(Statement(queries["register_kind"], kind_columns(kind, versions.get(kind.lifecycle)), answers=False))
    store_limits(run, queries, declared, rows.array)
    return Migrated(versions, tuple(notes))


def _register(run: Run, queries: Mapping[str, str], lifecycle: Lifecycle, notes: list[str]) -> int:
    known = run(Statement(queries["version_of"], {"name": lifecycle.name, "digest": lifecycle.digest}))
    if known:
        return int(known[0][0])
    version = int(run(Statement(queries["register"], _given(lifecycle)))[0][0])
    notes.append(f"registered lifecycle {lifecycle.name}, version {version}")
    for name, batch in registration(lifecycle, version).items():
        run(Statement(queries[name], batch, many=True, answers=False))
    for state, count in run(
        Statement(queries["stranded"], {"name": lifecycle.name, "states": rows.array(lifecycle.states)})
    ):
        lacks = f"which version {version} of {lifecycle.name} lacks"
        notes.append(f"{count} live jobs are in state {state}, {lacks}; only a worker with an older version moves them")
    return version


def registration(lifecycle: Lifecycle, version: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of a lifecycle, by the query that stores them."""
    pinned = {"name": lifecycle.name, "version": version}
    return {
        "register_edges": [
            pinned | {"source": a.source, "event": a.event, "target": a.target} for a in lifecycle.arrows
        ],
        "register_changes": [
            pinned | {"source": h.source, "target": h.target, "attempts": h.attempts, "arrows": h.arrows}
            for h in lifecycle.state_changes()
        ],
        "register_phases": [
            pinned | {"state": state, "phase": phase} for state in lifecycle.states for phase in lifecycle.phases(state)
        ],
    }


def _given(lifecycle: Lifecycle) -> dict[str, Any]:
    return {"name": lifecycle.name, "digest": lifecycle.digest, "initial": lifecycle.initial}


def _statements(text: str) -> Iterator[str]:
    """The statements of a script. The driver's own `executescript` would commit first."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.lstrip().startswith("--"):
            lines.append(line)
        if line.rstrip().endswith(";") and sqlite3.complete_statement("\n".join(lines)):
            yield "\n".join(lines).strip()
            lines = []


def as_text(
    queries: Mapping[str, str],
    schema: str,
    declared: Declared,
) -> str:
    """The same migration as SQL to read, or to run on an empty database by other means."""
    parts = ["BEGIN IMMEDIATE;", schema_text(schema), _inlined(queries["instance.first"], {"version": VERSION})]
    for lifecycle in declared.lifecycles:
        parts.append(_inlined(queries["register"], _given(lifecycle)))
        parts += [_inlined(queries[name], row) for name, batch in registration(lifecycle, 1).items() for row in batch]
    parts += [_inlined(queries["register_kind"], kind_columns(kind, 1)) for kind in declared.kinds]
    parts += [_inlined(queries["limits.declare"], declared_columns(limit)) for limit in in_order(declared.limits)]
    return "\n".join([*parts, "COMMIT;", ""])


def _inlined(statement: str, params: Mapping[str, Any]) -> str:
    """A statement with its parameters as literals, for reading only."""
    return PARAMETER.sub(lambda m: _literal(params[m[1]]), statement) + ";"


def _literal(value: str | float | None) -> str:
    if value is None:
        return "NULL"
    return str(value + 0) if isinstance(value, int | float) else "'" + value.replace("'", "''") + "'"
