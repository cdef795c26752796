"""What the courier must be told: its bot, its administrators, the folder of the library, and how it is let into Yandex Disk."""

import math
import re
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode

from apps.common.settings import address, database, from_variables, read, variable, visible

from .errors import BadSettings

PREFIX = "COURIER_"
CLOUD = "api.telegram.org"
"""Telegram's own Bot API server."""
CLOUD_LARGEST, LOCAL_LARGEST = 50 * 2**20, 2000 * 2**20
UNFIT = "no token has"
_BOT_TOKEN = re.compile(r"\d+:[\w-]{20,}", re.ASCII)
_RENEWAL = ("yandex_client_id", "yandex_client_secret", "yandex_refresh_token")
_MISSING = {
    "bot_token": "write the token that @BotFather gave you",
    "admins": "write the Telegram ids of the administrators, at least one, with commas between them",
    "folder": "write the folder of the library on Yandex Disk, as in /Library",
}


class Settings(BaseSettings):
    """All of it, checked. The environment comes first, then the file `.env` of the working directory. An empty value is none."""

    model_config = from_variables(PREFIX)

    bot_token: SecretStr
    admins: Annotated[tuple[int, ...], NoDecode]
    folder: str
    """As Yandex Disk names it: `disk:/Library`."""
    yandex_token: SecretStr | None = None
    yandex_client_id: str | None = None
    yandex_client_secret: SecretStr | None = None
    yandex_refresh_token: SecretStr | None = None
    database_url: str = Field("sqlite:///courier.db", repr=False)
    """Not shown, since it may hold a password."""
    telegram_url: str = f"https://{CLOUD}"
    yandex_url: str = "https://cloud-api.yandex.net"
    yandex_oauth_url: str = "https://oauth.yandex.ru"
    ttl: float = 86400.0
    """Seconds for which a delivery may wait."""

    @property
    def largest(self) -> int:
        """Bytes of the largest file that the Bot API server takes."""
        return CLOUD_LARGEST if urlsplit(self.telegram_url).hostname == CLOUD else LOCAL_LARGEST

    @property
    def secrets(self) -> list[str]:
        """Everything here that nobody may read."""
        given = (self.bot_token, self.yandex_token, self.yandex_client_secret, self.yandex_refresh_token)
        password = urlsplit(self.database_url).password or ""
        return [secret.get_secret_value() for secret in given if secret is not None] + [each for each in {password, unquote(password)} if each]

    @classmethod
    def read(cls) -> Self:
        """The settings of the variables that begin with COURIER_. `BadSettings` says in one sentence for each what cannot be used, and shows no secret."""
        return read(cls, BadSettings, _MISSING)

    # ---------------------------------------------------------------- each of them
    @field_validator("bot_token")
    @classmethod
    def _bot_token(cls, given: SecretStr) -> SecretStr:
        value = given.get_secret_value().strip()
        if not _BOT_TOKEN.fullmatch(value):
            raise ValueError("COURIER_BOT_TOKEN is no token of a bot: it has digits, a colon, and at least 20 characters after it.")
        return SecretStr(value)

    @field_validator("admins", mode="before")
    @classmethod
    def _admins(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        words = [word.strip() for word in given.split(",") if word.strip()]
        if not all(word.isascii() and word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError("COURIER_ADMINS is no list of Telegram ids: write numbers with commas between them.")
        return tuple(dict.fromkeys(int(word) for word in words))

    @field_validator("admins")
    @classmethod
    def _some_admin(cls, given: tuple[int, ...]) -> tuple[int, ...]:
        if not given or min(given) <= 0:
            raise ValueError("COURIER_ADMINS names no administrator: write at least one Telegram id, above zero, since nobody else can let people in.")
        return given

    @field_validator("folder")
    @classmethod
    def _folder(cls, given: str) -> str:
        path = given.strip().removeprefix("disk:")
        parts = [part for part in path.split("/") if part]
        if not path.startswith("/") or {".", ".."} & set(parts) or not path.isprintable():
            raise ValueError("COURIER_FOLDER is no folder of Yandex Disk: write its whole path from the top, without `..`, as in /Library.")
        return f"disk:/{'/'.join(parts)}"

    @field_validator("yandex_token", "yandex_client_secret", "yandex_refresh_token")
    @classmethod
    def _secret(cls, given: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return None if given is None else SecretStr(visible(given.get_secret_value(), variable(cls, info), UNFIT))

    @field_validator("yandex_client_id")
    @classmethod
    def _client_id(cls, given: str | None, info: ValidationInfo) -> str | None:
        return None if given is None else visible(given, variable(cls, info), UNFIT)

    @field_validator("yandex_refresh_token")
    @classmethod
    def _way_in(cls, given: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """The last of the four, so that the other three are known."""
        have = dict(info.data) | {"yandex_refresh_token": given}
        # One that has a fault of its own is not among them, and is said to be wrong there.
        lacks = [name for name in _RENEWAL if have.get(name, "faulty") is None]
        if len(lacks) == len(_RENEWAL):
            if have.get("yandex_token", "faulty") is None:
                raise ValueError(
                    "Nothing lets the courier into Yandex Disk: write COURIER_YANDEX_TOKEN, or COURIER_YANDEX_CLIENT_ID, COURIER_YANDEX_CLIENT_SECRET "
                    "and COURIER_YANDEX_REFRESH_TOKEN.")
        elif lacks:
            names = " and ".join(PREFIX + name.upper() for name in lacks)
            raise ValueError(f"{names} {'is' if len(lacks) == 1 else 'are'} not set: a token is renewed with a client's id, its secret and a refresh token.")
        return given

    @field_validator("database_url")
    @classmethod
    def _database_url(cls, given: str) -> str:
        return database(given, "courier")

    @field_validator("telegram_url", "yandex_url", "yandex_oauth_url")
    @classmethod
    def _address(cls, given: str, info: ValidationInfo) -> str:
        return address(given, variable(cls, info), "token", "http://127.0.0.1:8081")

    @field_validator("ttl")
    @classmethod
    def _ttl(cls, given: float) -> float:
        if not (math.isfinite(given) and given > 0):
            raise ValueError("COURIER_TTL is no time to wait: give the seconds that a delivery may wait, above zero.")
        return given
