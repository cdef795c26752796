"""A courier for tests: an empty database, a fake Telegram and Yandex Disk, a worker, and a clock that the test sets."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from apps.common.database import insert
from apps.common.tests.app_kit import AppKit
from apps.common.tests.kit_database import migrated_database
from apps.courier import tables
from apps.courier.assembly import assemble
from apps.courier.catalogue import Catalogue, Page
from apps.courier.jobs import Courier
from apps.courier.service import Service
from apps.courier.service_models import Decision, DeliveryView, Person, UpdateTime, User
from apps.courier.settings import Settings
from apps.courier.tests.fake_telegram import FakeTelegram
from apps.courier.tests.fake_yandex import FakeDisk, GeneratedContent
from interlock.testing import KitClock, KitWorker

ADMIN, READER, STRANGER = 1, 7, 99
FOLDER = "/Library"
# Paths of transitions.
QUEUED = [(None, "QUEUED")]
CLAIMED = [*QUEUED, ("QUEUED", "CLAIMED")]
DOWNLOADING = [*CLAIMED, ("CLAIMED", "DOWNLOADING")]
STREAMING = [*DOWNLOADING, ("DOWNLOADING", "STREAMING")]
DELIVERED = [*STREAMING, ("STREAMING", "DELIVERED")]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class CourierKit(AppKit):
    """The courier on one database with both fake servers."""

    courier: Courier
    service: Service
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

    # ------------------------------------------------------------ users and files
    def update_time(self) -> UpdateTime:
        """Return the current time with the next update ID."""
        return UpdateTime(self.clock.now(), next(self._updates))

    def add_user(
        self, id: int = READER, status: Decision | None = "ACTIVE", *, name: str = "Ann", language: str = "en"
    ) -> User:
        """Add a user who has written to the bot, with this decision, if any."""
        self.telegram.person(id, name=name, language=language).spoke = True
        made, _ = self.service.register(Person(id, name, language), self.update_time())
        return (self.service.decide(id, status, by=ADMIN, at=self.update_time()) if status else None) or made

    def add_file(
        self, name: str = "emma.pdf", content: bytes | GeneratedContent = b"It is a truth universally acknowledged"
    ) -> int:
        """Add a file to the disk and to the catalogue. Return its ID."""
        node, files = self.yandex.put(f"{FOLDER}/{name}", content), tables.files
        path = f"disk:{node.path}"
        size = len(content) if isinstance(content, bytes) else content.size
        with self.courier.engine.begin() as tx:
            row = {
                "path": path,
                "path_hash": tables.path_hash(path),
                "name": name.rpartition("/")[2],
                "is_folder": False,
                "size": size,
                "md5": node.md5,
            }
            tx.execute(insert(tx, files).values(row).on_conflict_do_nothing())
            return tx.execute(select(files.c.id).where(files.c.path_hash == row["path_hash"])).scalar_one()

    def browse(self, folder_id: int | None = None, page: int = 1, size: int = 8) -> Page:
        """Return a page of the catalogue, listed with the real disk client."""

        async def ask() -> Page:
            async with self.courier.clients.open():
                return await self.catalogue.page(self.courier.clients.disk, folder_id, page, size)

        return asyncio.run(ask())

    def order(self, user_id: int | None = None, file_id: int | None = None, nonce: str | None = None) -> str:
        """Order a file. Adds a user and a file unless they are given. Return the job ID."""
        user_id = self.add_user().id if user_id is None else user_id
        file_id = self.add_file() if file_id is None else file_id
        return self.order_view(user_id, file_id, nonce or f"nonce {next(_numbers)}").job_id

    def order_view(self, user_id: int, file_id: int, nonce: str) -> DeliveryView:
        return self.service.order(user_id, file_id, nonce)[0]

    def row_counts(self) -> dict[str, int]:
        """Return the number of rows of every table."""
        return self.count_rows(*tables.metadata.tables)


def settings(url: str, telegram: FakeTelegram, yandex: FakeDisk, **given: Any) -> Settings:
    """Settings for the fake servers, with these changes."""
    whole = {
        "bot_token": telegram.token,
        "admins": (ADMIN,),
        "folder": FOLDER,
        "database_url": url,
        "telegram_url": telegram.url,
        "yandex_url": yandex.url,
        "yandex_oauth_url": yandex.oauth_url,
        "yandex_token": yandex.token,
        "yandex_client_id": yandex.client_id,
        "yandex_client_secret": yandex.client_secret,
        "yandex_refresh_token": yandex.refresh_token,
    }
    return Settings(**{**whole, **given})


@contextmanager
def open_kit(url: str, telegram: FakeTelegram, yandex: FakeDisk, directory: Path, **given: Any) -> Iterator[CourierKit]:
    """Open a kit on an empty, migrated database with a stopped clock. The library's folder exists and is empty."""
    chosen = settings(url, telegram, yandex, **given)
    yandex.mkdir(chosen.folder)
    courier, clock = assemble(chosen), KitClock()
    try:
        with migrated_database(courier, clock, directory, url):
            catalogue = Catalogue(courier.engine, chosen.folder, now=clock.now)
            yield CourierKit(
                courier,
                Service(courier, chosen, now=clock.now),
                catalogue,
                clock,
                KitWorker(courier.app, clock),
                chosen,
                telegram,
                yandex,
            )
    finally:
        courier.close()
