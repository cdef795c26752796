"""The settings: database, storage, provider and moderation. The defaults work on a developer's machine."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from apps.common.settings import (
    check_database_url,
    check_header_value,
    check_server_url,
    load_settings,
    settings_config,
    variable_name,
)

from .errors import BadSettings

PREFIX = "STUDIO_"
S3 = "s3://"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
INVALID_CHARACTERS = "are not allowed"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_KEY = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Settings(BaseSettings):
    """Validated settings from the environment, then from `.env` in the working directory. Empty values are ignored."""

    model_config = settings_config(PREFIX)

    database_url: str = Field("sqlite:///studio.db", repr=False)
    """Excluded from the repr, because it may contain a password."""
    storage: str = "studio-files"
    """The storage of the originals: a directory, or `s3://bucket/prefix`."""
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_access_key: str | None = None
    s3_secret_key: SecretStr | None = None
    api_url: str = "https://api.openai.com/v1"
    api_key: SecretStr | None = None
    model: str | None = None
    provider: Literal["local", "openai"] = "local"
    block_list: Path | None = None
    moderator: str | None = None
    """A moderation function, as `package.module:function`."""

    @property
    def bucket(self) -> tuple[str, str] | None:
        """The bucket and prefix of the originals, or None for a directory."""
        if not self.storage.startswith(S3):
            return None
        bucket, _, prefix = self.storage.removeprefix(S3).partition("/")
        return bucket, prefix

    @classmethod
    def read(cls) -> Self:
        """Read the variables that begin with STUDIO_. Raises `BadSettings` with a sentence per fault and no secrets."""
        return load_settings(cls, BadSettings)

    # ---------------------------------------------------------------- validators
    @field_validator("database_url")
    @classmethod
    def _database_url(cls, given: str) -> str:
        return check_database_url(given, "studio")

    @field_validator("storage")
    @classmethod
    def _storage(cls, given: str) -> str:
        place = given.strip()
        if not _SCHEME.match(place) and place and place.isprintable():
            return place
        bucket, _, prefix = place.removeprefix(S3).rstrip("/").partition("/")
        if (
            not place.startswith(S3)
            or not _BUCKET.fullmatch(bucket)
            or (prefix and not _KEY.fullmatch(prefix))
            or {".", ".."} & {*prefix.split("/")}
        ):
            raise ValueError(
                "STUDIO_STORAGE is not valid: use a directory, such as studio-files, or s3://bucket/prefix."
            )
        return f"{S3}{bucket}/{prefix}" if prefix else f"{S3}{bucket}"

    @field_validator("s3_endpoint", "api_url")
    @classmethod
    def _address(cls, given: str | None, info: ValidationInfo) -> str | None:
        return (
            None if given is None else check_server_url(given, variable_name(cls, info), "key", "http://127.0.0.1:9000")
        )

    @field_validator("s3_secret_key", "api_key")
    @classmethod
    def _secret(cls, given: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return (
            None
            if given is None
            else SecretStr(check_header_value(given.get_secret_value(), variable_name(cls, info), INVALID_CHARACTERS))
        )

    @field_validator("s3_region", "s3_access_key", "model")
    @classmethod
    def _word(cls, given: str | None, info: ValidationInfo) -> str | None:
        return None if given is None else check_header_value(given, variable_name(cls, info), INVALID_CHARACTERS)

    @field_validator("s3_endpoint", "s3_region", "s3_access_key", "s3_secret_key")
    @classmethod
    def _of_a_bucket(cls, given: str | SecretStr | None, info: ValidationInfo) -> str | SecretStr | None:
        """Refuse S3 settings without a bucket: they would have no effect."""
        storage: object = info.data.get("storage")
        if given is not None and isinstance(storage, str) and not storage.startswith(S3):
            name = variable_name(cls, info)
            raise ValueError(
                f"{name} has no effect, because STUDIO_STORAGE is a directory: "
                "remove it, or set STUDIO_STORAGE to s3://bucket/prefix."
            )
        return given

    @field_validator("s3_secret_key")
    @classmethod
    def _pair(cls, given: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """Require an access key and its secret together. A key with its own fault is reported by its own validator."""
        key = info.data.get("s3_access_key", "faulty")
        if (key is None) != (given is None) and key != "faulty":
            lacks, has = ("S3_ACCESS_KEY", "S3_SECRET_KEY") if key is None else ("S3_SECRET_KEY", "S3_ACCESS_KEY")
            raise ValueError(f"{PREFIX}{lacks} is not set: set it together with {PREFIX}{has}, or remove both.")
        return given

    @field_validator("provider")
    @classmethod
    def _let_in(cls, given: str, info: ValidationInfo) -> str:
        if given == "openai" and info.data.get("api_key", "faulty") is None:
            raise ValueError("STUDIO_API_KEY is not set: set the key of the Images API, or use STUDIO_PROVIDER=local.")
        return given

    @field_validator("moderator")
    @classmethod
    def _moderator(cls, given: str | None) -> str | None:
        if given is not None and not _FUNCTION.fullmatch(given.strip()):
            raise ValueError("STUDIO_MODERATOR is not valid: use package.module:function.")
        return None if given is None else given.strip()
