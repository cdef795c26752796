"""A reader of the fake Yandex Disk for tests: the real client on its own database."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
from sqlalchemy import Engine

from apps.common.database import make_engine
from apps.courier import tables
from apps.courier.clients.yandex_disk import CHUNK, Disk, Item
from apps.courier.clients.yandex_tokens import Tokens
from apps.courier.errors import CourierError
from apps.courier.settings import Settings
from apps.courier.tests.fake_yandex import FakeDisk, GeneratedContent

T = TypeVar("T")
NAME = "Emma & Ёлка #1.pdf"
PATH = f"disk:/Library/{NAME}"
LARGE_FILE = GeneratedContent(3_000_001, seed=7)
LARGE_CONTENT = b"".join(LARGE_FILE.pieces())


def disk_settings(fake: FakeDisk, **others: object) -> Settings:
    """Settings with full access to this fake disk."""
    given: dict[str, object] = {
        "bot_token": "1:" + "b" * 30,
        "admins": (1,),
        "folder": "/Library",
        "yandex_token": fake.token,
        "yandex_client_id": fake.client_id,
        "yandex_client_secret": fake.client_secret,
        "yandex_refresh_token": fake.refresh_token,
        "yandex_url": fake.url,
        "yandex_oauth_url": fake.oauth_url,
    }
    return Settings(**given | others)  # type: ignore[arg-type]


def assert_no_secrets(error: CourierError, fake: FakeDisk, *secrets: str) -> None:
    """Check that an error contains no secret, no address and no name, and hides its cause."""
    text = f"{error!r} {error} {vars(error)}"
    assert error.__suppress_context__ or error.__context__ is None
    for secret in (
        *secrets,
        fake.token,
        fake.refresh_token,
        fake.client_secret,
        fake.client_id,
        "127.0.0.1",
        "http",
        "Emma",
        "Library",
    ):
        assert secret not in text


class DiskReader:
    """Calls the disk client, and checks every error for secrets."""

    def __init__(self, fake: FakeDisk, engine: Engine) -> None:
        self.fake, self.engine = fake, engine
        self.settings = disk_settings(fake)
        self.stall = 5.0
        self.client: Callable[[], httpx.AsyncClient] = httpx.AsyncClient
        self.content = b""

    @asynccontextmanager
    async def open_disk(self) -> AsyncGenerator[Disk]:
        async with self.client() as http:
            yield Disk(http, self.settings.yandex_url, Tokens(self.engine, http, self.settings), stall=self.stall)

    def ask(self, call: Callable[[Disk], Awaitable[T]]) -> T:
        async def run() -> T:
            # A short stall must be detected soon, and a hanging call must fail.
            async with asyncio.timeout(20 if self.stall < 1 else 120), self.open_disk() as disk:
                return await call(disk)

        secrets = self.fake.token, self.fake.refresh_token
        try:
            return asyncio.run(run())
        except CourierError as error:
            assert_no_secrets(error, self.fake, *secrets)
            raise

    def read(self, *, md5: bool = True, then: Callable[[int], None] = lambda have: None) -> bytes:
        """Read the file. `then` gets the number of bytes after each chunk. After an error, the bytes so far are in
        `content`."""

        async def whole(disk: Disk) -> bytes:
            item, content = await disk.get_item(PATH), bytearray()
            item = item if md5 else Item(item.name, item.path, item.is_folder, item.size, None)
            try:
                async with aclosing(disk.read_content(item, await disk.download_link(PATH))) as body:
                    async for chunk in body:
                        assert 0 < len(chunk) <= CHUNK
                        content += chunk
                        then(len(content))
            finally:
                self.content = bytes(content)
            return self.content

        return self.ask(whole)


@contextmanager
def open_disk_reader(directory: Path) -> Iterator[DiskReader]:
    """Open a reader and a fake disk with one large file."""
    engine = make_engine(f"sqlite:///{directory}/courier.db")
    tables.migrate(engine)
    with FakeDisk() as fake:
        fake.put(PATH, LARGE_FILE)
        yield DiskReader(fake, engine)
    engine.dispose()
