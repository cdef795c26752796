"""Orders: validates an order, then reserves its credits and queues its job in one transaction."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from sqlalchemy import Boolean, not_, select, text, type_coerce

from apps.common.database import engine_table, read_only
from apps.common.database import now as wall_clock
from apps.common.formatting import plain_text
from interlock import KeyReused, TransitionRefused
from interlock import NotFound as NoJob

from . import ledger
from .errors import Conflict, ModerationUnavailable, NotFound, Refusal
from .jobs import SAFE_BLOCK, Studio
from .order import PRICES, Order, Params
from .prompt_guard import clean

MAX_USER_ID = 2**31 - 1
MAX_REASON = 200
"""Characters of a moderator's answer that the user sees."""
_log = logging.getLogger("studio")


@dataclass(frozen=True)
class Created:
    """The job of an order, and whether it is new."""

    id: str
    created: bool


class Orders:
    """Creates and rejects jobs."""

    def __init__(self, studio: Studio, *, now: Callable[[], datetime] = wall_clock) -> None:
        self._studio, self._now, self._reading = studio, now, read_only(studio.engine)

    def create_job(
        self,
        user_id: int,
        prompt: str,
        params: Params = Params(),  # noqa: B008 - it is frozen
        *,
        at: datetime | None = None,
    ) -> Created:
        """Order an image: reserve its credits and queue its job. Raises `Refusal` and stores nothing if it cannot.

        An identical order of the same user within one minute returns the same job; if that job waits after a failure,
        it becomes due at once. `at` is the time of the order, by default now.
        """
        params.check()
        if not 0 < user_id <= MAX_USER_ID:
            raise Refusal("user_unknown", f"No user has the ID {str(user_id)[:40]}. Add the user first.")
        order = Order(user_id, clean(prompt), PRICES[params.size], params)
        key = order.key(at or self._now())
        if self._job_by_key(key) is None:
            self._validate(order, key)
        try:
            with self._studio.engine.begin() as tx:
                # The unique key also finds the redriven job of a dead letter while that job is active.
                job = self._studio.image.using(conn=tx, idempotency_key=key, unique_key=key).enqueue(order)
        except KeyReused:
            # The same order at another price: prices changed within this minute.
            known = self._job_by_key(key)
            if known is None:
                raise
            return Created(known, created=False)
        return Created(job.id, job.created)

    def reject(self, id: str, *, by: str, reason: str) -> None:
        """Reject a queued job as unsafe; its credits are forfeited. Raises `Conflict` if the job is not queued."""
        try:
            self._studio.app.reject(id, by=by, reason=f"{SAFE_BLOCK}: {reason}")
        except NoJob:
            raise NotFound(f"No job has the ID {id[:40]}. `jobs` lists all jobs.") from None
        except TransitionRefused as error:
            raise Conflict(
                f"Job {id} cannot be rejected: it is {self._studio.app.get(id).state}, not queued."
            ) from error

    def _job_by_key(self, key: str) -> str | None:
        """The ID of the job that owns this idempotency key."""
        job = engine_table(self._studio.engine.dialect, "jobs", "id", "kind", "idempotency_key", "key_freed")
        # Typed, so that the condition matches the engine's partial index. Otherwise the query reads the whole table.
        released = type_coerce(job.c.key_freed, Boolean)
        fits = job.c.kind == self._studio.image.name, job.c.idempotency_key == key, not_(released)
        with self._reading.begin() as tx:
            found: str | None = tx.scalar(select(job.c.id).where(*fits))
        return found

    def _is_active(self, key: str) -> bool:
        """Whether an order that became a dead letter is active again. It was moderated the first time."""
        # The condition matches the engine's partial index, as above.
        job, active = (
            engine_table(self._studio.engine.dialect, "jobs", "id", "kind", "unique_key"),
            text("phase IN ('pending', 'running')"),
        )
        with self._reading.begin() as tx:
            return (
                tx.scalar(
                    select(job.c.id).where(job.c.kind == self._studio.image.name, job.c.unique_key == key, active)
                )
                is not None
            )

    def _validate(self, order: Order, key: str) -> None:
        """Validate before the transaction, which would otherwise wait for the moderation model.

        The transaction repeats all checks except the moderation.
        """
        self._studio.dependencies.guard.validate(order.prompt)
        moderator = self._studio.dependencies.moderator
        if moderator is None or self._is_active(key):
            return
        # Do not call the model for an order that the user cannot pay for.
        with self._reading.begin() as tx:
            ledger.check_affordable(tx, order.user_id, order.cost)
        try:
            # The moderator is configured by the operator and may return anything.
            why = cast("Callable[[str], object]", moderator)(order.prompt)
        except Exception as error:
            raise _moderation_unavailable(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(why, str | None):
            raise _moderation_unavailable(f"returned {type(why).__name__}, which is neither a str nor None.")
        if why is not None:
            reason = " ".join(why.split())[:MAX_REASON] or "no reason given"
            raise Refusal("prompt_flagged", f"The moderation model rejected this prompt: {reason}.")


def _moderation_unavailable(what: str) -> ModerationUnavailable:
    """Log the moderator's failure for the operator, and return an error for the user without its details."""
    _log.warning("%s", plain_text(f"The moderator {what}"))
    return ModerationUnavailable("The moderation model is unavailable. Nothing was ordered. Try again later.")
