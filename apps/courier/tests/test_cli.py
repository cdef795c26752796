"""Promises about the commands: what they print, how they exit, and that a wrong call is one sentence that changes nothing and shows no secret."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from apps.common.tests import commands
from apps.common.tests.commands import Call, Said, called
from apps.common.tests.waiting import eventually
from apps.courier import main as program
from apps.courier import serving
from apps.courier.main import main
from apps.courier.tests.bot_api import FakeTelegram
from apps.courier.tests.yandex import FakeDisk

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
ADMIN = 7_001_002_003
CANARY = "4242:canary-canary-canary-canary"
once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""
refused = partial(commands.refused, "courier")


@pytest.fixture
def telegram() -> Iterator[FakeTelegram]:
    with FakeTelegram(token=CANARY) as fake:
        yield fake


@pytest.fixture
def environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str, telegram: FakeTelegram, yandex: FakeDisk,
) -> pytest.MonkeyPatch:
    """An empty directory, and settings that name an empty database and the two servers of the test."""
    for name in [name for name in os.environ if name.startswith("COURIER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    given = {
        "BOT_TOKEN": CANARY, "ADMINS": str(ADMIN), "FOLDER": "/Library", "YANDEX_TOKEN": yandex.token, "DATABASE_URL": database_url,
        "TELEGRAM_URL": telegram.url, "YANDEX_URL": yandex.url, "YANDEX_OAUTH_URL": yandex.oauth_url,
    }
    for name, value in given.items():
        monkeypatch.setenv(f"COURIER_{name}", value)
    yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    return monkeypatch


@pytest.fixture
def call(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], yandex: FakeDisk) -> Call:
    """Run a command as a person would; nobody ever sees a traceback or a secret."""
    secrets = (CANARY.partition(":")[2], yandex.token, yandex.client_secret, yandex.refresh_token)

    def run(*arguments: object) -> Said:
        said = called(main, capsys, *arguments)
        assert not [secret for secret in secrets if secret in said.out + said.err]
        return said

    return run


@pytest.fixture
def migrated(call: Call) -> Call:
    assert call("migrate").code == 0
    return call


# ---------------------------------------------------------------- the database
def test_the_tables_are_made_once_and_their_place_is_said_without_its_password(call: Call, database_url: str) -> None:
    first, second = call("migrate"), call("migrate")
    assert first == second
    assert first.code == 0
    assert first.out.startswith(f"The courier's tables are ready at {database_url.partition(':')[0]}://")
    assert call("status").code == 0


@once
def test_the_file_of_the_database_is_for_its_user_alone(call: Call, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("COURIER_DATABASE_URL", "sqlite:///courier.db")
    before = os.umask(0o022)
    try:
        assert call("migrate").out == "The courier's tables are ready at sqlite:///courier.db.\n"
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("courier.db*")} == {0o600}
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@once
@pytest.mark.parametrize("command", ["status", "check", "bot", "worker"])
def test_nothing_is_made_by_looking(call: Call, environment: pytest.MonkeyPatch, tmp_path: Path, telegram: FakeTelegram, command: str) -> None:
    environment.setenv("COURIER_DATABASE_URL", "sqlite:///none.db")
    refused(call(command), 1, "`python -m apps.courier migrate`")
    assert list(tmp_path.iterdir()) == []
    assert telegram.requests == []


@once
def test_a_database_that_is_away_is_one_sentence(call: Call, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("COURIER_DATABASE_URL", "postgresql://courier:canary-password@127.0.0.1:1/courier")
    for command in ("migrate", "status"):
        said = call(command)
        refused(said, 1, "COURIER_DATABASE_URL")
        assert "canary" not in said.err


# ---------------------------------------------------------------- called wrongly
@once
@pytest.mark.parametrize("command", ["migrate", "status", "check", "bot", "worker"])
def test_settings_that_cannot_do_are_one_sentence(call: Call, environment: pytest.MonkeyPatch, command: str) -> None:
    environment.setenv("COURIER_BOT_TOKEN", "canary")
    refused(call(command), 2, "COURIER_BOT_TOKEN is no token of a bot")
    environment.setenv("COURIER_BOT_TOKEN", CANARY)
    environment.setenv("COURIER_TLL", "60")
    refused(call(command), 2, "COURIER_TLL is no setting")


@once
@pytest.mark.parametrize("arguments", [("wrong",), ("worker", "--slots", "0"), ("worker", "--slots", "many"), ("bot", "more")])
def test_a_wrong_call_exits_with_2(call: Call, arguments: tuple[str, ...]) -> None:
    assert call(*arguments).code == 2


@once
def test_help_names_every_command(call: Call) -> None:
    said = call("--help")
    assert said.code == 0
    assert [name for name in ("migrate", "check", "status", "bot", "worker") if name not in said.out] == []


@once
def test_an_error_nobody_expected_shows_no_secret(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"no answer from https://api.telegram.org/bot{CANARY}/getMe for OAuth y0_canary")

    environment.setattr(program, "assembled", broken)
    with pytest.raises(SystemExit) as end:
        main(["status"])
    said = capsys.readouterr().err
    assert end.value.code == 1
    assert "RuntimeError: no answer from https://api.telegram.org/bot***/getMe for OAuth ***" in said
    assert CANARY not in said


# ---------------------------------------------------------------- check
@once
def test_check_says_what_it_found(migrated: Call, telegram: FakeTelegram, yandex: FakeDisk) -> None:
    said = migrated("check")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "Telegram knows the bot as @courier_bot, and takes files of up to 2000 MiB from it.", "Yandex Disk has disk:/Library, with 1 item in it."]
    assert len(telegram.requests) == len(yandex.log) == 1


@once
@pytest.mark.parametrize(("prepare", "line"), [
    (lambda telegram, _: telegram.fail("getMe", 401), "Telegram refuses the bot's token. Copy it anew from @BotFather into COURIER_BOT_TOKEN, "),
    (lambda telegram, _: telegram.fail("getMe", 404), "Telegram refuses the bot's token. Copy it anew from @BotFather into COURIER_BOT_TOKEN, "),
    (lambda telegram, _: telegram.fail("getMe", 502), "Telegram has a fault of its own (5xx). See that http://"),
    (lambda telegram, _: telegram.down(), "Telegram cannot be reached. See that http://"),
    (lambda _, yandex: yandex.revoke(), "Yandex refuses the token, and no other could be had for it. See COURIER_YANDEX_TOKEN, or"),
    (lambda _, yandex: yandex.fail("resources", 403), "Yandex Disk lets nobody read with this token. See that "),
    (lambda _, yandex: yandex.remove("/Library"), "Yandex Disk has no folder disk:/Library. See COURIER_FOLDER."),
    (lambda _, yandex: yandex.fail("resources", 503), "Yandex Disk cannot answer now (status 503). See that http://"),
    (lambda _, yandex: yandex.cut("resources"), "The connection to Yandex Disk broke. See that http://"),
])
def test_check_says_what_to_mend(
    migrated: Call, telegram: FakeTelegram, yandex: FakeDisk, prepare: Callable[[FakeTelegram, FakeDisk], None], line: str,
) -> None:
    """One line, of the side that is at fault; the other is asked all the same."""
    prepare(telegram, yandex)
    said = migrated("check")
    assert said.code == 1
    assert said.err.startswith(line)
    assert said.err.count("\n") == said.out.count("\n") == 1


@once
def test_check_renews_a_token_that_can_be_renewed(migrated: Call, environment: pytest.MonkeyPatch, yandex: FakeDisk) -> None:
    for name, value in (("ID", yandex.client_id), ("SECRET", yandex.client_secret)):
        environment.setenv(f"COURIER_YANDEX_CLIENT_{name}", value)
    environment.setenv("COURIER_YANDEX_REFRESH_TOKEN", yandex.refresh_token)
    yandex.revoke()
    assert migrated("check").code == 0
    assert len(yandex.asked("token")) == 1


# ---------------------------------------------------------------- status
def test_status_shows_what_administrators_see(migrated: Call) -> None:
    said = migrated("status")
    assert said.code == 0
    assert said.out.splitlines()[0] == "Deliveries"
    assert [line for line in ("Waiting: 0, under way: 0", "Stuck: 0", "Workers: 0", "Deliveries in doubt: 0") if line not in said.out] == []


# ---------------------------------------------------------------- what runs for long
@contextmanager
def process(directory: Path, *arguments: str, until: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A command as a process of its own, from the moment that it has said this."""
    log = directory / f"{arguments[0]}.log"
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "apps.courier", *arguments], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output)
    try:
        eventually(lambda: until in log.read_text() or running.poll() is not None)
        assert until in log.read_text()
        yield running, log
    finally:
        running.kill()
        running.wait(PATIENCE)


