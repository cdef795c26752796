"""Commits the moves of several jobs in one transaction, for both stores. `commit` handles those that it leaves out."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from typing_extensions import override

from ..core.error_policy import headline
from ..core.job import Job
from ..core.transition import Move
from ..errors import UsageError
from .codec import each_once
from .commit_boundary import call_in_time
from .tx import Cursor, PlainTx
from .types import GroupCommit

LONGEST = 0.1
"""Seconds for which a group calls functions: its rows are locked for that long. Later jobs join the next group."""
_log = logging.getLogger("interlock")
GroupBody = Callable[[Any, Sequence[Job]], None]


class AbandonGroup(Exception):
    """Raised by a body to roll back the whole group."""


@dataclass(frozen=True)
class CommitGroup:
    """Moves of one transition each to carry out in one transaction, with the functions of their jobs."""

    moves: Sequence[Move]
    body: GroupBody
    together: bool
    """Whether `body` is called once with all jobs, not once for each."""
    timeout: float

    def __post_init__(self) -> None:
        each_once(self.moves)

    @property
    def in_order(self) -> list[Move]:
        """The moves in the order of locking, which every transaction keeps."""
        return sorted(self.moves, key=lambda move: move.job_id)


class Savepoints(Protocol):
    """The savepoint before the next function, in one dialect."""

    def keep(self, move: Move) -> None:
        """Keep what the function has written. Raises if it ended the transaction."""
        ...

    def undo(self) -> None:
        """Roll back what the function has written."""
        ...


@dataclass
class CalledMoves:
    """The moves whose functions returned, and those whose functions were not called because the group took long."""

    done: list[Move] = field(default_factory=list[Move])
    late: list[Move] = field(default_factory=list[Move])

    @property
    def stored(self) -> frozenset[str]:
        """The ids of the jobs that the transaction commits."""
        return frozenset(move.job_id for move in self.done)

    def result(self) -> GroupCommit:
        return GroupCommit(self.stored, frozenset(move.job_id for move in self.late))


def call_functions(
    session: object, group: CommitGroup, jobs: Mapping[str, Job], tx: PlainTx, savepoints: Savepoints
) -> CalledMoves:
    """Call the functions of the locked jobs, each in a savepoint. One that raises is rolled back and left out."""
    called, began = CalledMoves(), monotonic()
    for moves in _calls(group, jobs):
        if monotonic() - began > LONGEST:
            called.late += moves
            continue
        found = [jobs[move.job_id] for move in moves]

        def body(tx: Any, job: Job, found: list[Job] = found) -> None:
            del job
            group.body(tx, found)

        try:
            call_in_time(session, body, tx, found[0], moves[0], group.timeout)
            savepoints.keep(moves[0])
        except AbandonGroup:
            raise
        except Exception as error:  # noqa: BLE001 - `commit` calls the function again and reports its error
            savepoints.undo()
            _log.info(
                "The commit function of job %s%s failed in a shared transaction (%s). The worker commits %s alone.",
                moves[0].job_id, f" and {len(moves) - 1} more" if len(moves) > 1 else "", headline(error),
                "each job" if len(moves) > 1 else "this job",
            )  # fmt: skip
        else:
            called.done += moves
    return called


def _calls(group: CommitGroup, jobs: Mapping[str, Job]) -> Iterator[list[Move]]:
    """The moves of each call, without those whose fence did not match."""
    matched = [move for move in group.in_order if move.job_id in jobs]
    if not group.together:
        yield from ([move] for move in matched)
    elif matched:
        yield matched


# ---------------------------------------------------------------- the transaction that the functions get
_SETTING = re.compile(r"\s*(SET|RESET)\b", re.IGNORECASE)
_READS = frozenset({"rowcount", "fetchone", "fetchall", "fetchmany", "description", "lastrowid", "statusmessage"})


class _GroupCursor:
    """A cursor that does not lead to its connection, by which a function could end the transaction of other jobs."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            raise UsageError(f"Other jobs share this commit: the cursor attribute {name} is not available.")
        return getattr(self._cursor, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)


class GroupTx(PlainTx):
    """A `Tx` that several jobs share. It refuses statements that might end it, and settings, which would last as long.

    The worker commits a job alone if its function sends such a statement.
    """

    __slots__ = ()

    @override
    def execute(self, sql: str, params: Sequence[object] | Mapping[str, object] = (), /) -> Cursor:
        if ";" in sql.rstrip().rstrip(";") or sql.lstrip()[:2] in ("--", "/*"):
            raise UsageError("Other jobs share this commit: give each call one statement, without a leading comment.")
        if _SETTING.match(sql) or "set_config" in sql.lower():
            raise UsageError("Other jobs share this commit: the setting would apply to them, too.")
        cursor: Any = _GroupCursor(super().execute(sql, params))
        shared: Cursor = cursor
        return shared
