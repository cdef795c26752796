"""A reader of the fake Yandex Disk for tests: the real client on a database of its own."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
from sqlalchemy import Engine

from apps.common.database import connect
from apps.courier import tables
from apps.courier.disk import CHUNK, Disk, Item
from apps.courier.errors import CourierError
from apps.courier.settings import Settings
from apps.courier.tests.yandex import FakeDisk, Generated
from apps.courier.tokens import Tokens

T = TypeVar("T")
NAME = "Emma & Ёлка #1.pdf"
PATH = f"disk:/Library/{NAME}"
LARGE = Generated(3_000_001, seed=7)
BYTES = b"".join(LARGE.pieces())


def settings_of(fake: FakeDisk, **others: object) -> Settings:
    """Those of a courier at this disk, with everything that lets it in."""
    given: dict[str, object] = {
        "bot_token": "1:" + "b" * 30, "admins": (1,), "folder": "/Library", "yandex_token": fake.token, "yandex_client_id": fake.client_id,
        "yandex_client_secret": fake.client_secret, "yandex_refresh_token": fake.refresh_token, "yandex_url": fake.url, "yandex_oauth_url": fake.oauth_url,
    }  # fmt: skip
    return Settings(**given | others)  # type: ignore[arg-type]


def innocent(error: CourierError, fake: FakeDisk, *secrets: str) -> None:
    """No secret, no address and no name is in this error, nor is another error shown with it."""
    told = f"{error!r} {error} {vars(error)}"
    assert error.__suppress_context__ or error.__context__ is None
    for secret in (*secrets, fake.token, fake.refresh_token, fake.client_secret, fake.client_id, "127.0.0.1", "http", "Emma", "Library"):
        assert secret not in told


class Reader:
    """Asks the disk, and looks at every error."""

    def __init__(self, fake: FakeDisk, engine: Engine) -> None:
        self.fake, self.engine = fake, engine
        self.settings = settings_of(fake)
        self.stall = 5.0
        self.client: Callable[[], httpx.AsyncClient] = httpx.AsyncClient
        self.got = b""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Disk]:
        async with self.client() as http:
            yield Disk(http, self.settings.yandex_url, Tokens(self.engine, http, self.settings), stall=self.stall)

    def ask(self, question: Callable[[Disk], Awaitable[T]]) -> T:
        async def asked() -> T:
            # A short stall must be noticed soon; and whoever waits for ever is found out.
            async with asyncio.timeout(20 if self.stall < 1 else 120), self.opened() as disk:
                return await question(disk)

        secrets = self.fake.token, self.fake.refresh_token
        try:
            return asyncio.run(asked())
        except CourierError as error:
            innocent(error, self.fake, *secrets)
            raise

    def read(self, *, md5: bool = True, then: Callable[[int], None] = lambda have: None) -> bytes:
        """The file's bytes; `then` is told after each chunk how many there are. What came before an error is in `got`."""

        async def whole(disk: Disk) -> bytes:
            item, got = await disk.resource(PATH), bytearray()
            item = item if md5 else Item(item.name, item.path, item.is_folder, item.size, None)
            try:
                async with aclosing(disk.body(item, await disk.link(PATH))) as body:
                    async for chunk in body:
                        assert 0 < len(chunk) <= CHUNK
                        got += chunk
                        then(len(got))
            finally:
                self.got = bytes(got)
            return self.got

        return self.ask(whole)


@contextmanager
def reading(directory: Path) -> Iterator[Reader]:
    """A reader, and a disk with one large file."""
    engine = connect(f"sqlite:///{directory}/courier.db")
    tables.migrate(engine)
    with FakeDisk() as fake:
        fake.put(PATH, LARGE)
        yield Reader(fake, engine)
    engine.dispose()