@once
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("arguments", "until"), [
    (("bot",), "the bot listens\n"), (("worker", "--slots", "1"), "the worker delivers up to 1 file at once\n"),
])
@pytest.mark.usefixtures("migrated")
def test_a_signal_ends_it_in_good_order(tmp_path: Path, number: signal.Signals, arguments: tuple[str, ...], until: str) -> None:
    with process(tmp_path, *arguments, until=until) as (running, log):
        running.send_signal(number)
        assert running.wait(PATIENCE) == 0
        said = log.read_text()
    assert said.startswith("Telegram knows the bot as @courier_bot\n")
    assert "\nstopping: " in said
    assert "Traceback" not in said
    assert CANARY not in said


@once
@pytest.mark.parametrize("command", ["bot", "worker"])
@pytest.mark.parametrize("status", [401, 404])
def test_a_token_that_telegram_refuses_ends_it_at_once(migrated: Call, telegram: FakeTelegram, command: str, status: int) -> None:
    telegram.fail("getMe", status)
    refused(migrated(command), 2, "Copy it anew from @BotFather into COURIER_BOT_TOKEN")
    assert [each.method for each in telegram.requests] == ["getMe"]


@once
@pytest.mark.usefixtures("migrated")
def test_a_bot_starts_while_telegram_is_away_and_goes_on_when_it_is_back(tmp_path: Path, telegram: FakeTelegram) -> None:
    telegram.down()
    with process(tmp_path, "bot", until="the bot listens\n") as (bot, log):
        assert "Telegram cannot be reached. The courier starts all the same, and goes on when Telegram is back.\n" in log.read_text()
        telegram.up()
        telegram.wait(lambda: telegram.polled, PATIENCE)
        bot.send_signal(signal.SIGTERM)
        assert bot.wait(PATIENCE) == 0
    assert CANARY not in log.read_text()


