"""Dead letters: an administrator redrives or closes each one. The first decision is final."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import RowMapping, Select, and_, select

from apps.common.database import engine_table, insert, read_only
from apps.common.job_ids import is_id
from interlock import Job as EngineJob
from interlock import NotFound as NoJob
from interlock import TransitionRefused

from .errors import Conflict, NotFound, Refusal
from .gallery import VIEW, Job, job_from_row
from .jobs import Studio
from .tables import jobs, reviews, users

Decision = Literal["redriven", "closed"]
MAX_ROWS = 500
MAX_NOTE = 1000
"""Characters of a note."""


@dataclass(frozen=True)
class DeadLetter:
    """A buried job, the reason, and the administrator's decision if there is one."""

    job: Job
    user_name: str
    reason: str
    decision: Decision | None
    successor: str | None
    """The new job, if it was redriven."""
    note: str | None
    by: str | None
    at: datetime | None


class DeadLetters:
    """Lists dead letters and records decisions."""

    def __init__(self, studio: Studio) -> None:
        self._studio, self._engine, self._reading = studio, studio.engine, read_only(studio.engine)
        audit = engine_table(studio.engine.dialect, "audit", "job_id", "event", "reason")
        # The engine stores the reason of a redrive in the old job's history, so it is not stored again here.
        redrive_entry = and_(audit.c.job_id == jobs.c.id, audit.c.event == "redrive")
        decided = reviews.c.decision, reviews.c.successor, reviews.c.by, reviews.c.note, reviews.c.at
        joined = (
            jobs.join(users, users.c.id == jobs.c.userId)
            .outerjoin(reviews, reviews.c.job_id == jobs.c.id)
            .outerjoin(audit, redrive_entry)
        )
        self._letters: Select[Any] = (
            VIEW.add_columns(users.c.name.label("user_name"), *decided, audit.c.reason.label("redrive_reason"))
            .select_from(joined)
            .where(jobs.c.status == "dead_letter")
            .order_by(jobs.c.id.desc())
        )

    # ------------------------------------------------------------ read
    def open(self, limit: int = 100) -> list[DeadLetter]:
        """Dead letters without a decision, newest first."""
        return self._read(self._letters.where(reviews.c.job_id.is_(None)), limit)

    def every(self, limit: int = 100) -> list[DeadLetter]:
        """All dead letters, newest first."""
        return self._read(self._letters, limit)

    def show(self, id: str) -> DeadLetter:
        """One dead letter."""
        found = self._read(self._letters.where(jobs.c.id == id), 1) if is_id(id) else []
        if not found:
            raise NotFound(_missing(id))
        return found[0]

    def _read(self, asked: Select[Any], limit: int) -> list[DeadLetter]:
        with self._reading.begin() as tx:
            return [
                _dead_letter_from_row(row) for row in tx.execute(asked.limit(max(1, min(limit, MAX_ROWS)))).mappings()
            ]

    # ------------------------------------------------------------ decide
    def redrive(self, id: str, *, by: str, reason: str = "") -> str:
        """Create a new job from a dead letter and return its ID. The new job reserves its credits again.

        Raises `Refusal` and stores nothing if the user has too few credits. The decision is stored in the transaction
        that creates the job, also when the job is redriven with the `interlock` command.
        """
        try:
            return self._studio.app.redrive(id, by=_single_line(by), reason=_single_line(reason), fresh=True).id
        except NoJob:
            raise NotFound(_missing(id)) from None
        except (TransitionRefused, Refusal) as error:
            if isinstance(error, Refusal) and error.code != "not_redrivable":
                raise
            raise Conflict(self._conflict_reason(id)) from error

    def close(self, id: str, *, by: str, note: str = "") -> None:
        """Close a dead letter for good. Raises `Conflict` if there is a decision already."""
        self.show(id)
        with self._engine.begin() as tx:
            decision = {"job_id": id, "decision": "closed", "by": _single_line(by), "note": _single_line(note) or None}
            if tx.execute(insert(tx, reviews).values(decision).on_conflict_do_nothing()).rowcount == 1:
                return
        raise Conflict(self._conflict_reason(id))

    def _conflict_reason(self, id: str) -> str:
        """Explain why this job cannot be redriven or closed."""
        job = self._studio.app.get(id)
        if job.state != "dead_letter":
            return f"Job {id} cannot be redriven: it is {job.state}, not a dead letter."
        letter = self.show(id)
        if letter.decision is not None:
            decision = "closed" if letter.successor is None else f"redriven as {letter.successor}"
            return f"Job {id} was already {decision}."
        return (
            f"Job {id} cannot be redriven yet: the same order is in progress{self._active_job(job)}. "
            "Wait until it ends."
        )

    def _active_job(self, job: EngineJob) -> str:
        rows = engine_table(self._engine.dialect, "jobs", "id", "kind", "unique_key", "phase")
        fits = rows.c.kind == job.kind, rows.c.unique_key == job.unique_key, rows.c.phase.in_(["pending", "running"])
        with self._reading.begin() as tx:
            found: str | None = tx.scalar(select(rows.c.id).where(*fits))
        return "" if found is None else f" as job {found}"


def _dead_letter_from_row(row: RowMapping) -> DeadLetter:
    note = (
        row["note"]
        if row["redrive_reason"] is None
        else row["redrive_reason"].removeprefix(f"as {row['successor']}").removeprefix(": ") or None
    )
    return DeadLetter(
        job_from_row(row),
        row["user_name"],
        row["last_error"] or "No reason was stored.",
        row["decision"],
        row["successor"],
        note,
        row["by"],
        row["at"],
    )


def _single_line(text: str) -> str:
    """Return the printable characters of a text on one line, shortened to the maximum length."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:MAX_NOTE]


def _missing(id: str) -> str:
    return f"No dead letter has the ID {id[:40]}."
