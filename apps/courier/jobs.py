"""The three kinds of job: deliver a file, notify its user of a failure, and alert an administrator."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, Engine
from typing_extensions import override

from apps.common.application import Application
from apps.common.retry_after import retry_delay
from interlock import App, Backoff, Fail, InterlockError, Job, Kind, Lifecycle, Refused, Retry, Run, Snooze

from . import formatting, tables
from .clients.connections import Clients
from .delivery_attempt import SEND, Delivery, DeliveryAttempt, JobContext
from .errors import PermanentError, TemporaryError, format_error
from .settings import Settings

_log = logging.getLogger("courier")
LEASE = 15.0
"""Seconds. Progress is stored with the heartbeat, every third of the lease."""
MAX_RUNTIME = 6 * 3600.0
"""Seconds that one attempt may take: 2 GB at 100 KB/s."""
BACKOFF = Backoff(30.0, factor=8.0, cap=600.0)
"""With three tries: up to half a minute, then up to four minutes, so that an external system has time to restart."""
NOTIFY_BACKOFF = Backoff(10.0, cap=3600.0)
"""With two hundred tries: about a week of retries while Telegram is unreachable."""
UNREACHABLE_CODES = ("blocked", "unreachable")
"""Users with these errors cannot receive messages."""

Deliver = Kind[[int, int], Delivery, Connection]
Notify = Kind[[str], None, Connection]
Alert = Kind[[int, str], None, Connection]


@dataclass(frozen=True)
class Courier(Application):
    """The Interlock app with its three kinds, the database engine and the clients."""

    clients: Clients
    deliver: Deliver
    notify: Notify
    alert: Alert

    @override
    def _create_tables(self) -> None:
        tables.migrate(self.engine)


def build_courier(settings: Settings, engine: Engine, clients: Clients) -> Courier:
    """Build the courier on this database. Nothing is opened yet; each worker opens its own clients."""
    # A click that is repeated years later must find its delivery, so deliveries are never deleted.
    app = App(settings.database_url, transaction=engine.begin, lifespan=clients.open, retention={"succeeded": None})
    context = JobContext(engine, clients, settings)
    deliver, notify, alert = _deliver(app, context), _notify(app, context), _alert(app, context)
    _add_end_hooks(deliver, notify, alert, settings.admins)
    return Courier(app, engine, clients, deliver, notify, alert)


@contextmanager
def translate_errors(attempt: int, backoff: Backoff) -> Generator[None]:
    """Translate the courier's errors to the engine's outcomes. The text of a failure starts with its error code."""
    try:
        yield
    except PermanentError as error:
        raise Fail(f"{error.code}: {error}") from None
    except TemporaryError as error:
        raise Retry(f"temporary: {error}", after=retry_delay(error.retry_after, backoff, attempt)) from None
    except (InterlockError, Fail, Retry, Snooze):
        raise
    except Exception as error:  # noqa: BLE001 - its text is not stored
        # The text of an unknown error may contain secrets, and the audit would keep it forever.
        _log.error("An attempt failed with an unexpected error: %s", format_error(error))
        raise Retry(f"unexpected: {type(error).__name__}") from None


# ---------------------------------------------------------------- deliver
def _deliver(app: App[Connection], context: JobContext) -> Deliver:
    lifecycle = Lifecycle.load(Path(__file__).with_name("lifecycle.md"), "delivery")

    @app.job(kind="deliver", lifecycle=lifecycle, tries=3, lease=LEASE, max_runtime=MAX_RUNTIME, backoff=BACKOFF)
    async def deliver(run: Run, user_id: int, file_id: int) -> Delivery:
        with translate_errors(run.attempt, BACKOFF):
            return await DeliveryAttempt(run, context, user_id, file_id).run()

    @deliver.admit
    def allowed(tx: Connection, user_id: int, file_id: int) -> None:  # pyright: ignore[reportUnusedFunction]
        del file_id
        if tables.status_of(tx, user_id) != "ACTIVE":
            raise Refused("The user is not allowed to use the library.")

    @deliver.guard
    def active(job: Job, user_id: int, file_id: int) -> None:  # pyright: ignore[reportUnusedFunction]
        del job, file_id
        if context.transact_sync(lambda tx: tables.status_of(tx, user_id)) != "ACTIVE":
            raise Fail("inactive: The user is no longer allowed to use the library.")

    @deliver.commit
    def record(tx: Connection, job: Job, delivery: Delivery) -> None:  # pyright: ignore[reportUnusedFunction]
        tables.record_delivery(
            tx,
            job.id,
            job.payload["user_id"],
            job.payload["file_id"],
            delivery.message_id,
            doubted=tables.has_doubt(tx, _root_id(job)),
        )
        if delivery.content is not None:
            tables.save_sent_file(tx, delivery.content, delivery.telegram_file_id)

    return deliver


def _add_end_hooks(deliver: Deliver, notify: Notify, alert: Alert, admins: tuple[int, ...]) -> None:
    """Notify the user when a delivery ends without success, in the transaction that ends it."""

    @deliver.on_enter("FAILED")
    def failed(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        _record_doubt(tx, job)
        notify.using(conn=tx).enqueue(job.id)
        if (job.last_error or "").startswith("disk_token_rejected:"):
            alert_token(tx, alert, admins, job.updated_at)

    @deliver.on_enter("EXPIRED")
    def expired(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        _record_doubt(tx, job)
        notify.using(conn=tx).enqueue(job.id)

    @deliver.on_enter("CANCELLED")
    def cancelled(tx: Connection, job: Job) -> None:  # pyright: ignore[reportUnusedFunction]
        # The user knows that they cancelled. They only need to know that the file may have arrived anyway.
        if _record_doubt(tx, job):
            notify.using(conn=tx).enqueue(job.id)


def _record_doubt(tx: Connection, job: Job) -> bool:
    """Return whether the file of an unsuccessful delivery may have arrived, and store that doubt."""
    if tables.receipt_state(tx, job.id, SEND) != "none":
        tables.record_doubt(tx, _root_id(job))
    return tables.has_doubt(tx, _root_id(job))


def _root_id(job: Job) -> str:
    """Return the first job of a chain of redrives, which holds the doubts of the whole chain."""
    return job.root or job.id


# ---------------------------------------------------------------- notify, alert
def _notify(app: App[Connection], context: JobContext) -> Notify:
    @app.job(kind="notify", tries=200, backoff=NOTIFY_BACKOFF)
    async def notify(run: Run, job_id: str) -> None:
        job = await app.aget(job_id)
        user_id, file_id = job.payload["user_id"], job.payload["file_id"]

        def text(tx: Connection) -> str:
            language, name = tables.language_of(tx, user_id), tables.name_of(tx, file_id)
            key = job.state.lower() + ("_maybe" if tables.has_doubt(tx, _root_id(job)) else "")
            return formatting.render(
                language, key, name=name, reason=formatting.render_failure(language, job.last_error)
            )

        await _send_message(run, context.clients, user_id, await context.transact(text))

    return notify


def _alert(app: App[Connection], context: JobContext) -> Alert:
    @app.job(kind="alert", tries=200, backoff=NOTIFY_BACKOFF)
    async def alert(run: Run, admin_id: int, subject: str) -> None:
        language = await context.transact(lambda tx: tables.language_of(tx, admin_id))
        await _send_message(run, context.clients, admin_id, formatting.render(language, f"alert_{subject}"))

    return alert


async def _send_message(run: Run, clients: Clients, user_id: int, text: str) -> None:
    """Send a text. In doubt, send it again: a duplicate message does no harm."""

    async def send() -> int:
        return await clients.telegram.send_text(user_id, text)

    with translate_errors(run.attempt, NOTIFY_BACKOFF):
        try:
            await run.effect("say", on_doubt="retry")(send)
        except PermanentError as error:
            if error.code == "bot_token_rejected":
                # An administrator has to fix the bot token. Retry until then.
                raise TemporaryError(str(error)) from None
            if error.code not in UNREACHABLE_CODES:
                raise


def alert_token(tx: Connection, alert: Alert, admins: tuple[int, ...], at: datetime) -> None:
    """Alert each administrator that Yandex Disk rejects the token, at most once a day for the same settings."""
    settings_hash = tables.token_settings_hash(tx)
    for admin in admins:
        alert.using(conn=tx, idempotency_key=f"token:{settings_hash}:{at.date()}:{admin}").enqueue(admin, "token")
