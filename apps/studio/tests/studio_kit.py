"""The test kit: a studio on an empty database, a fake Images API, a worker and a clock that the test sets."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.common.database import make_engine
from apps.common.tests.app_kit import AppKit
from apps.common.tests.kit_database import migrated_database
from apps.studio import ledger_check, tables
from apps.studio.clients.openai_images import OpenAIImages
from apps.studio.clients.originals import Originals
from apps.studio.dead_letters import DeadLetters
from apps.studio.gallery import Gallery
from apps.studio.jobs import Dependencies, Studio, build
from apps.studio.ledger import Balance
from apps.studio.order import Params
from apps.studio.orders import Orders
from apps.studio.prompt_guard import PromptGuard
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.users import User, Users
from interlock.testing import KitClock, KitWorker

MODEL = "gpt-image-1"
PROMPT = "a lighthouse in the fog"
# The transitions of a job.
QUEUED = [(None, "queued")]
BEGUN = [*QUEUED, ("queued", "running")]
COMPLETED = [*BEGUN, ("running", "completed")]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class StudioKit(AppKit):
    """A studio on one database with one fake Images API."""

    studio: Studio
    users: Users
    orders: Orders
    gallery: Gallery
    dead_letters: DeadLetters
    clock: KitClock
    worker: KitWorker
    images: FakeImages
    directory: Path
    """Of the originals."""

    @property
    def application(self) -> Studio:
        return self.studio

    # ------------------------------------------------------------ users and orders
    def user(self, credits: int = 10, *, name: str | None = None, admin: bool = False) -> User:
        """Add a user with this many credits."""
        return self.users.add(name or f"painter {next(_numbers)}", admin=admin, credits=credits)

    def order(self, user: User | int | None = None, prompt: str = PROMPT, **params: Any) -> str:
        """Order an image and return the job ID; without a user, add one."""
        user = self.user() if user is None else user
        return self.orders.create_job(user if isinstance(user, int) else user.id, prompt, Params(**params)).id

    def balance(self, user: User | int) -> Balance:
        return self.users.balance(user if isinstance(user, int) else user.id)

    # ------------------------------------------------------------ checks
    def stored(self) -> dict[str, int]:
        """The number of rows of each table."""
        return self.count_rows(*tables.metadata.tables, engines=("jobs", "audit", "receipts"))

    def check(self) -> None:
        """Assert that neither the ledger check nor the engine finds a fault."""
        _, faults = ledger_check.check(self.studio)
        assert faults == []
        report = self.app.verify()
        assert report.ok, report


@contextmanager
def studio_kit(url: str, images: FakeImages, directory: Path, **given: Any) -> Iterator[StudioKit]:
    """A migrated studio on an empty database with a stopped clock. Dependencies can be replaced."""
    provider, kept = OpenAIImages(images.url, images.api_key, MODEL), directory / "files"
    whole = {
        "guard": PromptGuard(),
        "moderator": None,
        "provider": provider,
        "originals": Originals.in_directory(kept),
        **given,
    }
    studio, clock = build(url, make_engine(url), Dependencies(**whole), lifespan=provider.open), KitClock()
    try:
        with migrated_database(studio, clock, directory, url):
            yield StudioKit(
                studio,
                Users(studio),
                Orders(studio, now=clock.now),
                Gallery(studio, now=clock.now),
                DeadLetters(studio),
                clock,
                KitWorker(studio.app, clock),
                images,
                kept,
            )
    finally:
        studio.close()
