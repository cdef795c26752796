"""The transaction that a commit, an admission or `app.transaction()` hands out: `execute`, and no way to end it."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..errors import UsageError

_ENDS = re.compile(r"\s*(begin|commit|end|rollback|abort|prepare\s+transaction)\b", re.IGNORECASE)


def check_process(pid: int) -> None:
    """`UsageError` if this process is not `pid`, which began the transaction, but one that was forked from it since."""
    if os.getpid() != pid:
        raise UsageError(
            "this transaction belongs to the process that this one was forked from, and only that process can use it; "
            "begin a new transaction")


class PlainTx:
    """A connection of ours, closed to everything but statements."""

    __slots__ = ("_connection", "_pid", "_telling")

    def __init__(self, connection: Any, telling: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """`telling` converts an error of the database itself, such as a full disk, to `Unavailable`."""
        self._connection = connection
        self._pid = os.getpid()
        self._telling = telling

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = (), /) -> Any:
        """Run one statement in the database's own words and answer its cursor."""
        if _ENDS.match(sql):
            raise UsageError(f"this transaction is ended by Interlock, when the block ends; leave out {sql.split(maxsplit=1)[0].upper()}")
        check_process(self._pid)
        with self._telling():
            return self._connection.execute(sql, params)

    @staticmethod
    def connection(tx: "PlainTx") -> Any:
        """For the stores, which ask the class: a transaction itself offers `execute` only."""
        check_process(tx._pid)  # noqa: SLF001 - its own class
        return tx._connection  # noqa: SLF001 - its own class
