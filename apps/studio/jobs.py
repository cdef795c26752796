"""The job kind `image`. Each transition of a job settles its credits in the same transaction."""

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, select
from typing_extensions import override

from apps.common.application import Application
from apps.common.database import engine_table, insert
from apps.common.retry_after import retry_delay
from interlock import App, Backoff, Enqueued, Fail, Job, Kind, Lifecycle, Reject, Retry, Run

from . import ledger, tables
from .clients.originals import Originals, StoredImage
from .clients.provider import Provider
from .errors import PermanentError, Refusal, SafetyBlocked, TemporaryError
from .generation import Generation
from .order import Order
from .prompt_guard import Moderator, PromptGuard
from .tables import assets, orders, reviews

MAX_RETRIES = 4
"""The number of failures after which a job becomes a dead letter."""
LEASE = 15.0
MAX_RUNTIME = 600.0
"""The longest time of one attempt, in seconds."""
BACKOFF = Backoff(10.0, factor=4.0, cap=600.0)
"""A random wait of up to 10, then 40, then 160 seconds."""
MAX_RETRY_AFTER = 3600.0
"""The longest wait in seconds that a provider can ask for."""
SAFE_BLOCK = "SAFE_BLOCK"

Image = Kind[[Order], StoredImage, Connection]
Lifespan = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Dependencies:
    """The services that the studio uses."""

    guard: PromptGuard
    moderator: Moderator | None
    provider: Provider
    originals: Originals


@dataclass(frozen=True)
class Studio(Application):
    """The studio's Interlock app, its database engine, its job kind and its dependencies."""

    image: Image
    dependencies: Dependencies

    @override
    def _create_tables(self) -> None:
        tables.migrate(self.engine)


def build(url: str, engine: Engine, dependencies: Dependencies, *, lifespan: Lifespan | None = None) -> Studio:
    """Build the studio on this database. It opens no connection yet; `lifespan` wraps each of its workers."""
    # The ledger and the gallery refer to jobs, so jobs are never deleted.
    app = App(url, transaction=engine.begin, lifespan=lifespan, retention={"succeeded": None})
    image = _image(app, dependencies)
    _bind_credits(image, dependencies.guard)
    return Studio(app, engine, image, dependencies)


@contextmanager
def translate_errors(attempt: int) -> Generator[None]:
    """Translate provider errors into the engine's Reject, Fail and Retry."""
    try:
        yield
    except SafetyBlocked as error:
        raise Reject(f"{SAFE_BLOCK}: {error}") from None
    except PermanentError as error:
        raise Fail(str(error)) from None
    except TemporaryError as error:
        raise Retry(
            str(error),
            after=retry_delay(
                None if error.retry_after is None else min(error.retry_after, MAX_RETRY_AFTER), BACKOFF, attempt
            ),
        ) from None


def _image(app: App[Connection], dependencies: Dependencies) -> Image:
    lifecycle = Lifecycle.load(Path(__file__).with_name("lifecycle.md"), "image")

    @app.job(
        kind="image",
        lifecycle=lifecycle,
        tries=MAX_RETRIES,
        lease=LEASE,
        max_runtime=MAX_RUNTIME,
        backoff=BACKOFF,
        key_until=["dead_letter"],
    )
    async def image(run: Run, order: Order) -> StoredImage:
        with translate_errors(run.attempt):
            return await Generation(run, dependencies.provider, dependencies.originals, order).make_image()

    return image


def _bind_credits(image: Image, guard: PromptGuard) -> None:
    """Reserve credits when a job is created and settle them when it ends, in the transaction of the transition."""

    @image.admit
    def admitted(tx: Connection, job: Enqueued, order: Order) -> None:  # pyright: ignore[reportUnusedFunction]
        guard.validate(order.prompt)
        order.params.check()
        if not _record_redrive(tx, job.id):
            order.check_price()
        ledger.reserve(tx, order.user_id, job.id, order.cost)
        size, seed = order.params.size, order.params.seed
        tx.execute(
            orders.insert().values(
                job_id=job.id, user_id=order.user_id, prompt=order.prompt, size=size, seed=seed, cost=order.cost
            )
        )

    @image.commit
    def completed(tx: Connection, job: Job, kept: StoredImage) -> None:  # pyright: ignore[reportUnusedFunction]
        asset = {
            "path": kept.path,
            "content_type": kept.content_type,
            "bytes": kept.bytes,
            "sha256": kept.sha256,
            "width": kept.width,
            "height": kept.height,
        }
        tx.execute(assets.insert().values(job_id=job.id, user_id=job.payload["order"]["user_id"], **asset))
        ledger.settle(tx, job.id, "capture")

    @image.on_enter("rejected")
    def rejected(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        ledger.settle(tx, job.id, "forfeit", SAFE_BLOCK)

    @image.on_enter("dead_letter")
    def buried(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        ledger.settle(tx, job.id, "release")


def _record_redrive(tx: Connection, id: str) -> bool:
    """Return whether this job redrives another one, and if so record the decision. A dead letter is redriven once."""
    job = engine_table(tx.dialect, "jobs", "id", "redrive_of", "state")
    old = tx.scalar(select(job.c.redrive_of).where(job.c.id == id))
    if old is None:
        return False
    if tx.scalar(select(job.c.state).where(job.c.id == old)) != "dead_letter":
        raise Refusal("not_redrivable", f"Job {old} is not a dead letter. Only dead letters can be redriven.")
    # The engine has already stored the actor in the new job's history, in this transaction.
    audit = engine_table(tx.dialect, "audit", "job_id", "event", "actor")
    actor = tx.execute(select(audit.c.actor).where(audit.c.job_id == id, audit.c.event == "enqueue")).scalar_one()
    decision = {"job_id": old, "decision": "redriven", "successor": id, "by": actor.removeprefix("operator:")}
    review = tx.execute(insert(tx, reviews).values(decision).on_conflict_do_nothing())
    if review.rowcount != 1:
        raise Refusal("not_redrivable", f"Job {old} already has a decision. `dead show {old}` shows it.")
    return True
