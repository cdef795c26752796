"""An atelier for tests: the studio on an empty database, an Images API of its own, a worker, and time that a test sets."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.common.database import connect
from apps.common.tests.kits import Kit
from apps.studio import books, tables
from apps.studio.counter import Counter
from apps.studio.gallery import Gallery
from apps.studio.jobs import Means, Studio, build
from apps.studio.ledger import Balance
from apps.studio.order import Params
from apps.studio.originals import Originals
from apps.studio.people import People, User
from apps.studio.prompt_guard import PromptGuard
from apps.studio.providers.openai import Images
from apps.studio.review import Review
from apps.studio.tests.images_api import FakeImages
from interlock.testing import KitClock, KitWorker, fresh

MODEL = "gpt-image-1"
PROMPT = "a lighthouse in the fog"
# The ways that images go.
QUEUED = [(None, "queued")]
BEGUN = [*QUEUED, ("queued", "running")]
COMPLETED = [*BEGUN, ("running", "completed")]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Atelier(Kit):
    """The studio at one database, before one Images API."""

    studio: Studio
    people: People
    counter: Counter
    gallery: Gallery
    review: Review
    clock: KitClock
    worker: KitWorker
    images: FakeImages
    directory: Path
    """Of the originals."""

    @property
    def application(self) -> Studio:
        return self.studio

    # ------------------------------------------------------------ people and orders
    def user(self, credits: int = 10, *, name: str | None = None, admin: bool = False) -> User:
        """Somebody new, with so many credits."""
        return self.people.add(name or f"painter {next(_numbers)}", admin=admin, credits=credits)

    def order(self, user: User | int | None = None, prompt: str = PROMPT, **params: Any) -> str:
        """A job's id; for a user made on the spot, unless one is given."""
        user = self.user() if user is None else user
        return self.counter.create_job(user if isinstance(user, int) else user.id, prompt, Params(**params)).id

    def balance(self, user: User | int) -> Balance:
        return self.people.balance(user if isinstance(user, int) else user.id)

    # ------------------------------------------------------------ what became of it
    def stored(self) -> dict[str, int]:
        """How many rows there are of everything."""
        return self.counted(*tables.metadata.tables, engines=("jobs", "audit", "receipts"))

    def check(self) -> None:
        """The books have no fault, and nor has the engine's own."""
        _, faults = books.check(self.studio)
        assert faults == []
        report = self.app.verify()
        assert report.ok, report


@contextmanager
def atelier(url: str, images: FakeImages, directory: Path, **given: Any) -> Iterator[Atelier]:
    """An atelier on an empty database, migrated, with its time standing still. The means are the real ones, unless they are given otherwise."""
    provider, kept = Images(images.url, images.api_key, MODEL), directory / "files"
    whole = {"guard": PromptGuard(), "moderator": None, "provider": provider, "originals": Originals.in_directory(kept), **given}
    studio, clock = build(url, connect(url), Means(**whole), lifespan=provider.open), KitClock()
    try:
        with fresh(studio.app, clock, directory, url):
            studio.migrate()
            yield Atelier(
                studio, People(studio), Counter(studio, now=clock.now), Gallery(studio, now=clock.now), Review(studio), clock, KitWorker(studio.app, clock),
                images, kept)
    finally:
        studio.close()
