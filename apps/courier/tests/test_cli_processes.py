"""The long-running commands as processes: startup, signals and errors."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from apps.common.tests import command_runner
from apps.common.tests.app_process import PROCESS_TIMEOUT, AppProcess
from apps.common.tests.command_runner import RunCommand
from apps.common.tests.waiting import wait_until
from apps.courier import startup_checks
from apps.courier.tests.fake_telegram import TOKEN, FakeTelegram
from apps.courier.tests.process_kit import ForkedCourier

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
refused = partial(command_runner.assert_refused, "courier")


@contextmanager
def process(directory: Path, *arguments: str, until: str) -> Iterator[AppProcess]:
    """Start a command as a process, and wait until it prints this."""
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    running = ForkedCourier(("apps.courier", *arguments), directory / f"{arguments[0]}.log", environment)
    try:
        wait_until(lambda: until in running.log or running.code is not None, until, PROCESS_TIMEOUT)
        assert until in running.log
        yield running
    finally:
        running.kill()


@pytest.mark.usefixtures("migrated")
def test_bot_deletes_its_webhook_and_stops_cleanly_on_sigterm(tmp_path: Path, telegram: FakeTelegram) -> None:
    with process(tmp_path, "bot", until="The bot is running.\n") as bot:
        telegram.wait(lambda: telegram.is_polled, PROCESS_TIMEOUT)
        bot.signal(signal.SIGTERM)
        assert bot.wait() == 0
    assert bot.log.startswith("Telegram: connected as @courier_bot.\n")
    assert "\nStopping: " in bot.log
    assert not [word for word in ("Traceback", TOKEN) if word in bot.log]
    assert [each.method for each in telegram.requests][:2] == ["getMe", "deleteWebhook"]


@pytest.mark.usefixtures("migrated")
def test_worker_stops_cleanly_on_sigint(tmp_path: Path) -> None:
    ready = "The worker is running and delivers up to 1 file at once.\n"
    with process(tmp_path, "worker", "--slots", "1", until=ready) as worker:
        worker.signal(signal.SIGINT)
        assert worker.wait() == 0
    assert worker.log.startswith("Telegram: connected as @courier_bot.\n")
    assert "\nstopping: " in worker.log.lower()
    assert not [word for word in ("Traceback", TOKEN) if word in worker.log]


@pytest.mark.parametrize(("command", "status"), [("bot", 401), ("worker", 404)])
def test_rejected_bot_token_ends_the_command(
    migrated: RunCommand, telegram: FakeTelegram, command: str, status: int
) -> None:
    telegram.fail("getMe", status)
    refused(migrated(command), 2, "Copy it again from @BotFather to COURIER_BOT_TOKEN")
    assert [each.method for each in telegram.requests] == ["getMe"]


@pytest.mark.usefixtures("migrated")
def test_bot_starts_while_telegram_is_unreachable_and_ends_when_its_token_is_revoked(
    tmp_path: Path, telegram: FakeTelegram
) -> None:
    telegram.down()
    with process(tmp_path, "bot", until="The bot is running.\n") as bot:
        unreachable = "Telegram is unreachable. The courier starts anyway and continues when Telegram responds.\n"
        assert unreachable in bot.log
        telegram.up()
        telegram.wait(lambda: telegram.is_polled, PROCESS_TIMEOUT)
        telegram.fail("getUpdates", 401, times=3)
        telegram.person(7_001_002_003).send_text("/start")
        assert bot.wait() == 2
    assert bot.log.splitlines()[-1].startswith("courier: Telegram rejects the bot token. ")
    assert not [word for word in ("Traceback", TOKEN) if word in bot.log]


@pytest.mark.usefixtures("migrated")
def test_worker_starts_while_telegram_has_errors(telegram: FakeTelegram, tmp_path: Path) -> None:
    telegram.fail("getMe", 500)
    with process(tmp_path, "worker", until="The worker is running") as worker:
        assert "The courier starts anyway" in worker.log
        assert worker.terminate() == 0


def test_first_request_to_telegram_times_out_soon(
    migrated: RunCommand, telegram: FakeTelegram, environment: pytest.MonkeyPatch
) -> None:
    telegram.stall("getMe")
    environment.setattr(startup_checks, "STARTUP_TIMEOUT", 0.2)
    assert migrated("check").err.startswith("Telegram did not answer in time. Check that ")
