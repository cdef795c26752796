"""The counter: where images are ordered. A wish is judged, found again or reserved and queued, and nothing of it is stored unless all of it is."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from sqlalchemy import Boolean, not_, select, text, type_coerce

from apps.common.database import now as wall_clock
from apps.common.database import of_engine, reading
from apps.common.telling import plain
from interlock import KeyReused, TransitionRefused
from interlock import NotFound as NoJob

from . import ledger
from .errors import Conflict, NotFound, Refusal, Unjudged
from .jobs import SAFE_BLOCK, Studio
from .order import PRICES, Order, Params
from .prompt_guard import clean

BIGGEST = 2**31 - 1
SHOWN = 200
"""Characters of a moderator's answer that are told on."""
_log = logging.getLogger("studio")


@dataclass(frozen=True)
class Created:
    """The job that a wish led to, and whether it is a new one."""

    id: str
    created: bool


class Counter:
    """Takes orders, and turns them away again."""

    def __init__(self, studio: Studio, *, now: Callable[[], datetime] = wall_clock) -> None:
        self._studio, self._now, self._reading = studio, now, reading(studio.engine)

    def create_job(self, user_id: int, prompt: str, params: Params = Params(), *, at: datetime | None = None) -> Created:  # noqa: B008 - it is frozen
        """Order an image: its credits are reserved and its job is queued, or it is a `Refusal` and nothing is stored.

        The same wish of the same user within one minute is the same job. If that one rests after a failure, it is due at once.
        `at` is when it was asked for, if not now.
        """
        params.check()
        if not 0 < user_id <= BIGGEST:
            raise Refusal("user_unknown", f"There is no user {str(user_id)[:40]}: add one first.")
        order = Order(user_id, clean(prompt), PRICES[params.size], params)
        key = order.key(at or self._now())
        if self._known(key) is None:
            self._judge(order, key)
        try:
            with self._studio.engine.begin() as tx:
                # By the second key it also finds a dead letter's successor while that one is under way: the wish is being granted already.
                job = self._studio.image.using(conn=tx, idempotency_key=key, unique_key=key).enqueue(order)
        except KeyReused:
            # The same wish at another price: prices changed within this minute.
            known = self._known(key)
            if known is None:
                raise
            return Created(known, created=False)
        return Created(job.id, job.created)

    def reject(self, id: str, *, by: str, reason: str) -> None:
        """Turn a queued job away as unsafe: its credits are forfeited. `Conflict` for one that is not queued."""
        try:
            self._studio.app.reject(id, by=by, reason=f"{SAFE_BLOCK}: {reason}")
        except NoJob:
            raise NotFound(f"There is no job {id[:40]}: `jobs` lists all there are.") from None
        except TransitionRefused as error:
            raise Conflict(f"Job {id} is not rejected: it is {self._studio.app.get(id).state}.") from error

    def _known(self, key: str) -> str | None:
        """The job that holds this key."""
        job = of_engine(self._studio.engine.dialect, "jobs", "id", "kind", "idempotency_key", "key_released")
        # Typed, so that each database gets the words of the engine's index: any others would read the whole table.
        released = type_coerce(job.c.key_released, Boolean)
        fits = job.c.kind == self._studio.image.name, job.c.idempotency_key == key, not_(released)
        with self._reading.begin() as tx:
            found: str | None = tx.scalar(select(job.c.id).where(*fits))
        return found

    def _under_way(self, key: str) -> bool:
        """Whether this wish, which became a dead letter, is being granted after all: it was judged then."""
        # In the words of the engine's index, as above.
        job, active = of_engine(self._studio.engine.dialect, "jobs", "id", "kind", "unique_key"), text("phase IN ('pending', 'running')")
        with self._reading.begin() as tx:
            return tx.scalar(select(job.c.id).where(job.c.kind == self._studio.image.name, job.c.unique_key == key, active)) is not None

    def _judge(self, order: Order, key: str) -> None:
        """What may take long or cannot even be stored is judged before the transaction, in which all but the model is asked again."""
        self._studio.means.guard.validate(order.prompt)
        moderator = self._studio.means.moderator
        if moderator is None or self._under_way(key):
            return
        # Whoever cannot pay does not keep the model busy.
        with self._reading.begin() as tx:
            ledger.afford(tx, order.user_id, order.cost)
        try:
            # It is somebody's own function, and may answer anything.
            why = cast("Callable[[str], object]", moderator)(order.prompt)
        except Exception as error:
            raise _unjudged(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(why, str | None):
            raise _unjudged(f"answered with {type(why).__name__}, which is neither a str nor None.")
        if why is not None:
            raise Refusal("prompt_flagged", f"The moderation model says no to this prompt: {' '.join(why.split())[:SHOWN] or 'it gave no reason'}.")


def _unjudged(what: str) -> Unjudged:
    """What the moderator did is for the operator's log; whoever orders learns that it does not work."""
    _log.warning("%s", plain(f"The moderator {what}"))
    return Unjudged("The moderation model cannot be asked at the moment: nothing was ordered. Try again in a while.")
