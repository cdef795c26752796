"""Settings from environment variables: clear errors, unknown names are reported, and secrets only go over TLS."""

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError, ValidationInfo
from pydantic_settings import BaseSettings, DotEnvSettingsSource, SettingsConfigDict

from .database import SCHEMES

S = TypeVar("S", bound=BaseSettings)
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+", re.IGNORECASE)


# ---------------------------------------------------------------- all settings
def settings_config(prefix: str) -> SettingsConfigDict:
    """Read the environment first, then `.env` in the working directory. An empty value counts as not set."""
    # `ignore`: `.env` may contain variables of other programs. `load_settings` reports mistyped names.
    return SettingsConfigDict(
        env_prefix=prefix,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )


def load_settings(settings: type[S], bad: type[Exception], missing: Mapping[str, str] | None = None) -> S:
    """Load the settings, or raise `bad` with one sentence per problem and without any value.

    `missing` says what to write for a required setting that is not set.
    """
    problems: list[str] = []
    try:
        problems += [f"{name} is not a setting. {_suggest(name, settings)}" for name in _unknown_variables(settings)]
        found = settings.model_validate({})
    except (OSError, UnicodeDecodeError):
        raise bad("The file .env cannot be read. Check its permissions, and that it is UTF-8 text.") from None
    except ValidationError as error:
        problems += _messages(error, settings, missing or {})
        raise bad(" ".join(problems)) from None
    if problems:
        raise bad(" ".join(problems))
    return found


def _prefix(settings: type[BaseSettings]) -> str:
    return settings.model_config.get("env_prefix", "")


def _unknown_variables(settings: type[BaseSettings]) -> list[str]:
    """Variables that have the prefix but are not settings, for example because of a typo."""
    prefix = _prefix(settings)
    given = {*os.environ, *DotEnvSettingsSource(settings).env_vars}
    return sorted(
        {name.upper() for name in given if name.upper().startswith(prefix)}
        - {prefix + name.upper() for name in settings.model_fields}
    )


def _suggest(name: str, settings: type[BaseSettings]) -> str:
    """The most similar setting, if there is one."""
    near = get_close_matches(name.removeprefix(_prefix(settings)), map(str.upper, settings.model_fields), n=1)
    return f"Did you mean {_prefix(settings)}{near[0]}?" if near else "The README lists all settings."


def _messages(error: ValidationError, settings: type[BaseSettings], missing: Mapping[str, str]) -> Iterable[str]:
    """One sentence per invalid setting, without its value."""
    prefix = _prefix(settings)
    for each in error.errors(include_input=False, include_context=False):
        name, message = str(each["loc"][0]), each["msg"]
        if each["type"] == "missing":
            yield f"{prefix}{name.upper()} is not set: {missing[name]}."
        elif each["type"] == "value_error":
            yield message.removeprefix("Value error, ")
        else:
            yield f"{prefix}{name.upper()} is not valid: {message[:1].lower()}{message[1:]}."


# ---------------------------------------------------------------- one setting
def variable_name(settings: type[BaseSettings], info: ValidationInfo) -> str:
    """The environment variable of the setting that is being validated."""
    return f"{_prefix(settings)}{(info.field_name or '').upper()}"


def check_header_value(given: str, name: str, otherwise: str) -> str:
    """Check that a secret can be sent in an HTTP header: visible ASCII characters only.

    `otherwise` completes the error: "… has characters that …".
    """
    value = given.strip()
    if not _VISIBLE.fullmatch(value):
        raise ValueError(f"{name} has characters that {otherwise}: copy it again, without spaces.")
    return value


def check_database_url(given: str, app: str) -> str:
    """Check that a database URL names SQLite or PostgreSQL."""
    if given.strip().startswith("postgres://"):
        raise ValueError(f"{app.upper()}_DATABASE_URL begins with postgres://: write postgresql:// instead.")
    if not _is_database(given.strip()):
        raise ValueError(
            f"{app.upper()}_DATABASE_URL must be a SQLite or PostgreSQL URL: "
            f"write sqlite:///{app}.db, or postgresql://user:password@host/name."
        )
    return given.strip()


def check_server_url(given: str, name: str, secret: str, example: str) -> str:
    """Check the URL of a server that receives a secret of this sort, such as a token."""
    url = given.strip().rstrip("/")
    if not is_safe_for_secrets(url):
        raise ValueError(
            f"{name} must be an https:// URL, because a {secret} is sent there; "
            f"http:// is allowed only within a private network, for example {example}."
        )
    return url


def _is_database(url: str) -> bool:
    try:
        return urlsplit(url).scheme in SCHEMES
    except ValueError:
        return False


def is_safe_for_secrets(url: str) -> bool:
    """Whether a secret may be sent to this URL: over TLS, or within a private network."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.query or parts.fragment or not _VISIBLE.fullmatch(url):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_private_host(host))


def is_private_host(host: str) -> bool:
    """Whether this is this machine, an address in a private network, or a name that no public server has."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        # A resolver reads a number as an IP address, which may be public.
        return ("." not in host and not _NUMBER.fullmatch(host)) or host.endswith((".internal", ".local", ".localhost"))
    return ((ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None) or ip).is_private
