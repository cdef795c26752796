"""An office of the courier for tests: the courier on an empty database, a Telegram and a Yandex Disk of its own, a worker, and time that a test sets."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from apps.common.database import insert
from apps.common.tests.kits import Kit
from apps.courier import tables
from apps.courier.assembly import assembled
from apps.courier.catalogue import Catalogue, Page
from apps.courier.desk import Decision, Desk, Moment, Person, Shown, User
from apps.courier.jobs import Courier
from apps.courier.settings import Settings
from apps.courier.tests.bot_api import FakeTelegram
from apps.courier.tests.yandex import FakeDisk, Generated
from interlock.testing import KitClock, KitWorker, fresh

ADMIN, READER, STRANGER = 1, 7, 99
FOLDER = "/Library"
# The ways that deliveries go.
QUEUED = [(None, "QUEUED")]
CLAIMED = [*QUEUED, ("QUEUED", "CLAIMED")]
BEGUN = [*CLAIMED, ("CLAIMED", "DOWNLOADING")]
STREAMED = [*BEGUN, ("DOWNLOADING", "STREAMING")]
DELIVERED = [*STREAMED, ("STREAMING", "DELIVERED")]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Office(Kit):
    """The courier at one database, between its two outsides."""

    courier: Courier
    desk: Desk
    catalogue: Catalogue
    clock: KitClock
    worker: KitWorker
    settings: Settings
    telegram: FakeTelegram
    yandex: FakeDisk
    _updates: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    @property
    def application(self) -> Courier:
        return self.courier

    # ------------------------------------------------------------ people and files
    def moment(self) -> Moment:
        """Now, by the next update."""
        return Moment(self.clock.now(), next(self._updates))

    def user(self, id: int = READER, status: Decision | None = "ACTIVE", *, name: str = "Ann", language: str = "en") -> User:
        """Somebody who has asked, and about whom the administrator has decided this, if anything. They have spoken to the bot."""
        self.telegram.person(id, name=name, language=language).spoke = True
        made, _ = self.desk.register(Person(id, name, language), self.moment())
        return (self.desk.decide(id, status, by=ADMIN, at=self.moment()) if status else None) or made

    def file(self, name: str = "emma.pdf", content: bytes | Generated = b"It is a truth universally acknowledged") -> int:
        """A file on the disk that the catalogue knows. Its id."""
        node, files = self.yandex.put(f"{FOLDER}/{name}", content), tables.files
        path = f"disk:{node.path}"
        size = len(content) if isinstance(content, bytes) else content.size
        with self.courier.engine.begin() as tx:
            row = {"path": path, "path_hash": tables.path_hash(path), "name": name.rpartition("/")[2], "is_folder": False, "size": size, "md5": node.md5}
            tx.execute(insert(tx, files).values(row).on_conflict_do_nothing())
            return tx.execute(select(files.c.id).where(files.c.path_hash == row["path_hash"])).scalar_one()

    def browse(self, folder_id: int | None = None, page: int = 1, size: int = 8) -> Page:
        """A page of the catalogue, from the real disk client."""

        async def ask() -> Page:
            async with self.courier.outside.open():
                return await self.catalogue.page(self.courier.outside.disk, folder_id, page, size)

        return asyncio.run(ask())

    def order(self, user_id: int | None = None, file_id: int | None = None, nonce: str | None = None) -> str:
        """A delivery's id; of a file and for a user made on the spot, unless they are given."""
        user_id = self.user().id if user_id is None else user_id
        file_id = self.file() if file_id is None else file_id
        return self.ordered(user_id, file_id, nonce or f"nonce {next(_numbers)}").job_id

    def ordered(self, user_id: int, file_id: int, nonce: str) -> Shown:
        return self.desk.order(user_id, file_id, nonce)[0]

    def stored(self) -> dict[str, int]:
        """How many rows there are of everything."""
        return self.counted(*tables.metadata.tables)


def settings(url: str, telegram: FakeTelegram, yandex: FakeDisk, **given: Any) -> Settings:
    """Settings that lead to the outsides of a test; with some of them given otherwise."""
    whole = {
        "bot_token": telegram.token, "admins": (ADMIN,), "folder": FOLDER, "database_url": url, "telegram_url": telegram.url,
        "yandex_url": yandex.url, "yandex_oauth_url": yandex.oauth_url, "yandex_token": yandex.token, "yandex_client_id": yandex.client_id,
        "yandex_client_secret": yandex.client_secret, "yandex_refresh_token": yandex.refresh_token,
    }
    return Settings(**{**whole, **given})


@contextmanager
def office(url: str, telegram: FakeTelegram, yandex: FakeDisk, directory: Path, **given: Any) -> Iterator[Office]:
    """An office on an empty database, migrated, with its time standing still. The library's folder is there, and empty."""
    chosen = settings(url, telegram, yandex, **given)
    yandex.mkdir(chosen.folder)
    courier, clock = assembled(chosen), KitClock()
    try:
        with fresh(courier.app, clock, directory, url):
            courier.migrate()
            catalogue = Catalogue(courier.engine, chosen.folder, now=clock.now)
            yield Office(courier, Desk(courier, chosen, now=clock.now), catalogue, clock, KitWorker(courier.app, clock), chosen, telegram, yandex)
    finally:
        courier.close()
