"""A studio that is worked by its commands alone, on an empty database and before the provider of the test."""

import os
from pathlib import Path

import pytest

from apps.common.tests.commands import Call, Said, called
from apps.studio.assembly import assembled
from apps.studio.main import main
from apps.studio.settings import Settings
from apps.studio.tests.commands.kit import Work
from apps.studio.tests.images_api import FakeImages


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str, images: FakeImages) -> pytest.MonkeyPatch:
    """An empty directory, and settings that name an empty database and the provider of the test."""
    for name in [name for name in os.environ if name.startswith("STUDIO_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    given = {"DATABASE_URL": database_url, "PROVIDER": "openai", "API_URL": images.url, "API_KEY": images.api_key}
    for name, value in given.items():
        monkeypatch.setenv(f"STUDIO_{name}", value)
    return monkeypatch


@pytest.fixture
def call(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], images: FakeImages) -> Call:
    """Run a command as a person would; nobody ever sees a traceback or a secret."""

    def run(*arguments: object) -> Said:
        said = called(main, capsys, *arguments)
        assert images.api_key not in said.out + said.err
        return said

    return run


@pytest.fixture
def studio(call: Call) -> Call:
    """The commands on a studio with a user, ann, who has five credits."""
    for arguments in (("migrate",), ("user", "add", "ann", "--credits", "5")):
        assert call(*arguments).code == 0
    return call


@pytest.fixture
def work(environment: pytest.MonkeyPatch) -> Work:
    """A worker that does all that is due."""

    def run() -> None:
        made = assembled(Settings.read())
        try:
            made.app.run_until_idle()
        finally:
            made.close()

    return run
