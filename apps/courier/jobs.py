"""Three kinds of job: one delivers a file, one tells its user of a bad end, and one tells an administrator what only they can mend."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, Engine
from typing_extensions import override

from apps.common.application import Application
from apps.common.pauses import longer
from interlock import App, Backoff, Fail, InterlockError, Job, Kind, Lifecycle, Refused, Retry, Run, Snooze

from . import tables, words
from .carriage import SEND, Carriage, Delivery, Means
from .errors import Refusal, Trouble, told
from .outside import Outside
from .settings import Settings

_log = logging.getLogger("courier")
LEASE = 15.0
"""Seconds. How far a delivery is travels with its heartbeat, every third of it."""
LONGEST = 6 * 3600.0
"""Seconds that one attempt may take: two gigabytes at a hundred kilobytes a second."""
BACKOFF = Backoff(30.0, factor=8.0, cap=600.0)
"""With three tries: up to half a minute, then up to four minutes. A restart of either side is to be over by then."""
TELLING = Backoff(10.0, cap=3600.0)
"""With two hundred tries: for about a week of a Telegram that is away."""
UNTOLD = ("blocked", "unreachable")
"""Whoever has shut the door cannot be told anything."""

Deliver = Kind[[int, int], Delivery, Connection]
Tell = Kind[[str], None, Connection]
Alert = Kind[[int, str], None, Connection]


@dataclass(frozen=True)
class Courier(Application):
    """The app with its three kinds, its own way to the database, and the outside."""

    outside: Outside
    deliver: Deliver
    tell: Tell
    alert: Alert

    @override
    def _make_tables(self) -> None:
        tables.migrate(self.engine)


def build(settings: Settings, engine: Engine, outside: Outside) -> Courier:
    """The courier on this database. It opens nothing yet; each of its workers opens the outside for itself."""
    # A click that comes again after years must still find its delivery, so none is ever deleted.
    app = App(settings.database_url, transaction=engine.begin, lifespan=outside.open, retention={"succeeded": None})
    means = Means(engine, outside, settings)
    deliver, tell, alert = _deliver(app, means), _tell(app, means), _alert(app, means)
    _endings(deliver, tell, alert, settings.admins)
    return Courier(app, engine, outside, deliver, tell, alert)


@contextmanager
def judged(attempt: int, backoff: Backoff) -> Generator[None]:
    """What the outside said at this attempt, as the engine's answers. A failure begins with its code, by which the user is told of it in plain words."""
    try:
        yield
    except Refusal as error:
        raise Fail(f"{error.code}: {error}") from None
    except Trouble as error:
        raise Retry(f"trouble: {error}", after=longer(error.retry_after, backoff, attempt)) from None
    except (InterlockError, Fail, Retry, Snooze):
        raise
    except Exception as error:  # noqa: BLE001 - none of its words is kept
        # What it says may name anything, and would stand in the audit for ever.
        _log.error("An attempt ended as nobody foresaw: %s", told(error))
        raise Retry(f"unexpected: {type(error).__name__}") from None


# ---------------------------------------------------------------- deliver
def _deliver(app: App[Connection], means: Means) -> Deliver:
    lifecycle = Lifecycle.load(Path(__file__).with_name("lifecycle.md"), "delivery")

    @app.job(kind="deliver", lifecycle=lifecycle, tries=3, lease=LEASE, max_runtime=LONGEST, backoff=BACKOFF)
    async def deliver(run: Run, user_id: int, file_id: int) -> Delivery:
        with judged(run.attempt, BACKOFF):
            return await Carriage(run, means, user_id, file_id).carried()

    @deliver.admit
    def allowed(tx: Connection, user_id: int, file_id: int) -> None:  # pyright: ignore[reportUnusedFunction]
        del file_id
        if tables.status_of(tx, user_id) != "ACTIVE":
            raise Refused("The user is not allowed to use the library.")

    @deliver.guard
    def active(job: Job, user_id: int, file_id: int) -> None:  # pyright: ignore[reportUnusedFunction]
        del job, file_id
        if means.ask(lambda tx: tables.status_of(tx, user_id)) != "ACTIVE":
            raise Fail("inactive: The user is not allowed to use the library any more.")

    @deliver.commit
    def record(tx: Connection, job: Job, delivery: Delivery) -> None:  # pyright: ignore[reportUnusedFunction]
        tables.delivered(tx, job.id, job.payload["user_id"], job.payload["file_id"], delivery.message_id, doubted=tables.doubted(tx, _first(job)))
        if delivery.content is not None:
            tables.remember(tx, delivery.content, delivery.telegram_file_id)

    return deliver


