"""Helpers for the Yandex Disk token in tests: processes that share it, and a clock that the test sets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import httpx
from sqlalchemy import Engine, select, update

from apps.common.database import make_engine
from apps.courier import tables
from apps.courier.clients.yandex_tokens import Tokens
from apps.courier.errors import CourierError
from apps.courier.settings import Settings
from apps.courier.tests.disk_helpers import assert_no_secrets, disk_settings
from apps.courier.tests.fake_yandex import FakeDisk

T = TypeVar("T")
NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@dataclass
class TokenKit:
    """Processes that share one database and one clock. Each call is one process."""

    fake: FakeDisk
    engine: Engine
    settings: Settings
    now: datetime = NOON
    dry_run: bool = False

    def ask(self, call: Callable[[Tokens], Awaitable[T]]) -> T:
        async def run() -> T:
            # A hanging call must fail.
            async with asyncio.timeout(30), httpx.AsyncClient() as http:
                return await call(Tokens(self.engine, http, self.settings, dry_run=self.dry_run, now=lambda: self.now))

        secrets = self.fake.token, self.fake.refresh_token
        try:
            return asyncio.run(run())
        except CourierError as error:
            assert_no_secrets(error, self.fake, *secrets)
            raise

    def get_token(self) -> str:
        return self.ask(lambda tokens: tokens.get_token())

    def renew(self, stale: str) -> str:
        return self.ask(lambda tokens: tokens.renew(stale))

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
        """The number of renewal requests."""
        return len(self.fake.requests_for("token"))


@contextmanager
def open_token_kit(database_url: str) -> Iterator[TokenKit]:
    """Open a kit on a database without a token, with its own fake Yandex."""
    engine = make_engine(database_url)
    tables.migrate(engine)
    with FakeDisk() as fake:
        yield TokenKit(fake, engine, disk_settings(fake))
    engine.dispose()
