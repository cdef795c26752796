"""The review of dead letters: an administrator drives a job again, or closes it. One decision each, whoever is first."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import RowMapping, Select, and_, select

from apps.common.database import insert, of_engine, reading
from apps.common.ids import is_id
from interlock import Job as EngineJob
from interlock import NotFound as NoJob
from interlock import TransitionRefused

from .errors import Conflict, NotFound, Refusal
from .gallery import VIEW, Job, job_of
from .jobs import Studio
from .tables import jobs, reviews, users

Decision = Literal["redriven", "closed"]
MOST = 500
LONGEST = 1000
"""Characters of a note."""


@dataclass(frozen=True)
class DeadLetter:
    """A job that was buried, why, and what was decided about it."""

    job: Job
    user_name: str
    reason: str
    decision: Decision | None
    successor: str | None
    """The job that was made of it, if it was driven again."""
    note: str | None
    by: str | None
    at: datetime | None


class Review:
    """What administrators do about dead letters."""

    def __init__(self, studio: Studio) -> None:
        self._studio, self._engine, self._reading = studio, studio.engine, reading(studio.engine)
        audit = of_engine(studio.engine.dialect, "audit", "job_id", "event", "reason")
        # The engine tells in the history of the old job why it was driven again, whoever did it: there is nothing to write twice.
        told = and_(audit.c.job_id == jobs.c.id, audit.c.event == "redrive")
        decided = reviews.c.decision, reviews.c.successor, reviews.c.by, reviews.c.note, reviews.c.at
        joined = jobs.join(users, users.c.id == jobs.c.userId).outerjoin(reviews, reviews.c.job_id == jobs.c.id).outerjoin(audit, told)
        self._letters: Select[Any] = VIEW.add_columns(users.c.name.label("user_name"), *decided, audit.c.reason.label("told")).select_from(
            joined).where(jobs.c.status == "dead_letter").order_by(jobs.c.id.desc())

    # ------------------------------------------------------------ read
    def open(self, limit: int = 100) -> list[DeadLetter]:
        """Dead letters about which nobody has decided, the newest first."""
        return self._read(self._letters.where(reviews.c.job_id.is_(None)), limit)

    def every(self, limit: int = 100) -> list[DeadLetter]:
        """All dead letters, the newest first."""
        return self._read(self._letters, limit)

    def show(self, id: str) -> DeadLetter:
        """One dead letter."""
        found = self._read(self._letters.where(jobs.c.id == id), 1) if is_id(id) else []
        if not found:
            raise NotFound(_missing(id))
        return found[0]

    def _read(self, asked: Select[Any], limit: int) -> list[DeadLetter]:
        with self._reading.begin() as tx:
            return [_letter(row) for row in tx.execute(asked.limit(max(1, min(limit, MOST)))).mappings()]

    # ------------------------------------------------------------ decide
    def redrive(self, id: str, *, by: str, reason: str = "") -> str:
        """A new job in its place, which reserves again and starts afresh; its id. `Refusal` if there are no credits for it, and nothing is stored.

        The decision is a part of the transaction that makes the job, as it is for whoever drives it again with the engine's own commands.
        """
        try:
            return self._studio.app.redrive(id, by=_readable(by), reason=_readable(reason), fresh=True).id
        except NoJob:
            raise NotFound(_missing(id)) from None
        except (TransitionRefused, Refusal) as error:
            if isinstance(error, Refusal) and error.code != "not_redrivable":
                raise
            raise Conflict(self._why_not(id)) from error

    def close(self, id: str, *, by: str, note: str = "") -> None:
        """Leave it as it is, for good. `Conflict` if somebody has decided otherwise already."""
        self.show(id)
        with self._engine.begin() as tx:
            decision = {"job_id": id, "decision": "closed", "by": _readable(by), "note": _readable(note) or None}
            if tx.execute(insert(tx, reviews).values(decision).on_conflict_do_nothing()).rowcount == 1:
                return
        raise Conflict(self._why_not(id))

    def _why_not(self, id: str) -> str:
        """Why this job is not driven again, or closed, by what is known of it by now."""
        job = self._studio.app.get(id)
        if job.state != "dead_letter":
            return f"Job {id} is not driven again: it is {job.state}."
        letter = self.show(id)
        if letter.decision is not None:
            became = "closed" if letter.successor is None else f"driven again as {letter.successor}"
            return f"Somebody has decided about job {id} already: it was {became}."
        return f"Job {id} is not driven again yet: the same order is under way{self._under_way(job)}. Wait for its end."

    def _under_way(self, job: EngineJob) -> str:
        held = of_engine(self._engine.dialect, "jobs", "id", "kind", "unique_key", "phase")
        fits = held.c.kind == job.kind, held.c.unique_key == job.unique_key, held.c.phase.in_(["pending", "running"])
        with self._reading.begin() as tx:
            found: str | None = tx.scalar(select(held.c.id).where(*fits))
        return "" if found is None else f" as job {found}"


def _letter(row: RowMapping) -> DeadLetter:
    note = row["note"] if row["told"] is None else row["told"].removeprefix(f"as {row['successor']}").removeprefix(": ") or None
    return DeadLetter(
        job_of(row), row["user_name"], row["last_error"] or "No reason was given.", row["decision"], row["successor"], note, row["by"], row["at"])


def _readable(text: str) -> str:
    """What can be stored and shown of it, in one line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:LONGEST]


def _missing(id: str) -> str:
    return f"There is no dead letter {id[:40]}."
