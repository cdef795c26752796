"""Fixtures: the commands on an empty database, and on one with a user and a book."""

import os
from functools import partial
from pathlib import Path

import pytest

from apps.common.tests.command_runner import RunCommand, run_command
from apps.librarian.cli import main


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str) -> pytest.MonkeyPatch:
    """An empty working directory, and only LIBRARIAN_DATABASE_URL set."""
    for name in [name for name in os.environ if name.startswith("LIBRARIAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIBRARIAN_DATABASE_URL", database_url)
    return monkeypatch


@pytest.fixture
def call(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run a command as a person would."""
    return partial(run_command, main, capsys)


@pytest.fixture
def librarian(call: RunCommand) -> RunCommand:
    """Run a command on a library with the user ann and the book Emma."""
    for arguments in (("migrate",), ("user", "add", "ann"), ("book", "add", "Emma", "--author", "Jane Austen")):
        assert call(*arguments).code == 0
    return call
