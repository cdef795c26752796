"""Settings of every application: unknown names are reported, and errors contain no secret."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from apps.common import settings
from apps.common.tests import settings_variables


class Bad(Exception):
    """The error that the application raises."""


class Settings(BaseSettings):
    model_config = settings.settings_config("EXAMPLE_")

    folder: str
    size: int = 7


Read = Callable[..., Settings]
refusal = partial(settings_variables.refusal, Bad)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Read:
    return settings_variables.reader(
        monkeypatch,
        tmp_path,
        "EXAMPLE_",
        lambda: settings.load_settings(Settings, Bad, {"folder": "write a folder"}),
        FOLDER="/x",
    )


def test_environment_overrides_the_env_file(read: Read, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OTHER=1\nEXAMPLE_FOLDER=/y\nEXAMPLE_SIZE=\n", encoding="utf-8")
    assert (read().folder, read().size) == ("/x", 7)
    assert read(FOLDER=None).folder == "/y"


@pytest.mark.parametrize("in_file", [False, True], ids=["environment", "file"])
def test_mistyped_variable_is_reported_with_a_suggestion(read: Read, tmp_path: Path, *, in_file: bool) -> None:
    if in_file:
        (tmp_path / ".env").write_text("EXAMPLE_SIZZE=canary\n", encoding="utf-8")
    assert (
        refusal(read, **({} if in_file else {"SIZZE": "canary"}))
        == "EXAMPLE_SIZZE is not a setting. Did you mean EXAMPLE_SIZE?"
    )


def test_env_file_that_is_not_utf8_is_refused(read: Read, tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"EXAMPLE_FOLDER=\xff\xfecanary\n")
    assert refusal(read).startswith("The file .env cannot be read. ")


PRIVATE = [
    "localhost",
    "images",
    "cafe",
    "0xcafe-1",
    "1images",
    "127.0.0.1",
    "10.0.0.7",
    "::1",
    "fd00::1",
    "::ffff:10.0.0.7",
    "images.internal",
    "box.local",
]
PUBLIC = [
    "134744072",
    "0x08080808",
    "0X8",
    "010",
    "8.8.8.8",
    "8.8.2056",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "images.example",
]


@pytest.mark.parametrize(
    ("host", "private"), [*((host, True) for host in PRIVATE), *((host, False) for host in PUBLIC)]
)
def test_plain_http_is_allowed_only_to_private_hosts(host: str, *, private: bool) -> None:
    """A resolver reads a number as an IP address, which may be public."""
    assert settings.is_private_host(host) is private
    assert settings.is_safe_for_secrets(f"http://{f'[{host}]' if ':' in host else host}:8080/v1") is private


def test_every_problem_is_reported(read: Read) -> None:
    message = refusal(read, FOLDER=None, SIZE="canary", SIZZE="canary")
    first, second = (
        "EXAMPLE_SIZZE is not a setting. Did you mean EXAMPLE_SIZE?",
        "EXAMPLE_FOLDER is not set: write a folder.",
    )
    assert message.startswith(f"{first} {second} EXAMPLE_SIZE is not valid: ")
