"""The studio as people meet it: `run` or `serve` in a process of its own, which a test may stop and start again, before an Images API of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import SecretStr

from apps.common.tests.waiting import eventually
from apps.studio.assembly import assembled
from apps.studio.people import People, User
from apps.studio.settings import Settings
from apps.studio.tests.images_api import FakeImages
from apps.studio.tests.kit import MODEL

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
LISTENING = "listening at "


class Shop:
    """One studio: its process, its people, and who draws for it."""

    def __init__(self, people: People, images: FakeImages, settings: Settings, log: Path, command: str = "run") -> None:
        self.people, self.images, self._settings, self._log, self._command = people, images, settings, log, command
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def user(self, name: str, *, credits: int = 10, admin: bool = False) -> User:
        return self.people.add(name, credits=credits, admin=admin)

    def available(self, user: User) -> int:
        return self.people.balance(user.id).available

    def open(self) -> None:
        """Start it; the second time at the same address."""
        told = {
            "DATABASE_URL": self._settings.database_url, "STORAGE": self._settings.storage, "PROVIDER": "openai", "API_URL": self.images.url,
            "API_KEY": self.images.api_key, "MODEL": MODEL,
        }  # fmt: skip
        address = self.url.removeprefix("http://") or "127.0.0.1:0"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "apps.studio", self._command, "--http", address], cwd=ROOT, start_new_session=True,
                env=os.environ | {f"STUDIO_{name}": value for name, value in told.items()}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self.url = eventually(self._listening)

    def _listening(self) -> str | None:
        said = self._log.read_text(errors="replace")
        assert self._process is not None
        assert self._process.poll() is None, said
        return next((line.removeprefix(LISTENING) for line in said.splitlines() if line.startswith(LISTENING)), None)

    def close(self) -> None:
        """Ask it to end, and wait until it has."""
        if self._process is None:
            return
        # Not yet waited for, so that the id cannot be another's.
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)
            raise
        finally:
            self._process = None


@contextmanager
def shop(directory: Path, command: str = "run") -> Iterator[Shop]:
    """A studio that is open; with `serve`, one in which nobody draws."""
    with ExitStack() as stack:
        images = stack.enter_context(FakeImages())
        # Made here, and not read: no .env of the working directory counts.
        settings = Settings.model_construct(
            database_url=f"sqlite:///{directory / 'studio.db'}", storage=str(directory / "files"), provider="openai", api_url=images.url,
            api_key=SecretStr(images.api_key), model=MODEL, block_list=None, moderator=None,
        )  # fmt: skip
        studio = stack.enter_context(closing(assembled(settings)))
        studio.migrate()
        made = Shop(People(studio), images, settings, directory / "studio.log", command)
        stack.callback(made.close)
        made.open()
        yield made
