"""Promises about the settings of every application: a typo is not silent, and what cannot be read is a sentence without a secret."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from apps.common import settings
from apps.common.tests import variables


class Bad(Exception):
    """What an application raises."""


class Settings(BaseSettings):
    model_config = settings.from_variables("EXAMPLE_")

    folder: str
    size: int = 7


Read = Callable[..., Settings]
refusal = partial(variables.refusal, Bad)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Read:
    return variables.reader(monkeypatch, tmp_path, "EXAMPLE_", lambda: settings.read(Settings, Bad, {"folder": "write a folder"}), FOLDER="/x")


def test_the_file_is_read_and_the_environment_comes_first(read: Read, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OTHER=1\nEXAMPLE_FOLDER=/y\nEXAMPLE_SIZE=\n", encoding="utf-8")
    assert (read().folder, read().size) == ("/x", 7)
    assert read(FOLDER=None).folder == "/y"


@pytest.mark.parametrize("inside", [False, True], ids=["environment", "file"])
def test_a_mistyped_variable_is_named(read: Read, tmp_path: Path, *, inside: bool) -> None:
    if inside:
        (tmp_path / ".env").write_text("EXAMPLE_SIZZE=canary\n", encoding="utf-8")
    assert refusal(read, **({} if inside else {"SIZZE": "canary"})) == "EXAMPLE_SIZZE is no setting: did you mean EXAMPLE_SIZE?"


def test_a_file_that_is_no_text_is_refused(read: Read, tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"EXAMPLE_FOLDER=\xff\xfecanary\n")
    assert refusal(read).startswith("The file .env cannot be read: ")


NEAR = ["localhost", "images", "cafe", "0xcafe-1", "1images", "127.0.0.1", "10.0.0.7", "::1", "fd00::1", "::ffff:10.0.0.7", "images.internal", "box.local"]
FAR = ["134744072", "0x08080808", "0X8", "010", "8.8.8.8", "8.8.2056", "2606:4700::1111", "::ffff:8.8.8.8", "images.example"]


@pytest.mark.parametrize(("host", "near"), [*((host, True) for host in NEAR), *((host, False) for host in FAR)])
def test_near_is_ones_own_network_and_a_number_is_no_name(host: str, *, near: bool) -> None:
    """To a resolver a number is an address, of anywhere; so no secret goes there over an open wire."""
    assert settings.is_near(host) is near
    assert settings.is_address(f"http://{f'[{host}]' if ':' in host else host}:8080/v1") is near


def test_every_fault_has_its_sentence(read: Read) -> None:
    said = refusal(read, FOLDER=None, SIZE="canary", SIZZE="canary")
    first, second = "EXAMPLE_SIZZE is no setting: did you mean EXAMPLE_SIZE?", "EXAMPLE_FOLDER is not set: write a folder."
    assert said.startswith(f"{first} {second} EXAMPLE_SIZE cannot be read: ")
