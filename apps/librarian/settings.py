"""The settings of the librarian, from environment variables that begin with LIBRARIAN_."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from apps.common.database import SCHEMES

from .errors import BadSettings

PREFIX = "LIBRARIAN_"


@dataclass(frozen=True)
class Settings:
    """The validated settings. Raises BadSettings for an invalid value."""

    database: str
    qbittorrent_url: str
    username: str
    password: str = field(repr=False)
    downloads: Path
    """The directory for downloads, as qBittorrent sees it."""
    poll: float = 15.0
    """Seconds between two checks of a download."""
    allow_default_credentials: bool = False
    allow_private_addresses: bool = False
    """Whether torrents may contain trackers and peers in a private network."""

    def __post_init__(self) -> None:
        if self.database.partition("://")[0] not in SCHEMES:
            raise BadSettings(
                f"{PREFIX}DATABASE_URL must be a SQLite or PostgreSQL URL. "
                "Write sqlite:///librarian.db, or postgresql://user:password@host/name."
            )
        if not (math.isfinite(self.poll) and self.poll > 0):
            raise BadSettings(f"{PREFIX}POLL is {self.poll}. Write the seconds between two checks, greater than zero.")
        if not self.downloads.is_absolute():
            raise BadSettings(
                f"The downloads directory {self.downloads} is relative. "
                "Write an absolute path: qBittorrent has another working directory."
            )
        if Path(os.path.normpath(self.downloads)) != self.downloads:
            raise BadSettings(
                f"The downloads directory {self.downloads} contains `..`. Write it without, as qBittorrent does."
            )

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The settings of this environment."""
        given = os.environ if environment is None else environment

        def read(name: str, default: str) -> str:
            return given.get(PREFIX + name) or default

        try:
            poll = float(read("POLL", "15"))
        except ValueError:
            raise BadSettings(
                f"{PREFIX}POLL is {read('POLL', '')!r}, which is not a number. Write the seconds between two checks."
            ) from None
        return cls(
            database=read("DATABASE_URL", "sqlite:///librarian.db"),
            qbittorrent_url=read("QBITTORRENT_URL", "http://127.0.0.1:8080"),
            username=read("QBITTORRENT_USERNAME", ""),
            password=read("QBITTORRENT_PASSWORD", ""),
            downloads=Path(os.path.abspath(read("DOWNLOADS", "downloads"))),  # noqa: PTH100 - `absolute` keeps `..`
            poll=poll,
            allow_default_credentials=read("ALLOW_DEFAULT_CREDENTIALS", "") == "1",
            allow_private_addresses=read("ALLOW_PRIVATE_ADDRESSES", "") == "1",
        )
