"""What the librarian must be told: where its database is, and where qBittorrent is and writes."""

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
    """All of it, checked. `BadSettings`, in one sentence, for what can never work."""

    database: str
    qbittorrent_url: str
    username: str
    password: str = field(repr=False)
    downloads: Path
    """Where qBittorrent is to put what it downloads, as qBittorrent itself sees the path."""
    poll: float = 15.0
    """Seconds between two looks at a download."""
    allow_default_credentials: bool = False
    allow_private_addresses: bool = False
    """Whether torrents may contain trackers and peers in a private network."""

    def __post_init__(self) -> None:
        if self.database.partition("://")[0] not in SCHEMES:
            raise BadSettings(f"{PREFIX}DATABASE_URL names neither SQLite nor PostgreSQL: write sqlite:///librarian.db, or postgresql://…")
        if not (math.isfinite(self.poll) and self.poll > 0):
            raise BadSettings(f"{PREFIX}POLL is {self.poll}: give the seconds between two looks at qBittorrent, above zero.")
        if not self.downloads.is_absolute():
            raise BadSettings(f"The downloads directory is {self.downloads}: give an absolute path, since qBittorrent works in a directory of its own.")
        if Path(os.path.normpath(self.downloads)) != self.downloads:
            raise BadSettings(f"The downloads directory is {self.downloads}: write it without `..`, as qBittorrent will.")

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The settings of the variables that begin with LIBRARIAN_."""
        given = os.environ if environment is None else environment

        def read(name: str, default: str) -> str:
            return given.get(PREFIX + name) or default

        try:
            poll = float(read("POLL", "15"))
        except ValueError:
            raise BadSettings(f"{PREFIX}POLL is {read('POLL', '')!r}, which is no number: give the seconds between two looks at qBittorrent.") from None
        return cls(
            database=read("DATABASE_URL", "sqlite:///librarian.db"), qbittorrent_url=read("QBITTORRENT_URL", "http://127.0.0.1:8080"),
            username=read("QBITTORRENT_USERNAME", ""), password=read("QBITTORRENT_PASSWORD", ""),
            downloads=Path(os.path.abspath(read("DOWNLOADS", "downloads"))),  # noqa: PTH100 - `absolute` would leave `..` in it
            poll=poll, allow_default_credentials=read("ALLOW_DEFAULT_CREDENTIALS", "") == "1",
            allow_private_addresses=read("ALLOW_PRIVATE_ADDRESSES", "") == "1",
        )
