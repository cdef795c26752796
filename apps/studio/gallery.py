"""The gallery: a user's jobs and images. Another user's jobs are reported as not found."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from sqlalchemy import RowMapping, select, type_coerce

from apps.common.database import UtcDateTime, engine_table, read_only
from apps.common.database import now as wall_clock
from apps.common.job_ids import is_id

from . import tables
from .errors import NotFound
from .jobs import Studio
from .signed_links import Signer
from .tables import assets, jobs, orders

MAX_ROWS = 500
"""The largest number of rows of one query."""
Changes = dict[str, datetime]
"""The time of each job's last change, by job ID. The database rejects a change that does not increase this time."""
INTERRUPTED = "It was interrupted and resumes automatically."
REASONS = {
    "failed": "An attempt failed. It is retried automatically.",
    "rejected": "It was rejected as unsafe. Its credits are not refunded.",
    "dead_letter": "It could not be made. Its credits were refunded.",
}


@dataclass(frozen=True)
class Job:
    """A row of the view `studio_jobs`."""

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
    """The path of the image within the storage."""
    last_error: str | None
    """The error as the provider or the storage reported it, for administrators only."""
    version: int
    redrive_of: str | None

    @property
    def interrupted(self) -> bool:
        """Whether the job waits without a failure, because its worker was stopped and returned it."""
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
    """The stored file of an image, with its size and checksum."""

    path: str
    content_type: str
    bytes: int
    sha256: str


class Gallery:
    """Reads a user's jobs, images and changes."""

    def __init__(self, studio: Studio, *, now: Callable[[], datetime] = wall_clock) -> None:
        self._reading, self._now = read_only(studio.engine), now
        job = engine_table(studio.engine.dialect, "jobs", "id", "updated_at", "finished_at")
        self._changes = select(orders.c.job_id, type_coerce(job.c.updated_at, UtcDateTime)).join(
            job, job.c.id == orders.c.job_id
        )
        self._finished_at = job.c.finished_at

    # ------------------------------------------------------------ jobs
    def jobs(self, user_id: int, *, limit: int = 50, before: str | None = None) -> list[Job]:
        """A user's jobs, newest first; with `before`, only jobs older than this one."""
        asked = VIEW.where(jobs.c.userId == user_id).order_by(jobs.c.id.desc()).limit(_clamp(limit))
        if before is not None:
            asked = asked.where(jobs.c.id < _check_id(before))
        with self._reading.begin() as tx:
            return [job_from_row(row) for row in tx.execute(asked).mappings()]

    def job(self, user_id: int, id: str) -> Job:
        """One job of this user."""
        with self._reading.begin() as tx:
            found = (
                tx.execute(VIEW.where(jobs.c.id == _check_id(id), jobs.c.userId == user_id)).mappings().one_or_none()
            )
        if found is None:
            raise NotFound(_not_found_message(id))
        return job_from_row(found)

    @staticmethod
    def reason(job: Job) -> str | None:
        """Explain to the user why there is no image. It never contains the provider's message."""
        return INTERRUPTED if job.interrupted else REASONS.get(job.status)

    def jobs_by_id(self, user_id: int, ids: Collection[str]) -> list[Job]:
        """A user's jobs with these IDs, oldest first."""
        found: list[Job] = []
        with self._reading.begin() as tx:
            for some in _chunks(ids):
                found += map(
                    job_from_row, tx.execute(VIEW.where(jobs.c.userId == user_id, jobs.c.id.in_(some))).mappings()
                )
        return sorted(found, key=lambda job: job.id)

    # ------------------------------------------------------------ changes
    def changes(self, user_id: int, limit: int = 100) -> Changes:
        """When each of a user's newest jobs last changed. The query is cheap enough to run often."""
        asked = self._changes.where(orders.c.user_id == user_id).order_by(orders.c.job_id.desc()).limit(_clamp(limit))
        with self._reading.begin() as tx:
            return dict(tx.execute(asked).all())

    def changes_by_id(self, user_id: int, ids: Collection[str]) -> Changes:
        """When each of a user's jobs with these IDs last changed."""
        found: Changes = {}
        with self._reading.begin() as tx:
            for some in _chunks(ids):
                found.update(
                    tx.execute(self._changes.where(orders.c.user_id == user_id, orders.c.job_id.in_(some))).all()
                )
        return found

    def changes_of_jobs(self, ids: Collection[str]) -> Changes:
        """When each of these jobs last changed, whichever user they belong to."""
        found: Changes = {}
        with self._reading.begin() as tx:
            for some in _chunks(ids):
                found.update(tx.execute(self._changes.where(orders.c.job_id.in_(some))).all())
        return found

    def changes_of_open_jobs(self, user_id: int) -> Changes:
        """When each of a user's open jobs last changed. It reads all orders of the user, so it must not run often."""
        asked = self._changes.where(orders.c.user_id == user_id, self._finished_at.is_(None))
        with self._reading.begin() as tx:
            return dict(tx.execute(asked).all())

    # ------------------------------------------------------------ images
    def assets(self, user_id: int, limit: int = 50, before: str | None = None) -> list[Asset]:
        """A user's images, newest order first."""
        asked = _ASSETS.where(assets.c.user_id == user_id).order_by(assets.c.job_id.desc()).limit(_clamp(limit))
        if before is not None:
            asked = asked.where(assets.c.job_id < _check_id(before))
        with self._reading.begin() as tx:
            return [Asset(**row) for row in tx.execute(asked).mappings()]

    def asset(self, job_id: str) -> AssetFile:
        """The stored file of a job's image, for any user. The caller has checked a signed link."""
        columns = assets.c.path, assets.c.content_type, assets.c.bytes, assets.c.sha256
        with self._reading.begin() as tx:
            found = tx.execute(select(*columns).where(assets.c.job_id == _check_id(job_id))).mappings().one_or_none()
        if found is None:
            raise NotFound(_not_found_message(job_id))
        return AssetFile(**found)

    def result_url(self, job: Job) -> str | None:
        """A signed link to the image of a completed job. Anyone with the link can open it until it expires."""
        return None if job.result_path is None else self.signer.sign(job.id, self._now())

    @cached_property
    def signer(self) -> Signer:
        """Signs links with the secret from the database, which all processes share."""
        with self._reading.begin() as tx:
            return Signer(tables.signing_secret(tx))


