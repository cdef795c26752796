"""The gallery: what has become of a user's orders, and the images themselves. Whatever is another's is not found, as what does not exist."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from sqlalchemy import RowMapping, select, type_coerce

from apps.common.database import Utc, of_engine, reading
from apps.common.database import now as wall_clock
from apps.common.ids import is_id

from . import tables
from .errors import NotFound
from .jobs import Studio
from .signing import Signer
from .tables import assets, jobs, orders

MOST = 500
"""Rows that are told at once."""
Changes = dict[str, datetime]
"""Of each job by its id, when it changed last. The engine's tables refuse a change that does not make this moment grow."""
INTERRUPTED = "It was interrupted, and goes on by itself."
REASONS = {
    "failed": "A try went wrong. It is tried again by itself.",
    "rejected": "It was refused as unsafe, so its credits are not given back.",
    "dead_letter": "It could not be made, and its credits are back.",
}


@dataclass(frozen=True)
class Job:
    """A job, as the view `studio_jobs` has it."""

    id: str
    user_id: int
    prompt: str
    size: str
    seed: int | None
    cost: int
    status: str
    retry_count: int
    max_retries: int
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    finished_at: datetime | None
    due_at: datetime
    result_path: str | None
    """Where the image is, within the originals."""
    last_error: str | None
    """In the words of whoever said it: for administrators."""
    version: int
    redrive_of: str | None

    @property
    def interrupted(self) -> bool:
        """Whether it rests though nothing has failed: its worker was stopped in good order, and gave it back."""
        return self.status == "failed" and self.retry_count == 0


@dataclass(frozen=True)
class Asset:
    """An image in a user's library."""

    job_id: str
    prompt: str
    content_type: str
    width: int
    height: int
    bytes: int
    created_at: datetime


@dataclass(frozen=True)
class AssetFile:
    """Where an image is kept, and what it must be."""

    path: str
    content_type: str
    bytes: int
    sha256: str


