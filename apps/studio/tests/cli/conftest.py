"""Fixtures for the command line: commands on an empty database with a fake provider."""

import os
from pathlib import Path

import pytest

from apps.common.tests.command_runner import CommandResult, RunCommand, run_command
from apps.studio.assembly import studio_from_settings
from apps.studio.cli import main
from apps.studio.settings import Settings
from apps.studio.tests.cli.cli_kit import Work
from apps.studio.tests.fake_images_api import FakeImages


@pytest.fixture
def environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str, images: FakeImages
) -> pytest.MonkeyPatch:
    """An empty directory, and settings for an empty database and the fake provider."""
    for name in [name for name in os.environ if name.startswith("STUDIO_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    given = {"DATABASE_URL": database_url, "PROVIDER": "openai", "API_URL": images.url, "API_KEY": images.api_key}
    for name, value in given.items():
        monkeypatch.setenv(f"STUDIO_{name}", value)
    return monkeypatch


@pytest.fixture
def call(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], images: FakeImages) -> RunCommand:
    """Run a command and check that its output contains no traceback and no secret."""

    def run(*arguments: object) -> CommandResult:
        said = run_command(main, capsys, *arguments)
        assert images.api_key not in said.out + said.err
        return said

    return run


@pytest.fixture
def studio(call: RunCommand) -> RunCommand:
    """The commands on a studio with the user ann, who has five credits."""
    for arguments in (("migrate",), ("user", "add", "ann", "--credits", "5")):
        assert call(*arguments).code == 0
    return call


@pytest.fixture
def work(environment: pytest.MonkeyPatch) -> Work:
    """Run a worker until no job is due."""

    def run() -> None:
        made = studio_from_settings(Settings.read())
        try:
            made.app.run_until_idle()
        finally:
            made.close()

    return run
