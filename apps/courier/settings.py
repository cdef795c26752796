"""The courier's settings: the bot, its administrators, the library's folder and the access to Yandex Disk."""

import math
import re
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode

from apps.common.settings import (
    check_database_url,
    check_header_value,
    check_server_url,
    load_settings,
    settings_config,
    variable_name,
)

from .errors import SettingsError

PREFIX = "COURIER_"
TELEGRAM_HOST = "api.telegram.org"
"""The host of Telegram's own Bot API server."""
TELEGRAM_MAX_FILE, LOCAL_MAX_FILE = 50 * 2**20, 2000 * 2**20
INVALID_CHARACTERS = "are not allowed"
_BOT_TOKEN = re.compile(r"\d+:[\w-]{20,}", re.ASCII)
_RENEWAL = ("yandex_client_id", "yandex_client_secret", "yandex_refresh_token")
_MISSING = {
    "bot_token": "set it to the token from @BotFather",
    "admins": "set it to the Telegram IDs of the administrators, separated by commas",
    "folder": "set it to the folder of the library on Yandex Disk, such as /Library",
}


class Settings(BaseSettings):
    """All settings, validated. The environment overrides the file `.env` in the working directory. Empty values are
    unset."""

    model_config = settings_config(PREFIX)

    bot_token: SecretStr
    admins: Annotated[tuple[int, ...], NoDecode]
    folder: str
    """As Yandex Disk writes it: `disk:/Library`."""
    yandex_token: SecretStr | None = None
    yandex_client_id: str | None = None
    yandex_client_secret: SecretStr | None = None
    yandex_refresh_token: SecretStr | None = None
    database_url: str = Field("sqlite:///courier.db", repr=False)
    """Not in the representation, because it may contain a password."""
    telegram_url: str = f"https://{TELEGRAM_HOST}"
    yandex_url: str = "https://cloud-api.yandex.net"
    yandex_oauth_url: str = "https://oauth.yandex.ru"
    ttl: float = 86400.0
    """Seconds that a delivery may wait."""

    @property
    def max_file_size(self) -> int:
        """Bytes of the largest file that the Bot API server accepts."""
        return TELEGRAM_MAX_FILE if urlsplit(self.telegram_url).hostname == TELEGRAM_HOST else LOCAL_MAX_FILE

    @property
    def secrets(self) -> list[str]:
        """Every secret in these settings."""
        given = (self.bot_token, self.yandex_token, self.yandex_client_secret, self.yandex_refresh_token)
        password = urlsplit(self.database_url).password or ""
        return [secret.get_secret_value() for secret in given if secret is not None] + [
            each for each in {password, unquote(password)} if each
        ]

    @classmethod
    def load(cls) -> Self:
        """Load the settings from variables that start with COURIER_.

        Raises `SettingsError` with one sentence per invalid variable, without secrets.
        """
        return load_settings(cls, SettingsError, _MISSING)

    # ---------------------------------------------------------------- validators
    @field_validator("bot_token")
    @classmethod
    def _bot_token(cls, given: SecretStr) -> SecretStr:
        value = given.get_secret_value().strip()
        if not _BOT_TOKEN.fullmatch(value):
            raise ValueError(
                "COURIER_BOT_TOKEN is not a bot token: expected digits, a colon, and at least 20 characters."
            )
        return SecretStr(value)

    @field_validator("admins", mode="before")
    @classmethod
    def _admins(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        words = [word.strip() for word in given.split(",") if word.strip()]
        if not all(word.isascii() and word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError("COURIER_ADMINS is not a list of Telegram IDs: enter numbers, separated by commas.")
        return tuple(dict.fromkeys(int(word) for word in words))

    @field_validator("admins")
    @classmethod
    def _at_least_one_admin(cls, given: tuple[int, ...]) -> tuple[int, ...]:
        if not given or min(given) <= 0:
            raise ValueError("COURIER_ADMINS has no administrator: enter at least one Telegram ID above zero.")
        return given

    @field_validator("folder")
    @classmethod
    def _folder(cls, given: str) -> str:
        path = given.strip().removeprefix("disk:")
        parts = [part for part in path.split("/") if part]
        if not path.startswith("/") or {".", ".."} & set(parts) or not path.isprintable():
            raise ValueError(
                "COURIER_FOLDER is not a folder of Yandex Disk: enter its full path without `..`, such as /Library."
            )
        return f"disk:/{'/'.join(parts)}"

    @field_validator("yandex_token", "yandex_client_secret", "yandex_refresh_token")
    @classmethod
    def _secret(cls, given: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return (
            None
            if given is None
            else SecretStr(check_header_value(given.get_secret_value(), variable_name(cls, info), INVALID_CHARACTERS))
        )

    @field_validator("yandex_client_id")
    @classmethod
    def _client_id(cls, given: str | None, info: ValidationInfo) -> str | None:
        return None if given is None else check_header_value(given, variable_name(cls, info), INVALID_CHARACTERS)

    @field_validator("yandex_refresh_token")
    @classmethod
    def _disk_access(cls, given: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """Check that access to Yandex Disk is configured. This is the last of four fields, so the others are known."""
        given_values = dict(info.data) | {"yandex_refresh_token": given}
        # A field with an error of its own is missing here; its own message reports it.
        missing = [name for name in _RENEWAL if given_values.get(name, "faulty") is None]
        if len(missing) == len(_RENEWAL):
            if given_values.get("yandex_token", "faulty") is None:
                raise ValueError(
                    "No access to Yandex Disk is configured: set COURIER_YANDEX_TOKEN, or COURIER_YANDEX_CLIENT_ID, "
                    "COURIER_YANDEX_CLIENT_SECRET and COURIER_YANDEX_REFRESH_TOKEN."
                )
        elif missing:
            names = " and ".join(PREFIX + name.upper() for name in missing)
            raise ValueError(
                f"{names} {'is' if len(missing) == 1 else 'are'} not set: "
                "renewing a token needs the client ID, the client secret and the refresh token."
            )
        return given

    @field_validator("database_url")
    @classmethod
    def _database_url(cls, given: str) -> str:
        return check_database_url(given, "courier")

    @field_validator("telegram_url", "yandex_url", "yandex_oauth_url")
    @classmethod
    def _address(cls, given: str, info: ValidationInfo) -> str:
        return check_server_url(given, variable_name(cls, info), "token", "http://127.0.0.1:8081")

    @field_validator("ttl")
    @classmethod
    def _ttl(cls, given: float) -> float:
        if not (math.isfinite(given) and given > 0):
            raise ValueError("COURIER_TTL is not a duration: enter the seconds that a delivery may wait, above zero.")
        return given
