"""Named queries from the .sql files of a store.

`-- name: x` begins a query, `-- fragment: x` a piece of SQL that `{x}` inserts.
"""

import re
from importlib.resources import files

from ..errors import UsageError

_HEAD = re.compile(r"^-- (name|fragment): (\S+)\s*$")
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,47}")
_FRAGMENT = re.compile(r"\{(\w+)\}")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


def schema_name(schema: str) -> str:
    """Check that the schema is a plain name, since it becomes part of every query's text."""
    if not _SCHEMA.fullmatch(schema):
        raise UsageError(
            f"The schema {schema!r} is not a plain name: use at most 48 lower-case letters, digits and _, "
            "beginning with a letter."
        )
    return schema


def load(package: str, rename: tuple[str, str]) -> dict[str, str]:
    """The queries of a package's `queries` folder, by name, without comments.

    `rename` replaces the schema's name in the files with its real name.
    """
    return parse(query_text(package).replace(*rename))


def query_text(package: str) -> str:
    """All query files of a package, one after the other."""
    found = sorted(files(package).joinpath("queries").iterdir(), key=lambda each: each.name)
    return "\n".join(each.read_text(encoding="utf-8") for each in found if each.name.endswith(".sql"))


def parse(text: str) -> dict[str, str]:
    queries: dict[str, list[str]] = {}
    fragments: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            target = queries if head[1] == "name" else fragments
            if head[2] in target:
                raise ValueError(f"query files: {head[1]} {head[2]} is defined twice")
            lines = target[head[2]] = []
        elif not line.lstrip().startswith("--"):
            lines.append(line)
    pieces = {name: "\n".join(body).strip() for name, body in fragments.items()}

    def whole(text: str) -> str:
        return _FRAGMENT.sub(lambda m: whole(pieces[m[1]]), text)

    return {name: whole("\n".join(body).strip()) for name, body in queries.items()}


def to_pyformat(sql: str) -> str:
    """The same statement with `%(name)s` for `:name`, as psycopg and Django's cursors read it."""
    return PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def to_positional(sql: str) -> tuple[str, tuple[str, ...]]:
    """The same statement with `$1`, `$2` … for its parameters, and their names in that order."""
    places: dict[str, int] = {}
    text = PARAMETER.sub(lambda found: f"${places.setdefault(found[1], len(places) + 1)}", sql)
    return text, tuple(places)
