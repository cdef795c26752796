"""The commands: output, exit codes, and errors of one sentence without secrets."""

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from apps.common.tests import command_runner
from apps.common.tests.command_runner import RunCommand
from apps.courier import cli as program
from apps.courier.cli import main
from apps.courier.tests.fake_telegram import TOKEN, FakeTelegram
from apps.courier.tests.fake_yandex import FakeDisk

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For tests that do not depend on the database."""
refused = partial(command_runner.assert_refused, "courier")


# ---------------------------------------------------------------- database
def test_migrate_is_repeatable_and_prints_the_url_without_password(call: RunCommand, database_url: str) -> None:
    first, second = call("migrate"), call("migrate")
    assert first == second
    assert first.code == 0
    assert first.out.startswith(f"The courier's tables are ready at {database_url.partition(':')[0]}://")
    assert call("status").code == 0


@once
def test_database_file_is_private_to_its_user(
    call: RunCommand, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
def test_commands_create_no_database_file(
    call: RunCommand, environment: pytest.MonkeyPatch, tmp_path: Path, telegram: FakeTelegram, command: str
) -> None:
    environment.setenv("COURIER_DATABASE_URL", "sqlite:///none.db")
    refused(call(command), 1, "`python -m apps.courier migrate`")
    assert list(tmp_path.iterdir()) == []
    assert telegram.requests == []


@once
def test_unreachable_database_is_one_sentence(call: RunCommand, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("COURIER_DATABASE_URL", "postgresql://courier:canary-password@127.0.0.1:1/courier")
    for command in ("migrate", "status"):
        said = call(command)
        refused(said, 1, "COURIER_DATABASE_URL")
        assert "canary" not in said.err


# ---------------------------------------------------------------- wrong usage
@once
@pytest.mark.parametrize("command", ["migrate", "status", "check", "bot", "worker"])
def test_invalid_settings_are_one_sentence(call: RunCommand, environment: pytest.MonkeyPatch, command: str) -> None:
    environment.setenv("COURIER_BOT_TOKEN", "canary")
    refused(call(command), 2, "COURIER_BOT_TOKEN is not a bot token")
    environment.setenv("COURIER_BOT_TOKEN", TOKEN)
    environment.setenv("COURIER_TLL", "60")
    refused(call(command), 2, "COURIER_TLL is not a setting")


@once
@pytest.mark.parametrize(
    "arguments", [("wrong",), ("worker", "--slots", "0"), ("worker", "--slots", "many"), ("bot", "more")]
)
def test_wrong_usage_exits_with_2(call: RunCommand, arguments: tuple[str, ...]) -> None:
    assert call(*arguments).code == 2


@once
def test_help_names_every_command(call: RunCommand) -> None:
    said = call("--help")
    assert said.code == 0
    assert [name for name in ("migrate", "check", "status", "bot", "worker") if name not in said.out] == []


@once
def test_unexpected_error_shows_no_secret(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"no answer from https://api.telegram.org/bot{TOKEN}/getMe for OAuth y0_canary")

    environment.setattr(program, "assemble", broken)
    with pytest.raises(SystemExit) as end:
        main(["status"])
    said = capsys.readouterr().err
    assert end.value.code == 1
    assert "RuntimeError: no answer from https://api.telegram.org/bot***/getMe for OAuth ***" in said
    assert TOKEN not in said


# ---------------------------------------------------------------- check
@once
def test_check_reports_both_systems(migrated: RunCommand, telegram: FakeTelegram, yandex: FakeDisk) -> None:
    said = migrated("check")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "Telegram: connected as @courier_bot; files of up to 2000 MiB.",
        "Yandex Disk: found disk:/Library with 1 item.",
    ]
    assert len(telegram.requests) == len(yandex.log) == 1


@once
@pytest.mark.parametrize(
    ("prepare", "line"),
    [
        (
            lambda telegram, _: telegram.fail("getMe", 401),
            "Telegram rejects the bot token. Copy it again from @BotFather to COURIER_BOT_TOKEN, ",
        ),
        (
            lambda telegram, _: telegram.fail("getMe", 404),
            "Telegram rejects the bot token. Copy it again from @BotFather to COURIER_BOT_TOKEN, ",
        ),
        (lambda telegram, _: telegram.fail("getMe", 502), "Telegram has a server error (5xx). Check that http://"),
        (lambda telegram, _: telegram.down(), "Telegram is unreachable. Check that http://"),
        (
            lambda _, yandex: yandex.revoke(),
            "Yandex Disk rejects the token, and it could not be renewed. Check COURIER_YANDEX_TOKEN, or",
        ),
        (lambda _, yandex: yandex.fail("resources", 403), "Yandex Disk denies access with this token. Check that "),
        (lambda _, yandex: yandex.remove("/Library"), "Yandex Disk has no folder disk:/Library. Check COURIER_FOLDER."),
        (
            lambda _, yandex: yandex.fail("resources", 503),
            "Yandex Disk cannot answer now (status 503). Check that http://",
        ),
        (lambda _, yandex: yandex.cut("resources"), "The connection to Yandex Disk broke. Check that http://"),
    ],
)
def test_check_says_what_to_fix(
    migrated: RunCommand,
    telegram: FakeTelegram,
    yandex: FakeDisk,
    prepare: Callable[[FakeTelegram, FakeDisk], None],
    line: str,
) -> None:
    """One line for the failing system; the other one is checked anyway."""
    prepare(telegram, yandex)
    said = migrated("check")
    assert said.code == 1
    assert said.err.startswith(line)
    assert said.err.count("\n") == said.out.count("\n") == 1


@once
def test_check_renews_an_expired_token(migrated: RunCommand, environment: pytest.MonkeyPatch, yandex: FakeDisk) -> None:
    for name, value in (("ID", yandex.client_id), ("SECRET", yandex.client_secret)):
        environment.setenv(f"COURIER_YANDEX_CLIENT_{name}", value)
    environment.setenv("COURIER_YANDEX_REFRESH_TOKEN", yandex.refresh_token)
    yandex.revoke()
    assert migrated("check").code == 0
    assert len(yandex.requests_for("token")) == 1


# ---------------------------------------------------------------- status
def test_status_shows_the_overview(migrated: RunCommand) -> None:
    said = migrated("status")
    assert said.code == 0
    assert said.out.splitlines()[0] == "Deliveries"
    assert [
        line
        for line in ("Waiting: 0, running: 0", "Stuck: 0", "Workers: 0", "Deliveries in doubt: 0")
        if line not in said.out
    ] == []
