"""A library that is worked by its commands alone, on an empty database."""

import os
from functools import partial
from pathlib import Path

import pytest

from apps.common.tests.commands import Call, called
from apps.librarian.main import main


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str) -> pytest.MonkeyPatch:
    """An empty directory, and settings that name an empty database and nothing else."""
    for name in [name for name in os.environ if name.startswith("LIBRARIAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIBRARIAN_DATABASE_URL", database_url)
    return monkeypatch


@pytest.fixture
def call(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command as a person would."""
    return partial(called, main, capsys)


@pytest.fixture
def library(call: Call) -> Call:
    """The commands on a library with a user, ann, and a book, Emma."""
    for arguments in (("migrate",), ("user", "add", "ann"), ("book", "add", "Emma", "--author", "Jane Austen")):
        assert call(*arguments).code == 0
    return call