class Gallery:
    """What a user sees."""

    def __init__(self, studio: Studio, *, now: Callable[[], datetime] = wall_clock) -> None:
        self._reading, self._now = reading(studio.engine), now
        job = of_engine(studio.engine.dialect, "jobs", "id", "updated_at", "finished_at")
        self._changes = select(orders.c.job_id, type_coerce(job.c.updated_at, Utc)).join(job, job.c.id == orders.c.job_id)
        self._finished_at = job.c.finished_at

    # ------------------------------------------------------------ jobs
    def jobs(self, user_id: int, *, limit: int = 50, before: str | None = None) -> list[Job]:
        """A user's jobs, the newest first; those that were made `before` this one, if one is named."""
        asked = VIEW.where(jobs.c.userId == user_id).order_by(jobs.c.id.desc()).limit(_bounded(limit))
        if before is not None:
            asked = asked.where(jobs.c.id < _id(before))
        with self._reading.begin() as tx:
            return [job_of(row) for row in tx.execute(asked).mappings()]

    def job(self, user_id: int, id: str) -> Job:
        """One job of this user."""
        with self._reading.begin() as tx:
            found = tx.execute(VIEW.where(jobs.c.id == _id(id), jobs.c.userId == user_id)).mappings().one_or_none()
        if found is None:
            raise NotFound(_missing(id))
        return job_of(found)

    @staticmethod
    def reason(job: Job) -> str | None:
        """Why it is not made, or not yet, in words for its user; never in the provider's."""
        return INTERRUPTED if job.interrupted else REASONS.get(job.status)

    def these(self, user_id: int, ids: Collection[str]) -> list[Job]:
        """Those of a user's jobs that have one of these ids, the oldest first."""
        found: list[Job] = []
        with self._reading.begin() as tx:
            for some in _chunks(ids):
                found += map(job_of, tx.execute(VIEW.where(jobs.c.userId == user_id, jobs.c.id.in_(some))).mappings())
        return sorted(found, key=lambda job: job.id)

    # ------------------------------------------------------------ what changes
    def changes(self, user_id: int, limit: int = 100) -> Changes:
        """When each of a user's newest jobs changed last: cheap, so that it may be asked often."""
        asked = self._changes.where(orders.c.user_id == user_id).order_by(orders.c.job_id.desc()).limit(_bounded(limit))
        with self._reading.begin() as tx:
            return dict(tx.execute(asked).all())

    def changes_of(self, user_id: int, ids: Collection[str]) -> Changes:
        """The same of those that have one of these ids."""
        found: Changes = {}
        with self._reading.begin() as tx:
            for some in _chunks(ids):
                found.update(tx.execute(self._changes.where(orders.c.user_id == user_id, orders.c.job_id.in_(some))).all())
        return found

    def changed(self, ids: Collection[str]) -> Changes:
        """When each of these jobs last changed, of any user."""
        found: Changes = {}
        with self._reading.begin() as tx:
            for some in _chunks(ids):
                found.update(tx.execute(self._changes.where(orders.c.job_id.in_(some))).all())
        return found

    def changes_of_unended(self, user_id: int) -> Changes:
        """The same of all that have not ended. It walks through all that the user ever ordered: not to be asked often."""
        asked = self._changes.where(orders.c.user_id == user_id, self._finished_at.is_(None))
        with self._reading.begin() as tx:
            return dict(tx.execute(asked).all())

    # ------------------------------------------------------------ images
    def assets(self, user_id: int, limit: int = 50, before: str | None = None) -> list[Asset]:
        """A user's images, the newest order first."""
        asked = _ASSETS.where(assets.c.user_id == user_id).order_by(assets.c.job_id.desc()).limit(_bounded(limit))
        if before is not None:
            asked = asked.where(assets.c.job_id < _id(before))
        with self._reading.begin() as tx:
            return [Asset(**row) for row in tx.execute(asked).mappings()]

    def asset(self, job_id: str) -> AssetFile:
        """Where the image of a job is, whoever's it is: whoever asks has shown a signed link."""
        columns = assets.c.path, assets.c.content_type, assets.c.bytes, assets.c.sha256
        with self._reading.begin() as tx:
            found = tx.execute(select(*columns).where(assets.c.job_id == _id(job_id))).mappings().one_or_none()
        if found is None:
            raise NotFound(_missing(job_id))
        return AssetFile(**found)

    def result_url(self, job: Job) -> str | None:
        """A link to the image of a completed job, good for a while and for whoever has it."""
        return None if job.result_path is None else self.signer.signed(job.id, self._now())

    @cached_property
    def signer(self) -> Signer:
        """Of the links. Its secret is in the database, so that every process signs alike."""
        with self._reading.begin() as tx:
            return Signer(tables.secret_of(tx))


# ---------------------------------------------------------------- as rows
_NAMES = {
    "userId": "user_id", "retryCount": "retry_count", "maxRetries": "max_retries", "createdAt": "created_at", "startedAt": "started_at",
    "updatedAt": "updated_at", "finishedAt": "finished_at", "dueAt": "due_at", "resultUrl": "result_path", "lastError": "last_error", "redriveOf": "redrive_of",
}
_COLUMNS = [column.label(_NAMES.get(column.name, column.name)) for column in jobs.c if column.name != "idempotencyKey"]
VIEW = select(*_COLUMNS)
_ASSETS = select(
    assets.c.job_id, orders.c.prompt, assets.c.content_type, assets.c.width, assets.c.height, assets.c.bytes, assets.c.created_at,
).join(orders, orders.c.job_id == assets.c.job_id)
_FIELDS = tuple(Job.__dataclass_fields__)


def job_of(row: RowMapping) -> Job:
    """The job of a row that has at least the columns of `VIEW`."""
    return Job(**{name: row[name] for name in _FIELDS})



def _id(id: str) -> str:
    if not is_id(id):
        raise NotFound(_missing(id))
    return id


def _missing(id: str) -> str:
    return f"You have no image {id[:40]}: look at the list of yours."


def _chunks(ids: Collection[str]) -> Iterator[list[str]]:
    """Few enough for one statement each."""
    every = list(ids)
    return (every[at : at + MOST] for at in range(0, len(every), MOST))


def _bounded(limit: int) -> int:
    return max(1, min(limit, MOST))
