"""Named queries, read from the .sql file beside a store: `-- name: x` begins a query, `-- fragment: x` a piece that `{x}` stands for."""

import re
from importlib.resources import files

from ..errors import UsageError

_HEAD = re.compile(r"^-- (name|fragment): (\S+)\s*$")
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,47}")
_FRAGMENT = re.compile(r"\{(\w+)\}")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


def schema_name(schema: str) -> str:
    """The schema, if it is a plain name: it is put into the text of every query."""
    if not _SCHEMA.fullmatch(schema):
        raise UsageError(f"schema {schema!r} is not a plain name; use lower-case letters, digits and _, at most 48, beginning with a letter")
    return schema


def load(package: str, rename: tuple[str, str]) -> dict[str, str]:
    """The queries of a package's `queries.sql`, by name, without comments, with `rename` (the schema's written and real name) applied."""
    text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    return parse(text.replace(*rename))


def parse(text: str) -> dict[str, str]:
    queries: dict[str, list[str]] = {}
    fragments: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            target = queries if head[1] == "name" else fragments
            if head[2] in target:
                raise ValueError(f"query file: {head[1]} {head[2]} stands twice")
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


def upgrade(text: str, version: int) -> str:
    """The statements of a file of upgrades that lead to this version."""
    parts = re.split(r"^-- version: (\d+)$", text, flags=re.MULTILINE)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))[version]
