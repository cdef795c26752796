"""The token of Yandex Disk in tests: processes that share it, and a time that a test sets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import httpx
from sqlalchemy import Engine, select, update

from apps.common.database import connect
from apps.courier import tables
from apps.courier.errors import CourierError
from apps.courier.settings import Settings
from apps.courier.tests.reading import innocent, settings_of
from apps.courier.tests.yandex import FakeDisk
from apps.courier.tokens import Tokens

T = TypeVar("T")
NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@dataclass
class Keyring:
    """Processes that share one database and one set time: each `ask` is one of its own."""

    fake: FakeDisk
    engine: Engine
    settings: Settings
    now: datetime = NOON
    trial: bool = False

    def ask(self, question: Callable[[Tokens], Awaitable[T]]) -> T:
        async def asked() -> T:
            # Whoever waits for what never comes is found out.
            async with asyncio.timeout(30), httpx.AsyncClient() as http:
                return await question(Tokens(self.engine, http, self.settings, trial=self.trial, now=lambda: self.now))

        secrets = self.fake.token, self.fake.refresh_token
        try:
            return asyncio.run(asked())
        except CourierError as error:
            innocent(error, self.fake, *secrets)
            raise

    def access(self) -> str:
        return self.ask(lambda tokens: tokens.access())

    def renewed(self, stale: str) -> str:
        return self.ask(lambda tokens: tokens.renewed(stale))

    def expires_at(self) -> datetime | None:
        async def expires_at(tokens: Tokens) -> datetime | None:
            return tokens.expires_at()

        return self.ask(expires_at)

    def row(self) -> dict[str, object]:
        with self.engine.begin() as tx:
            return dict(tx.execute(select(tables.tokens)).one()._mapping)

    def write(self, **values: object) -> None:
        with self.engine.begin() as tx:
            tx.execute(update(tables.tokens).values(**values))

    @property
    def renewals(self) -> int:
        """How often a renewal was asked for."""
        return len(self.fake.asked("token"))


@contextmanager
def keyring(database_url: str) -> Iterator[Keyring]:
    """At a database without a token, and a Yandex of its own."""
    engine = connect(database_url)
    tables.migrate(engine)
    with FakeDisk() as fake:
        yield Keyring(fake, engine, settings_of(fake))
    engine.dispose()