def _endings(deliver: Deliver, tell: Tell, alert: Alert, admins: tuple[int, ...]) -> None:
    """Whoever waits for a file hears of its bad end, and of a doubt that ends with it: that is stored together with the end itself."""

    @deliver.on_enter("FAILED")
    def failed(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        _doubted(tx, job)
        tell.using(conn=tx).enqueue(job.id)
        if (job.last_error or "").startswith("shut_out:"):
            alert_token(tx, alert, admins, job.updated_at)

    @deliver.on_enter("EXPIRED")
    def expired(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        _doubted(tx, job)
        tell.using(conn=tx).enqueue(job.id)

    @deliver.on_enter("CANCELLED")
    def cancelled(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        # Whoever cancels knows that; only a file that may have come all the same is news.
        if _doubted(tx, job):
            tell.using(conn=tx).enqueue(job.id)


def _doubted(tx: Connection, job: Job) -> bool:
    """Whether the file of a delivery that ended without success may have arrived all the same. If so, that is written down."""
    if tables.receipt(tx, job.id, SEND) != "none":
        tables.doubt(tx, _first(job))
    return tables.doubted(tx, _first(job))


def _first(job: Job) -> str:
    """A delivery that an operator drove again goes on with the doubts of the first."""
    return job.root or job.id


# ---------------------------------------------------------------- tell, alert
def _tell(app: App[Connection], means: Means) -> Tell:
    @app.job(kind="tell", tries=200, backoff=TELLING)
    async def tell(run: Run, job_id: str) -> None:
        job = await app.aget(job_id)
        user_id, file_id = job.payload["user_id"], job.payload["file_id"]

        def text(tx: Connection) -> str:
            language, name = tables.language_of(tx, user_id), tables.name_of(tx, file_id)
            key = job.state.lower() + ("_maybe" if tables.doubted(tx, _first(job)) else "")
            return words.say(language, key, name=name, reason=words.failure(language, job.last_error))

        await _said(run, means.outside, user_id, await means.asked(text))

    return tell


def _alert(app: App[Connection], means: Means) -> Alert:
    @app.job(kind="alert", tries=200, backoff=TELLING)
    async def alert(run: Run, admin_id: int, what: str) -> None:
        language = await means.asked(lambda tx: tables.language_of(tx, admin_id))
        await _said(run, means.outside, admin_id, words.say(language, f"alert_{what}"))

    return alert


async def _said(run: Run, outside: Outside, user_id: int, text: str) -> None:
    """Say it. In doubt it is said again: to hear it twice does no harm, and not to hear it does."""

    async def say() -> int:
        return await outside.telegram.say(user_id, text)

    with judged(run.attempt, TELLING):
        try:
            await run.effect("say", on_doubt="retry")(say)
        except Refusal as error:
            if error.code == "bot_refused":
                # An administrator mends that, and then there is still somebody to be told.
                raise Trouble(str(error)) from None
            if error.code not in UNTOLD:
                raise


def alert_token(tx: Connection, alert: Alert, admins: tuple[int, ...], at: datetime) -> None:
    """Tell each administrator that the disk's token is refused: once a day for the same settings, however many deliveries find out."""
    given = tables.token_given(tx)
    for admin in admins:
        alert.using(conn=tx, idempotency_key=f"token:{given}:{at.date()}:{admin}").enqueue(admin, "token")
