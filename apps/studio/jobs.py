"""One kind of job: it makes an image, and whatever becomes of it, its credits follow in the same transaction."""

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, select
from typing_extensions import override

from apps.common.application import Application
from apps.common.database import insert, of_engine
from apps.common.pauses import longer
from interlock import App, Backoff, Enqueued, Fail, Job, Kind, Lifecycle, Reject, Retry, Run

from . import ledger, tables
from .errors import Blocked, Hopeless, Refusal, Trouble
from .generation import Generation
from .order import Order
from .originals import Kept, Originals
from .prompt_guard import Moderator, PromptGuard
from .providers import Provider
from .tables import assets, orders, reviews

MAX_RETRIES = 4
"""Failures after which a job is buried."""
LEASE = 15.0
LONGEST = 600.0
"""Seconds that one attempt may take."""
BACKOFF = Backoff(10.0, factor=4.0, cap=600.0)
"""Up to ten seconds, then up to forty, then up to nearly three minutes."""
LONGEST_WAIT = 3600.0
"""Seconds. A provider that asks for a longer pause is asked again after an hour."""
SAFE_BLOCK = "SAFE_BLOCK"

Image = Kind[[Order], Kept, Connection]
Lifespan = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Means:
    """What the studio works with."""

    guard: PromptGuard
    moderator: Moderator | None
    provider: Provider
    originals: Originals


@dataclass(frozen=True)
class Studio(Application):
    """The app with its kind, its own way to the database, and what it works with."""

    image: Image
    means: Means

    @override
    def _make_tables(self) -> None:
        tables.migrate(self.engine)


def build(url: str, engine: Engine, means: Means, *, lifespan: Lifespan | None = None) -> Studio:
    """The studio on this database. It opens nothing yet; `lifespan` wraps each of its workers."""
    # The ledger and the gallery speak of jobs for ever, so none is ever deleted.
    app = App(url, transaction=engine.begin, lifespan=lifespan, retention={"succeeded": None})
    image = _image(app, means)
    _credits(image, means.guard)
    return Studio(app, engine, image, means)


@contextmanager
def judged(attempt: int) -> Generator[None]:
    """What the provider said at this attempt, as the engine's answers."""
    try:
        yield
    except Blocked as error:
        raise Reject(f"{SAFE_BLOCK}: {error}") from None
    except Hopeless as error:
        raise Fail(str(error)) from None
    except Trouble as error:
        raise Retry(str(error), after=longer(None if error.retry_after is None else min(error.retry_after, LONGEST_WAIT), BACKOFF, attempt)) from None


def _image(app: App[Connection], means: Means) -> Image:
    lifecycle = Lifecycle.load(Path(__file__).with_name("lifecycle.md"), "image")

    @app.job(
        kind="image", lifecycle=lifecycle, tries=MAX_RETRIES, lease=LEASE, max_runtime=LONGEST, backoff=BACKOFF, key_until=["dead_letter"])
    async def image(run: Run, order: Order) -> Kept:
        with judged(run.attempt):
            return await Generation(run, means.provider, means.originals, order).kept()

    return image


def _credits(image: Image, guard: PromptGuard) -> None:
    """Reserved when a job is made, captured, forfeited or released at its end: whoever makes the move, in the transaction of the move."""

    @image.admit
    def admitted(tx: Connection, job: Enqueued, order: Order) -> None:  # pyright: ignore[reportUnusedFunction]
        guard.validate(order.prompt)
        order.params.check()
        if not _driven_again(tx, job.id):
            order.check_price()
        ledger.reserve(tx, order.user_id, job.id, order.cost)
        size, seed = order.params.size, order.params.seed
        tx.execute(orders.insert().values(job_id=job.id, user_id=order.user_id, prompt=order.prompt, size=size, seed=seed, cost=order.cost))

    @image.commit
    def completed(tx: Connection, job: Job, kept: Kept) -> None:  # pyright: ignore[reportUnusedFunction]
        asset = {"path": kept.path, "content_type": kept.content_type, "bytes": kept.bytes, "sha256": kept.sha256, "width": kept.width, "height": kept.height}
        tx.execute(assets.insert().values(job_id=job.id, user_id=job.payload["order"]["user_id"], **asset))
        ledger.settle(tx, job.id, "capture")

    @image.on_enter("rejected")
    def rejected(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        ledger.settle(tx, job.id, "forfeit", SAFE_BLOCK)

    @image.on_enter("dead_letter")
    def buried(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        ledger.settle(tx, job.id, "release")


def _driven_again(tx: Connection, id: str) -> bool:
    """Whether a job repeats another. If so it is that one's review: only of a dead letter, and only once."""
    job = of_engine(tx.dialect, "jobs", "id", "redrive_of", "state")
    old = tx.scalar(select(job.c.redrive_of).where(job.c.id == id))
    if old is None:
        return False
    if tx.scalar(select(job.c.state).where(job.c.id == old)) != "dead_letter":
        raise Refusal("not_redrivable", f"Job {old} is no dead letter: only one that was buried is driven again.")
    # Who did it stands in the new job's history already, in this very transaction.
    audit = of_engine(tx.dialect, "audit", "job_id", "event", "actor")
    actor = tx.execute(select(audit.c.actor).where(audit.c.job_id == id, audit.c.event == "enqueue")).scalar_one()
    decision = {"job_id": old, "decision": "redriven", "successor": id, "by": actor.removeprefix("operator:")}
    review = tx.execute(insert(tx, reviews).values(decision).on_conflict_do_nothing())
    if review.rowcount != 1:
        raise Refusal("not_redrivable", f"Somebody has decided about job {old} already: `dead show {old}` says what.")
    return True
