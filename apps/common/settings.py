"""What the settings of all applications have in common: faults are sentences, typos are not silent, and a secret goes over no open wire."""

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_settings import BaseSettings, DotEnvSettingsSource

VISIBLE = re.compile(r"[\x21-\x7e]+")
SCHEMES = frozenset({"sqlite", "postgresql"})


def unknown(settings: type[BaseSettings]) -> list[str]:
    """The variables that look like settings and are none: a typo must not be silent."""
    prefix = settings.model_config.get("env_prefix", "")
    given = {*os.environ, *DotEnvSettingsSource(settings).env_vars}
    return sorted({name.upper() for name in given if name.upper().startswith(prefix)} - {prefix + name.upper() for name in settings.model_fields})


def sentences(error: ValidationError, prefix: str, missing: Mapping[str, str]) -> Iterable[str]:
    """What is wrong with each setting, without its value. `missing` says what to write for one that must be there."""
    for each in error.errors(include_input=False, include_context=False):
        name, message = str(each["loc"][0]), each["msg"]
        if each["type"] == "missing":
            yield f"{prefix}{name.upper()} is not set: {missing[name]}."
        elif each["type"] == "value_error":
            yield message.removeprefix("Value error, ")
        else:
            yield f"{prefix}{name.upper()} cannot be read: {message[:1].lower()}{message[1:]}."


def is_database(url: str) -> bool:
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
    if not host or parts.username is not None or parts.query or parts.fragment or not VISIBLE.fullmatch(url):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_near(host))


def is_near(host: str) -> bool:
    """Whether this is a host of one's own: this machine, its network, or a name that no public server has."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".internal", ".local", ".localhost"))
