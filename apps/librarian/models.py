"""The records that the service returns: users, books, media assets and downloads."""

from dataclasses import dataclass, field
from datetime import datetime

from .tables import ACTIVE


@dataclass(frozen=True)
class User:
    """A person who may download."""

    id: int
    name: str
    token: str | None = field(default=None, repr=False)
    """Set only for a new user. It is shown once, and only its hash is stored."""


@dataclass(frozen=True)
class Book:
    """A book. Its state is `Library` if one of its media is available, else `Archive`."""

    id: int
    title: str
    author: str
    state: str


@dataclass(frozen=True)
class Asset:
    """The text or the audio of a book."""

    book_id: int
    media_type: str
    status: str
    storage_path: str | None
    source_url: str | None
    torrent_id: str | None
    updated_at: datetime


@dataclass(frozen=True)
class StartedDownload:
    """The download for a request. `created` is false if the download was active already."""

    id: str
    created: bool


@dataclass(frozen=True)
class Progress:
    """The progress of an active download in bytes, and qBittorrent's own state."""

    done: int
    total: int | None
    note: str


@dataclass(frozen=True)
class Download:
    """A row of the view `download_jobs`."""

    id: str
    user_id: int
    book_id: int
    media_type: str
    status: str
    source: str
    external_job_id: str | None
    created_at_utc: datetime
    updated_at_utc: datetime
    completed_at_utc: datetime | None
    cancel_requested_at_utc: datetime | None
    first_not_found_at_utc: datetime | None
    failure_reason: str | None
    progress: Progress | None

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def being_canceled(self) -> bool:
        """The user has canceled it, and a worker is still to end it."""
        return self.active and self.cancel_requested_at_utc is not None
