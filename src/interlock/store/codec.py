"""Converts rows to values and values to parameters, for both stores. `payload` has checked all texts before."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ..core.job import AuditEntry, Execution, Job, Phase, Status
from ..core.machine import Arrow
from ..core.transition import Move, Take
from .report_types import FailedJob, Failures
from .types import KindFacts, Lease, Refusal, WorkerFacts, WorkerSeen

Row = Any
When = Callable[[Any], Any]
"""Reads a stored time, or nothing."""


class MoveStep(NamedTuple):
    """One transition of a move, or none, as a store writes it. The last step has the values of the move."""

    job_id: str
    attempt: int
    holder: int
    from_status: Status
    to_status: Status
    source: str
    target: str
    event: str | None
    phase: Phase
    tries_left: int
    lost: int
    delay: float | None
    ended_by: str | None
    error: str | None
    result: str | None
    frees_key: bool
    held_reason: str | None
    external_id: str | None
    check_in: float | None
    missing: bool | None
    actor: str
    reason: str | None
    moves_job: bool
    refuse_if_cancel_requested: bool
    """Whether the store refuses the step if the job has a cancel request: the decision did not know of one, and the
    step would return the job to a waiting state."""
    progress: str | None
    usage: str | None


def move_steps(move: Move) -> list[MoveStep]:
    """The steps of a move.

    The database accepts one transition at a time; until the last, the execution keeps its status.
    """
    refuse_if_cancel_requested = not move.saw_cancel_request and move.ended_by is not None and move.phase == "pending"
    return [
        *(_earlier_step(move, arrow, refuse_if_cancel_requested) for arrow in move.path[:-1]),
        _last_step(move, refuse_if_cancel_requested),
    ]


def _last_step(move: Move, refuse_if_cancel_requested: bool) -> MoveStep:
    path = move.path
    return MoveStep(
        move.job_id,
        move.attempt,
        move.holder,
        move.from_status,
        move.to_status,
        path[-1].source if path else move.source,
        move.state,
        path[-1].event if path else None,
        move.phase,
        move.tries_left,
        int(move.lost),
        move.delay,
        move.ended_by,
        move.error,
        move.result,
        move.frees_key,
        move.held_reason,
        move.external_id,
        move.check_in,
        move.missing,
        move.actor,
        move.reason,
        bool(path) or move.ended_by is not None or move.error is not None,
        refuse_if_cancel_requested,
        move.progress,
        move.usage,
    )


def _earlier_step(move: Move, arrow: Arrow, refuse_if_cancel_requested: bool) -> MoveStep:
    return MoveStep(
        move.job_id,
        move.attempt,
        move.holder,
        move.from_status,
        move.from_status,
        arrow.source,
        arrow.target,
        arrow.event,
        "running" if arrow.event == "start" else "pending",
        move.tries_left,
        0,
        None,
        None,
        None,
        None,
        False,
        None,
        None,
        None,
        None,
        move.actor,
        move.reason,
        True,
        refuse_if_cancel_requested,
        None,
        None,
    )


def each_once(moves: Sequence[Move] | Sequence[Take]) -> None:
    """`ValueError` if a job is listed twice: a statement would write it once without an error."""
    if len({move.job_id for move in moves}) < len(moves):
        raise ValueError("The list names a job twice. Give one move for each job.")


def refusal(move: Move | Take, row: Row) -> Refusal | None:
    """The refusal of a move, from a row of the query `present`; None if the move was carried out already."""
    if row is None:
        return Refusal(move.job_id, 0, 0, None, None, None)
    present = Refusal(move.job_id, row[1] or 0, row[2] or 0, row[3], row[4], row[5], row[6])
    return None if isinstance(move, Move) and present.already(move) else present


def take_columns(take: Take) -> dict[str, Any]:
    """The columns of a take, without the job."""
    return {
        "version": take.version,
        "source": take.arrow.source,
        "target": take.arrow.target,
        "event": take.arrow.event,
        "phase": take.phase,
        "frees_key": take.frees_key,
        "actor": take.actor,
        "reason": take.reason,
    }


def kind_columns(kind: KindFacts, version: int | None) -> dict[str, Any]:
    return {
        "name": kind.name,
        "lifecycle": kind.lifecycle,
        "version": version,
        "queue": kind.queue,
        "tries": kind.tries,
        "hooks": json.dumps(sorted(kind.hooks)),
        "key_until": json.dumps(sorted(kind.key_until)),
        "admits": kind.admits,
        "every": kind.every,
        "batch": kind.batch,
    }


def worker_columns(worker: WorkerFacts) -> dict[str, Any]:
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "state": worker.state,
        "slots": worker.slots,
        "busy": worker.busy,
        "kinds": json.dumps(worker.kinds),
        "queues": json.dumps(worker.queues),
        "schedules": json.dumps(worker.schedules),
    }


# ---------------------------------------------------------------- rows to values
def worker(row: Row, when: When, *, silent: float) -> WorkerSeen:
    """A row of the query `workers`."""
    known = (tuple[str, ...](json.loads(names)) for names in row[6:9])
    return WorkerSeen(WorkerFacts(*row[:6], *known), when(row[9]), when(row[10]), silent)


def kind(row: Row) -> KindFacts:
    """A row of the query `kind`."""
    name, lifecycle, hooks, queue, tries, key_until, admits, version, every, batch = row
    return KindFacts(
        name,
        lifecycle,
        tuple(json.loads(hooks)),
        queue,
        tries,
        tuple(json.loads(key_until)),
        bool(admits),
        version,
        every,
        batch,
    )


def job(row: Row, when: When) -> Job:
    """A row of the columns that the fragment `job` lists, perhaps followed by the live execution's progress."""
    fields: list[Any] = [
        *row[:13],
        json.loads(row[13]),
        json.loads(row[14]) if row[14] else {},
        json.loads(row[15]) if row[15] else None,
        json.loads(row[16]) if row[16] else None,
        row[17],
        when(row[18]),
        when(row[19]),
        when(row[20]),
        when(row[21]),
        when(row[22]),
        when(row[23]),
        row[24],
        bool(row[25]),
        row[26],
        when(row[27]),
        row[28],
        row[29],
        when(row[30]),
        row[31],
        row[32],
        row[33],
    ]
    fields.append(progress(row[JOB_WIDTH]) if len(row) > JOB_WIDTH else None)
    fields += [row[34], row[35], when(row[36]), bool(row[37])]
    return Job(*fields)


