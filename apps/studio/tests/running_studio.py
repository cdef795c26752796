"""A studio in its own process (`run` or `serve`), which a test can stop and start again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import SecretStr

from apps.common.tests.waiting import wait_until
from apps.studio.assembly import studio_from_settings
from apps.studio.settings import Settings
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.tests.studio_kit import MODEL
from apps.studio.users import User, Users

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
LISTENING = "listening at "


class RunningStudio:
    """A studio process with its users and its fake Images API."""

    def __init__(self, users: Users, images: FakeImages, settings: Settings, log: Path, command: str = "run") -> None:
        self.users, self.images, self._settings, self._log, self._command = users, images, settings, log, command
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def user(self, name: str, *, credits: int = 10, admin: bool = False) -> User:
        return self.users.add(name, credits=credits, admin=admin)

    def available(self, user: User) -> int:
        return self.users.balance(user.id).available

    def open(self) -> None:
        """Start it; after a restart at the same address."""
        told = {
            "DATABASE_URL": self._settings.database_url, "STORAGE": self._settings.storage, "PROVIDER": "openai",
            "API_URL": self.images.url,
            "API_KEY": self.images.api_key, "MODEL": MODEL,
        }  # fmt: skip
        address = self.url.removeprefix("http://") or "127.0.0.1:0"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "apps.studio", self._command, "--http", address], cwd=ROOT,
                start_new_session=True,
                env=os.environ | {f"STUDIO_{name}": value for name, value in told.items()}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output,
            )  # fmt: skip
        self.url = wait_until(self._listening)

    def _listening(self) -> str | None:
        said = self._log.read_text(errors="replace")
        assert self._process is not None
        assert self._process.poll() is None, said
        return next((line.removeprefix(LISTENING) for line in said.splitlines() if line.startswith(LISTENING)), None)

    def close(self) -> None:
        """Stop it and wait until it has ended."""
        if self._process is None:
            return
        # The process was not waited for yet, so its ID cannot belong to another process.
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
def running_studio(directory: Path, command: str = "run") -> Iterator[RunningStudio]:
    """A running studio; with `serve`, without a worker."""
    with ExitStack() as stack:
        images = stack.enter_context(FakeImages())
        # Built directly, so that no .env file of the working directory applies.
        settings = Settings.model_construct(
            database_url=f"sqlite:///{directory / 'studio.db'}", storage=str(directory / "files"), provider="openai",
            api_url=images.url,
            api_key=SecretStr(images.api_key), model=MODEL, block_list=None, moderator=None,
        )  # fmt: skip
        studio = stack.enter_context(closing(studio_from_settings(settings)))
        studio.migrate()
        made = RunningStudio(Users(studio), images, settings, directory / "studio.log", command)
        stack.callback(made.close)
        made.open()
        yield made
