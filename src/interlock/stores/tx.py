"""The transaction that a commit, an admission or `app.transaction()` hands out: `execute`, and no way to end it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError

_ENDS = re.compile(r"\s*(begin|commit|end|rollback|abort|prepare\s+transaction)\b", re.IGNORECASE)


class PlainTx:
    """A connection of ours, closed to everything but statements."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = (), /) -> Any:
        """Run one statement in the database's own words and answer its cursor."""
        if _ENDS.match(sql):
            raise UsageError(f"this transaction is ended by Interlock, when the block ends; leave out {sql.split(maxsplit=1)[0].upper()}")
        return self._connection.execute(sql, params)

    @staticmethod
    def connection(tx: "PlainTx") -> Any:
        """For the stores, which ask the class: a transaction itself offers `execute` only."""
        return tx._connection  # noqa: SLF001 - its own class
