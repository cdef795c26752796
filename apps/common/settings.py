"""What the settings of all applications have in common: faults are sentences, typos are not silent, and a secret goes over no open wire."""

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

Read = TypeVar("Read", bound=BaseSettings)
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+", re.IGNORECASE)


# ---------------------------------------------------------------- all of them
def from_variables(prefix: str) -> SettingsConfigDict:
    """The environment comes first, then the file `.env` of the working directory. An empty value is none."""
    # `ignore` is for the variables of others in `.env`; a mistyped one of ours is found by `read`.
    return SettingsConfigDict(
        env_prefix=prefix, env_file=".env", env_file_encoding="utf-8", env_ignore_empty=True, extra="ignore", frozen=True, hide_input_in_errors=True,
        validate_default=True,
    )


def read(settings: type[Read], bad: type[Exception], missing: Mapping[str, str] | None = None) -> Read:
    """The settings of the variables of their prefix. `bad` says in one sentence for each what cannot be used, and shows no secret.

    `missing` says what to write for one that must be there.
    """
    faults: list[str] = []
    try:
        faults += [f"{name} is no setting: {_meant(name, settings)}" for name in _unknown(settings)]
        found = settings.model_validate({})
    except (OSError, UnicodeDecodeError):
        raise bad("The file .env cannot be read: see that it is yours, and that it is text in UTF-8.") from None
    except ValidationError as error:
        faults += _sentences(error, settings, missing or {})
        raise bad(" ".join(faults)) from None
    if faults:
        raise bad(" ".join(faults))
    return found


def _prefix(settings: type[BaseSettings]) -> str:
    return settings.model_config.get("env_prefix", "")


def _unknown(settings: type[BaseSettings]) -> list[str]:
    """The variables that look like settings and are none: a typo must not be silent."""
    prefix = _prefix(settings)
    given = {*os.environ, *DotEnvSettingsSource(settings).env_vars}
    return sorted({name.upper() for name in given if name.upper().startswith(prefix)} - {prefix + name.upper() for name in settings.model_fields})


def _meant(name: str, settings: type[BaseSettings]) -> str:
    """What to do about a mistyped variable."""
    near = get_close_matches(name.removeprefix(_prefix(settings)), map(str.upper, settings.model_fields), n=1)
    return f"did you mean {_prefix(settings)}{near[0]}?" if near else "see the README for the names."


def _sentences(error: ValidationError, settings: type[BaseSettings], missing: Mapping[str, str]) -> Iterable[str]:
    """What is wrong with each setting, without its value."""
    prefix = _prefix(settings)
    for each in error.errors(include_input=False, include_context=False):
        name, message = str(each["loc"][0]), each["msg"]
        if each["type"] == "missing":
            yield f"{prefix}{name.upper()} is not set: {missing[name]}."
        elif each["type"] == "value_error":
            yield message.removeprefix("Value error, ")
        else:
            yield f"{prefix}{name.upper()} cannot be read: {message[:1].lower()}{message[1:]}."


# ---------------------------------------------------------------- one of them
def variable(settings: type[BaseSettings], info: ValidationInfo) -> str:
    """What the setting that is being checked is called in the environment."""
    return f"{_prefix(settings)}{(info.field_name or '').upper()}"


def visible(given: str, name: str, otherwise: str) -> str:
    """Fit for a header: a line break in one would end up in an error message. What is not is said to have characters `otherwise`."""
    value = given.strip()
    if not _VISIBLE.fullmatch(value):
        raise ValueError(f"{name} has characters that {otherwise}: copy it again, without blanks.")
    return value


def database(given: str, app: str) -> str:
    """The URL of a database, of a kind that can be used."""
    if given.strip().startswith("postgres://"):
        raise ValueError(f"{app.upper()}_DATABASE_URL begins with postgres://, which is not known: write postgresql://.")
    if not _is_database(given.strip()):
        raise ValueError(
            f"{app.upper()}_DATABASE_URL names neither SQLite nor PostgreSQL: write sqlite:///{app}.db, or postgresql://user:password@host/name.")
    return given.strip()


def address(given: str, name: str, secret: str, example: str) -> str:
    """The address of a server to which a secret of this sort may be sent."""
    url = given.strip().rstrip("/")
    if not is_address(url):
        raise ValueError(
            f"{name} is no address to send a {secret} to: write https:// and a host; http:// is for a server of your own network, as in {example}.")
    return url


def _is_database(url: str) -> bool:
    try:
        return urlsplit(url).scheme in SCHEMES
    except ValueError:
        return False


def is_address(url: str) -> bool:
    """Whether a secret may be sent to this address: over TLS, or within one's own network."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.query or parts.fragment or not _VISIBLE.fullmatch(url):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_near(host))


def is_near(host: str) -> bool:
    """Whether this is a host of one's own: this machine, its network, or a name that no public server has."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        # A number is no name: to a resolver it is an address, of anywhere.
        return ("." not in host and not _NUMBER.fullmatch(host)) or host.endswith((".internal", ".local", ".localhost"))
    return ((ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None) or ip).is_private