# ---------------------------------------------------------------- rows
_NAMES = {
    "userId": "user_id",
    "retryCount": "retry_count",
    "maxRetries": "max_retries",
    "createdAt": "created_at",
    "startedAt": "started_at",
    "updatedAt": "updated_at",
    "finishedAt": "finished_at",
    "dueAt": "due_at",
    "resultUrl": "result_path",
    "lastError": "last_error",
    "redriveOf": "redrive_of",
}
_COLUMNS = [column.label(_NAMES.get(column.name, column.name)) for column in jobs.c if column.name != "idempotencyKey"]
VIEW = select(*_COLUMNS)
_ASSETS = select(
    assets.c.job_id,
    orders.c.prompt,
    assets.c.content_type,
    assets.c.width,
    assets.c.height,
    assets.c.bytes,
    assets.c.created_at,
).join(orders, orders.c.job_id == assets.c.job_id)
_FIELDS = tuple(Job.__dataclass_fields__)


def job_from_row(row: RowMapping) -> Job:
    """Convert a row with at least the columns of `VIEW`."""
    return Job(**{name: row[name] for name in _FIELDS})


def _check_id(id: str) -> str:
    if not is_id(id):
        raise NotFound(_not_found_message(id))
    return id


def _not_found_message(id: str) -> str:
    return f"You have no image {id[:40]}. Check the list of your images."


def _chunks(ids: Collection[str]) -> Iterator[list[str]]:
    """Split IDs into lists that are small enough for one statement."""
    every = list(ids)
    return (every[at : at + MAX_ROWS] for at in range(0, len(every), MAX_ROWS))


def _clamp(limit: int) -> int:
    return max(1, min(limit, MAX_ROWS))
