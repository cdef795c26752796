"""The transaction that commit functions, `admit` functions and `app.transaction()` get: it can only execute SQL."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from ..errors import UsageError

_ENDS = re.compile(r"\s*(begin|commit|end|rollback|abort|prepare\s+transaction)\b", re.IGNORECASE)


class Cursor(Protocol):
    """The result of a statement, as the database's driver returns it. A row is a tuple of the driver's values."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; None if there is none."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Tx(Protocol):
    """An open transaction that executes the database's own SQL. Interlock commits it or rolls it back."""

    def execute(self, sql: str, params: Sequence[object] | Mapping[str, object] = ..., /) -> Cursor: ...


def check_process(pid: int) -> None:
    """Raise `UsageError` unless process `pid`, which began the transaction, is this one. A fork cannot use it."""
    if os.getpid() != pid:
        raise UsageError(
            "This transaction belongs to the process that this one was forked from, and only that process can use it: "
            "begin a new transaction here."
        )


class PlainTx:
    """A `Tx` on one of the store's own connections."""

    __slots__ = ("_connection", "_converting", "_pid")

    def __init__(self, connection: Any, converting: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Wrap a connection. `converting` turns the database's own errors, such as a full disk, into `Unavailable`."""
        self._connection = connection
        self._pid = os.getpid()
        self._converting = converting

    def execute(self, sql: str, params: Sequence[object] | Mapping[str, object] = (), /) -> Cursor:
        """Run one statement in the database's own SQL and return its cursor."""
        if _ENDS.match(sql):
            raise UsageError(
                f"Interlock ends this transaction when the block ends: remove {sql.split(maxsplit=1)[0].upper()}."
            )
        check_process(self._pid)
        with self._converting():
            cursor: Cursor = self._connection.execute(sql, params)
            return cursor

    @staticmethod
    def connection(tx: "PlainTx") -> Any:
        """Return the connection. Only the stores use it; users get `execute` alone."""
        check_process(tx._pid)  # noqa: SLF001 - its own class
        return tx._connection  # noqa: SLF001 - its own class
