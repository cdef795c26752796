"""Rolls back a transaction on a pooled connection if its block raises."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from ..retry import cannot_write, write_unavailable
from ..tx import check_process


class Block:
    """A transaction's block, in which a caller's code runs."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.ours = False
        """Whether only our own statements run from here on, so that any error is the database's."""

    def end(self) -> None:
        """Record that the caller's code has returned, in the process that began the transaction."""
        check_process(self._pid)
        self.ours = True

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid


@contextmanager
def rolled_back(conn: Connection[Any]) -> Generator[Block]:
    """Roll the connection's transaction back if the block raises. The block itself begins and commits it."""
    block = Block()
    try:
        yield block
    except BaseException as error:
        # An error of the caller's code about another database does not affect our transaction.
        ours = block.ours or conn.info.transaction_status is TransactionStatus.INERROR
        # If the connection is lost, the server has rolled back; the original error is raised, not this one.
        with suppress(psycopg.Error):
            if not block.forked:
                conn.rollback()
        if ours and cannot_write(error):
            raise write_unavailable(error) from error
        raise
