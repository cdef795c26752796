"""Keeps every card up to date. A card is the message that shows a user the state of a delivery."""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from .callback_data import CallbackCodec
from .catalogue import Catalogue
from .clients.connections import Clients
from .errors import PermanentError, TemporaryError, format_error
from .redact import user_alias
from .screens import ScreenBuilder, card_text
from .service import Service
from .service_models import FINAL, Card
from .settings import Settings

INTERVAL = 2.0
"""Seconds between two updates of all open cards."""
MIN_EDIT_INTERVAL = 3.0
"""Seconds between two edits of one card. Telegram allows about one per second and chat."""
RATE_LIMIT_PAUSE = 5.0
"""Seconds without edits after a rate limit without a duration."""
log = logging.getLogger(__name__)


class CardUpdater:
    """Edits cards that have changed. The card of an ended delivery is edited one last time and closed."""

    def __init__(
        self,
        service: Service,
        catalogue: Catalogue,
        clients: Clients,
        settings: Settings,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service, self._catalogue, self._clients, self._now = service, catalogue, clients, now
        self._callbacks = CallbackCodec(settings.bot_token.get_secret_value())
        self._edited: dict[str, float] = {}
        self._resume_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Update the cards until `stop`. A failed update is logged and retried."""
        while not stop.is_set():
            try:
                await self.update_all()
            except Exception as error:  # noqa: BLE001 - the database may be unreachable for a while
                log.error("Cards could not be updated: %s", format_error(error))  # noqa: TRY400 - it would print values
            try:
                await asyncio.wait_for(stop.wait(), INTERVAL)
            except TimeoutError:
                continue

    async def update_all(self) -> None:
        """Update all open cards once."""
        cards = await asyncio.to_thread(self._service.open_cards)
        open_ids = {card.delivery.job_id for card in cards}
        self._edited = {job_id: at for job_id, at in self._edited.items() if job_id in open_ids}
        for card in cards:
            if self._now() < self._resume_at:
                return
            if self._now() - self._edited.get(card.delivery.job_id, -math.inf) >= MIN_EDIT_INTERVAL:
                await self._update(card)

    async def _update(self, card: Card) -> None:
        delivery = card.delivery
        if card_text(card.language, delivery) == card.shown_text:
            return
        file = await asyncio.to_thread(self._catalogue.entry, delivery.file_id)
        screen = ScreenBuilder(self._callbacks, card.user_id, card.language).card(delivery, file)
        self._edited[delivery.job_id], closed = self._now(), delivery.state in FINAL
        try:
            await self._clients.telegram.edit_text(card.user_id, card.card_id, screen.text, screen.keyboard)
        except PermanentError as error:
            if error.code == "bot_token_rejected":
                raise
            log.info("The card of %s cannot be edited and is closed: %s", user_alias(card.user_id), error)
            closed = True
        except TemporaryError as error:
            if error.status_code == 429:
                self._resume_at = self._now() + (error.retry_after or RATE_LIMIT_PAUSE)
            log.info("The card of %s will be edited later: %s", user_alias(card.user_id), error)
            return
        await asyncio.to_thread(self._service.mark_shown, card, screen.text, closed=closed)