@once
def test_a_worker_starts_while_telegram_is_slow(migrated: Call, telegram: FakeTelegram, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its first question is given up soon; that is said, and no more."""
    telegram.stall("getMe")
    environment.setattr(serving, "PATIENCE", 1)
    said = migrated("check")
    assert said.err.startswith("Telegram did not answer in time. See that ")
    telegram.fail("getMe", 500)
    with process(tmp_path, "worker", until="the worker delivers") as (worker, log):
        assert "The courier starts all the same" in log.read_text()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0


@once
@pytest.mark.usefixtures("migrated")
def test_a_bot_whose_token_is_taken_back_ends_with_the_sentence(tmp_path: Path, telegram: FakeTelegram) -> None:
    with process(tmp_path, "bot", until="the bot listens\n") as (bot, log):
        telegram.wait(lambda: telegram.polled, PATIENCE)
        telegram.fail("getUpdates", 401, times=3)
        telegram.person(ADMIN).says("/start")
        assert bot.wait(PATIENCE) == 2
    assert log.read_text().splitlines()[-1].startswith("courier: Telegram refuses the bot's token. ")
    assert "Traceback" not in log.read_text()


@once
@pytest.mark.usefixtures("migrated")
def test_a_webhook_is_taken_away_before_the_bot_listens(tmp_path: Path, telegram: FakeTelegram) -> None:
    with process(tmp_path, "bot", until="the bot listens\n") as (bot, _):
        telegram.wait(lambda: telegram.polled, PATIENCE)
        bot.send_signal(signal.SIGTERM)
        assert bot.wait(PATIENCE) == 0
    assert [each.method for each in telegram.requests][:2] == ["getMe", "deleteWebhook"]


@once
@pytest.mark.usefixtures("migrated")
def test_every_command_of_interlock_knows_the_courier_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "verify", "-A", "apps.courier.app:app"], env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, text=True,
        capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
