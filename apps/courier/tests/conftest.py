"""Fixtures: a courier kit on SQLite and on PostgreSQL, with a fake Telegram and a fake Yandex Disk over HTTP."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from apps.common.database import make_engine
from apps.common.tests.command_runner import CommandResult, RunCommand, run_command
from apps.common.tests.databases import database_url
from apps.courier import tables
from apps.courier.cli import main
from apps.courier.tests import courier_kit
from apps.courier.tests.courier_kit import CourierKit
from apps.courier.tests.fake_telegram import FakeTelegram
from apps.courier.tests.fake_yandex import FakeDisk
from tests.conftest import postgres_url, quick_path

__all__ = ["database_url", "postgres_url", "quick_path"]


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine of a database with the courier's tables."""
    made = make_engine(database_url)
    tables.migrate(made)
    yield made
    made.dispose()


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    with FakeTelegram() as fake:
        yield fake


@pytest.fixture
def yandex() -> Iterator[FakeDisk]:
    with FakeDisk() as fake:
        yield fake


@pytest.fixture
def kit(database_url: str, telegram: FakeTelegram, yandex: FakeDisk, tmp_path: Path) -> Iterator[CourierKit]:
    with courier_kit.open_kit(database_url, telegram, yandex, tmp_path) as made:
        yield made


# ---------------------------------------------------------------- commands
@pytest.fixture
def environment(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    database_url: str,
    telegram: FakeTelegram,
    yandex: FakeDisk,
) -> pytest.MonkeyPatch:
    """Run in an empty directory, with settings for an empty database and the two fake servers."""
    for name in [name for name in os.environ if name.startswith("COURIER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    given = {
        "BOT_TOKEN": telegram.token,
        "ADMINS": "7001002003",
        "FOLDER": "/Library",
        "YANDEX_TOKEN": yandex.token,
        "DATABASE_URL": database_url,
        "TELEGRAM_URL": telegram.url,
        "YANDEX_URL": yandex.url,
        "YANDEX_OAUTH_URL": yandex.oauth_url,
    }
    for name, value in given.items():
        monkeypatch.setenv(f"COURIER_{name}", value)
    yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    return monkeypatch


@pytest.fixture
def call(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], telegram: FakeTelegram, yandex: FakeDisk
) -> RunCommand:
    """Run a command. No output may contain a traceback or a secret."""
    secrets = (telegram.token.partition(":")[2], yandex.token, yandex.client_secret, yandex.refresh_token)

    del environment

    def run(*arguments: object) -> CommandResult:
        said = run_command(main, capsys, *arguments)
        assert not [secret for secret in secrets if secret in said.out + said.err]
        return said

    return run


@pytest.fixture
def migrated(call: RunCommand) -> RunCommand:
    assert call("migrate").code == 0
    return call