JOB_WIDTH = 38
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def execution(row: Row, when: When) -> Execution:
    fields: list[Any] = [
        *row[:5],
        when(row[5]),
        when(row[6]),
        *row[7:12],
        when(row[12]),
        when(row[13]),
        progress(row[14]),
        json.loads(row[15]) if row[15] else None,
        json.loads(row[16]) if row[16] else None,
        when(row[17]),
        when(row[18]),
        when(row[19]),
        when(row[20]),
    ]
    return Execution(*fields)


def audit(rows: Iterable[Row], when: When) -> list[AuditEntry]:
    """The entries of one job, in order."""
    return [
        _entry([*row[:9], when(row[9]), json.loads(row[10]) if row[10] else None], seq) for seq, row in enumerate(rows)
    ]


def _entry(fields: list[Any], seq: int) -> AuditEntry:
    return AuditEntry(*fields, seq=seq)


def failures(rows: Iterable[Row], when: When) -> list[Failures]:
    """The rows of the query `recent_failures`, grouped by kind, the newest first."""
    counts: dict[str, int] = {}
    newest: dict[str, list[FailedJob]] = {}
    for kind, count, id, state, attempt, at, error in rows:
        counts[kind] = count
        newest.setdefault(kind, []).append(FailedJob(id, state, attempt, when(at), error))
    return [Failures(kind, count, tuple(newest[kind])) for kind, count in counts.items()]


def lease(row: Row, when: When, *, holder: int, status: Status, owner: str, seconds: float) -> Lease:
    return Lease(job(row[:JOB_WIDTH], when), holder, status, owner, seconds)


def adopted(row: Row, when: When, *, owner: str, seconds: float, missing_for: float | None) -> Lease:
    """A row of a query that takes executions over."""
    holder, status, external_id, result, crashes = row[JOB_WIDTH : JOB_WIDTH + 5]
    return Lease(
        job(row[:JOB_WIDTH], when), holder, status, owner, seconds, external_id, result, missing_for, crashes or 0
    )


def progress(text: str | None) -> tuple[float, float | None, str] | None:
    if text is None:
        return None
    done, total, note = json.loads(text)
    return done, total, note


# ---------------------------------------------------------------- values to parameters
def is_id(text: str) -> bool:
    """Whether the text has the form of a job's id. Other texts are simply not found."""
    return _ID.fullmatch(text) is not None


def array(values: Iterable[object]) -> str:
    """An array literal of numbers, booleans, ids and times: nothing that needs quotes."""
    return "{" + ",".join(["NULL" if v is None else str(v) for v in values]) + "}"


def text_array(values: Iterable[str | None]) -> str:
    """An array literal of any texts."""
    return (
        "{"
        + ",".join(["NULL" if v is None else '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values])
        + "}"
    )


def time_array(values: Iterable[datetime | None]) -> str:
    return text_array([None if v is None else v.isoformat() for v in values])
