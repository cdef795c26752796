"""Fixtures for the tests of the command line: an empty directory, a sample app, and a way to call the command."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.cli import main
from tests.kit import Place
from tests.surface.cli_kit import MODULE, Answer, Call
from tests.surface.launcher import APPS, ENGINE, Launcher, launcher


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory, an environment without settings, and no modules of earlier tests."""
    for name in ("INTERLOCK_APP", "INTERLOCK_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOGNAME", "olga")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "here"
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], here: Path) -> Call:
    """Run the command; it must never show a traceback."""

    def run(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        printed = capsys.readouterr()
        code = exit_.value.code
        return Answer(code if isinstance(code, int) else 0 if code is None else 1, printed.out, printed.err)

    return run


@pytest.fixture
def shop(place: Place, here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> str:
    """A sample app on a migrated database; INTERLOCK_APP names it."""
    (here / "shop.py").write_text(MODULE.format(url=place.url, schema=place.schema))
    assert call("migrate", "-A", "shop:app").code == 0
    monkeypatch.setenv("INTERLOCK_APP", "shop:app")
    return "shop:app"


@pytest.fixture(scope="session")
def engine_launcher() -> Iterator[Launcher]:
    """Start the engine's programs quickly."""
    with launcher(*ENGINE) as made:
        yield made


@pytest.fixture(scope="session")
def app_launcher() -> Iterator[Launcher]:
    """Start the applications' programs quickly."""
    with launcher(*ENGINE, *APPS) as made:
        yield made
