"""Settings: accepted values, error messages, and no secret in any of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from apps.common.tests import settings_variables
from apps.courier.errors import SettingsError
from apps.courier.settings import LOCAL_MAX_FILE, TELEGRAM_MAX_FILE, Settings

TOKEN = "123456:canary-of-the-bot-0123456789"
REFRESH, SECRET, ACCESS = "canary-refresh-token", "canary-client-secret", "canary-access-token"
LONG_ENOUGH = {"BOT_TOKEN": TOKEN, "ADMINS": "7", "FOLDER": "/Library", "YANDEX_TOKEN": ACCESS}
RENEWAL = {"YANDEX_CLIENT_ID": "canary-client", "YANDEX_CLIENT_SECRET": SECRET, "YANDEX_REFRESH_TOKEN": REFRESH}
Read = Callable[..., Settings]
refusal = partial(settings_variables.refusal, SettingsError)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Read:
    return settings_variables.reader(monkeypatch, tmp_path, "COURIER_", Settings.load, **LONG_ENOUGH)


# ---------------------------------------------------------------- accepted
def test_minimal_settings(read: Read) -> None:
    settings = read()
    assert settings.bot_token.get_secret_value() == TOKEN
    assert (settings.admins, settings.folder) == ((7,), "disk:/Library")
    assert settings.yandex_token == SecretStr(ACCESS)
    assert (settings.database_url, settings.ttl) == ("sqlite:///courier.db", 86400.0)
    assert (settings.telegram_url, settings.yandex_url) == ("https://api.telegram.org", "https://cloud-api.yandex.net")
    assert settings.yandex_oauth_url == "https://oauth.yandex.ru"


def test_refresh_token_replaces_a_token(read: Read) -> None:
    assert read(YANDEX_TOKEN=None, **RENEWAL).yandex_token is None
    assert read(**RENEWAL).yandex_refresh_token == SecretStr(REFRESH)


def test_env_file_is_read_and_the_environment_overrides_it(read: Read, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "OTHER=1\nCOURIER_FOLDER=/Elsewhere\nCOURIER_TTL=60\nCOURIER_YANDEX_CLIENT_ID=\n", encoding="utf-8"
    )
    assert (read().folder, read().ttl) == ("disk:/Library", 60.0)
    assert read(FOLDER=None).folder == "disk:/Elsewhere"


@pytest.mark.parametrize(
    ("given", "meant"), [("7", (7,)), ("7, 8", (7, 8)), ("8,7,8,", (8, 7)), (" 123456789012 ", (123456789012,))]
)
def test_administrators_are_separated_by_commas(read: Read, given: str, meant: tuple[int, ...]) -> None:
    assert read(ADMINS=given).admins == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("/Library", "disk:/Library"),
        ("disk:/Library", "disk:/Library"),
        ("/Library/", "disk:/Library"),
        ("//Книги//Новые", "disk:/Книги/Новые"),
        ("/", "disk:/"),
        ("/a..b", "disk:/a..b"),
    ],
)
def test_folder_is_normalized_to_the_disks_form(read: Read, given: str, meant: str) -> None:
    assert read(FOLDER=given).folder == meant


@pytest.mark.parametrize(
    ("url", "max_file_size"),
    [
        ("https://api.telegram.org", TELEGRAM_MAX_FILE),
        ("https://API.Telegram.org/", TELEGRAM_MAX_FILE),
        ("http://127.0.0.1:8081", LOCAL_MAX_FILE),
        ("http://telegram-bot-api:8081/", LOCAL_MAX_FILE),
        ("https://bots.example.org", LOCAL_MAX_FILE),
    ],
)
def test_only_a_local_server_accepts_more_than_50_megabytes(read: Read, url: str, max_file_size: int) -> None:
    assert read(TELEGRAM_URL=url).max_file_size == max_file_size
    assert (TELEGRAM_MAX_FILE, LOCAL_MAX_FILE) == (52_428_800, 2_097_152_000)


def test_settings_are_immutable(read: Read) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read().ttl = 1.0  # type: ignore[misc]


# ---------------------------------------------------------------- rejected
def test_all_missing_settings_are_reported_at_once(read: Read) -> None:
    said = refusal(read, **dict.fromkeys(LONG_ENOUGH))
    words = (
        "COURIER_BOT_TOKEN is not set",
        "COURIER_ADMINS is not set",
        "COURIER_FOLDER is not set",
        "COURIER_YANDEX_TOKEN",
    )
    assert [word for word in words if word not in said] == []
    assert said.count(". ") == 3


@pytest.mark.parametrize("name", ["BOT_TOKEN", "ADMINS", "FOLDER"])
def test_empty_value_is_unset(read: Read, name: str) -> None:
    assert refusal(read, **{name: ""}).startswith(f"COURIER_{name} is not set: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BOT_TOKEN", "canary"),
        ("BOT_TOKEN", "123:canary"),
        ("BOT_TOKEN", "canary:0123456789012345678901"),
        ("BOT_TOKEN", f"{TOKEN} {TOKEN}"),
        ("ADMINS", "canary"),
        ("ADMINS", "[7]"),
        ("ADMINS", "7 8"),
        ("ADMINS", "-7"),
        ("ADMINS", "0"),
        ("ADMINS", ","),
        ("ADMINS", "7" * 30),
        ("ADMINS", "٧"),
        ("FOLDER", "canary"),
        ("FOLDER", "/canary/../other"),
        ("FOLDER", "/./canary"),
        ("FOLDER", "app:/canary"),
        ("FOLDER", "/canary\nother"),
        ("YANDEX_TOKEN", "canary canary"),
        ("YANDEX_TOKEN", "canary\r\nX: y"),
        ("YANDEX_TOKEN", "canaryй"),
        ("DATABASE_URL", "mysql://root:canary@host/x"),
        ("DATABASE_URL", "canary"),
        ("DATABASE_URL", "postgresql://[canary/x"),
        ("TELEGRAM_URL", "api.telegram.org"),
        ("TELEGRAM_URL", "http://api.telegram.org"),
        ("TELEGRAM_URL", "ftp://127.0.0.1"),
        ("TELEGRAM_URL", "http://[canary"),
        ("YANDEX_URL", "https://user:canary@example.org"),
        ("YANDEX_URL", "https://example.org/?canary"),
        ("YANDEX_URL", "http://8.8.8.8"),
        ("YANDEX_OAUTH_URL", "https://"),
        ("YANDEX_OAUTH_URL", "https://127.0.0.1:canary"),
        ("TTL", "canary"),
        ("TTL", "0"),
        ("TTL", "-1"),
        ("TTL", "nan"),
        ("TTL", "inf"),
    ],
)
def test_invalid_value_is_one_sentence_that_names_the_variable(read: Read, name: str, value: str) -> None:
    said = refusal(read, **{name: value})
    assert said.startswith(f"COURIER_{name} ")
    assert said.endswith(".")
    assert ". " not in said
    assert "\n" not in said


@pytest.mark.parametrize("missing", ["YANDEX_CLIENT_ID", "YANDEX_CLIENT_SECRET", "YANDEX_REFRESH_TOKEN"])
@pytest.mark.parametrize("token", [ACCESS, None])
def test_incomplete_renewal_settings_are_rejected(read: Read, missing: str, token: str | None) -> None:
    assert refusal(read, **RENEWAL | {missing: None, "YANDEX_TOKEN": token}).startswith(
        f"COURIER_{missing} is not set: "
    )


def test_invalid_token_is_not_also_reported_as_missing(read: Read) -> None:
    assert "No access to Yandex Disk" not in refusal(read, YANDEX_TOKEN="canary canary")


# ---------------------------------------------------------------- secrets
def test_representation_shows_no_secret(read: Read) -> None:
    settings = read(**RENEWAL, DATABASE_URL="postgresql://courier:canary-password@localhost/courier")
    for shown in (
        repr(settings),
        str(settings),
        f"{settings}",
        settings.model_dump_json(exclude={"database_url", "yandex_client_id"}),
    ):
        assert TOKEN not in shown
        assert not [secret for secret in settings.secrets if secret in shown]


def test_every_secret_is_listed(read: Read) -> None:
    settings = read(**RENEWAL, DATABASE_URL="postgresql://courier:canary%2Fpassword@localhost/courier")
    assert set(settings.secrets) == {TOKEN, ACCESS, SECRET, REFRESH, "canary/password", "canary%2Fpassword"}
    assert set(read().secrets) == {TOKEN, ACCESS}


def test_direct_validation_error_shows_no_secret(read: Read) -> None:
    with pytest.raises(ValidationError) as error:
        Settings(  # type: ignore[call-arg]
            _env_file=None, bot_token="canary", admins=(7,), folder="/Library", yandex_token="canary canary"
        )
    assert "canary" not in str(error.value)
