"""Three kinds of job: one delivers a file, one tells its user of a bad end, and one tells an administrator what only they can mend."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine

from interlock import App, Backoff, Fail, InterlockError, Job, Kind, Lifecycle, Refused, Retry, Run, Snooze

from . import tables, words
from .carriage import Carriage, Delivery, Means
from .errors import Refusal, Trouble
from .outside import Outside
from .settings import Settings

_log = logging.getLogger("courier")
LEASE = 15.0
"""Seconds. How far a delivery is travels with its heartbeat, every third of it."""
LONGEST = 6 * 3600.0
"""Seconds that one attempt may take: two gigabytes at a hundred kilobytes a second."""
UNTOLD = ("blocked", "unreachable")
"""Whoever has shut the door cannot be told anything."""

Deliver = Kind[[int, int], Delivery, Connection]
Tell = Kind[[str], None, Connection]
Alert = Kind[[int, str], None, Connection]


@dataclass(frozen=True)
class Courier:
    """The app with its three kinds, its own way to the database, and the outside."""

    app: App[Connection]
    engine: Engine
    outside: Outside
    deliver: Deliver
    tell: Tell
    alert: Alert

    def migrate(self) -> None:
        """Bring the database to this code's version. Running it again changes nothing."""
        self.app.migrate()
        tables.migrate(self.engine)

    def close(self) -> None:
        """Give back every connection of this process."""
        self.app.close()
        self.engine.dispose()


def build(settings: Settings, engine: Engine, outside: Outside) -> Courier:
    """The courier on this database. It opens nothing yet; each of its workers opens the outside for itself."""
    # A click that comes again after years must still find its delivery, so none is ever deleted.
    app = App(settings.database_url, transaction=engine.begin, lifespan=outside.open, retention={"succeeded": None})
    means = Means(engine, outside, settings)
    deliver, tell, alert = _deliver(app, means), _tell(app, means), _alert(app, means)
    _endings(deliver, tell, alert, settings.admins)
    return Courier(app, engine, outside, deliver, tell, alert)


@contextmanager
def judged() -> Generator[None]:
    """What the outside said, as the engine's answers. A failure begins with its code, by which the user is told of it in plain words."""
    try:
        yield
    except Refusal as error:
        raise Fail(f"{error.code}: {error}") from None
    except Trouble as error:
        raise Retry(f"trouble: {error}", after=error.retry_after) from None
    except (InterlockError, Fail, Retry, Snooze):
        raise
    except Exception as error:  # noqa: BLE001 - told to the log alone
        # What it says may name anything, and would stand in the audit for ever. The log is scrubbed.
        _log.exception("an attempt ended as nobody foresaw")
        raise Retry(f"unexpected: {type(error).__name__}") from None


# ---------------------------------------------------------------- deliver
def _deliver(app: App[Connection], means: Means) -> Deliver:
    lifecycle = Lifecycle.load(Path(__file__).with_name("lifecycle.md"), "delivery")

    @app.job(kind="deliver", lifecycle=lifecycle, tries=3, lease=LEASE, max_runtime=LONGEST, backoff=Backoff(10.0, cap=300.0))
    async def deliver(run: Run, user_id: int, file_id: int) -> Delivery:
        with judged():
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
        tables.delivered(tx, job.id, job.payload["user_id"], job.payload["file_id"], delivery.message_id, doubted=tables.doubted(tx, job.id))
        if delivery.content is not None:
            tables.remember(tx, delivery.content, delivery.telegram_file_id)

    return deliver


def _endings(deliver: Deliver, tell: Tell, alert: Alert, admins: tuple[int, ...]) -> None:
    """Whoever waits for a file hears of its bad end: that is stored together with the end itself."""

    @deliver.on_enter("FAILED")
    def failed(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        tell.using(conn=tx).enqueue(job.id)
        if (job.last_error or "").startswith("token:"):
            alert_token(tx, alert, admins)

    @deliver.on_enter("EXPIRED")
    def expired(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        tell.using(conn=tx).enqueue(job.id)


# ---------------------------------------------------------------- tell, alert
def _tell(app: App[Connection], means: Means) -> Tell:
    @app.job(kind="tell", tries=8, backoff=Backoff(10.0, cap=900.0))
    async def tell(run: Run, job_id: str) -> None:
        job = await app.aget(job_id)
        user_id, file_id = job.payload["user_id"], job.payload["file_id"]

        def text(tx: Connection) -> str:
            language, name = tables.language_of(tx, user_id), tables.name_of(tx, file_id)
            if job.state == "EXPIRED":
                return words.say(language, "expired", name=name)
            return words.say(language, "failed", name=name, reason=words.failure(language, job.last_error))

        await _said(run, means.outside, user_id, await means.asked(text))

    return tell


def _alert(app: App[Connection], means: Means) -> Alert:
    @app.job(kind="alert", tries=20, backoff=Backoff(10.0, cap=3600.0))
    async def alert(run: Run, admin_id: int, what: str) -> None:
        language = await means.asked(lambda tx: tables.language_of(tx, admin_id))
        await _said(run, means.outside, admin_id, words.say(language, f"alert_{what}"))

    return alert


async def _said(run: Run, outside: Outside, user_id: int, text: str) -> None:
    """Say it. In doubt it is said again: to hear it twice does no harm, and not to hear it does."""

    async def say() -> int:
        return await outside.telegram.say(user_id, text)

    with judged():
        try:
            await run.effect("say", on_doubt="retry")(say)
        except Refusal as error:
            if error.code not in UNTOLD:
                raise


def alert_token(tx: Connection, alert: Alert, admins: tuple[int, ...]) -> None:
    """Tell each administrator that the disk's token is refused: once for each token, however many deliveries find out."""
    generation = tables.token_generation(tx)
    for admin in admins:
        alert.using(conn=tx, idempotency_key=f"token:{generation}:{admin}").enqueue(admin, "token")
