"""Keeps every card up to date: the message in which a user sees how a delivery stands."""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from .callbacks import Callbacks
from .catalogue import Catalogue
from .desk import FINAL, Card, Desk
from .errors import Refusal, Trouble
from .keyboards import Screens, card_text
from .outside import Outside
from .polling import told
from .redact import who
from .settings import Settings

EVERY = 2.0
"""Seconds between two looks at all open cards."""
APART = 3.0
"""Seconds between two edits of one card: Telegram takes about one a second for each chat."""
PAUSE = 5.0
"""Seconds for which all edits rest when Telegram wants fewer and does not say for how long."""
log = logging.getLogger(__name__)


class Cards:
    """Edits what has changed. An ended delivery's card is edited one last time and closed."""

    def __init__(self, desk: Desk, catalogue: Catalogue, outside: Outside, settings: Settings, *, now: Callable[[], float] = time.monotonic) -> None:
        self._desk, self._catalogue, self._outside, self._now = desk, catalogue, outside, now
        self._callbacks = Callbacks(settings.bot_token.get_secret_value())
        self._edited: dict[str, float] = {}
        self._resumes = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until told to stop. A look that fails is logged, and the next is made all the same."""
        while not stop.is_set():
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the database may be away for a while, and cards are made up for afterwards
                log.error("The cards could not be brought up to date: %s", told(error))  # noqa: TRY400 - a traceback would print values
            try:
                await asyncio.wait_for(stop.wait(), EVERY)
            except TimeoutError:
                continue

    async def look(self) -> None:
        """One look at all open cards."""
        cards = await asyncio.to_thread(self._desk.open_cards)
        still = {card.shown.job_id for card in cards}
        self._edited = {job_id: at for job_id, at in self._edited.items() if job_id in still}
        for card in cards:
            if self._now() < self._resumes:
                return
            if self._now() - self._edited.get(card.shown.job_id, -math.inf) >= APART:
                await self._renew(card)

    async def _renew(self, card: Card) -> None:
        shown = card.shown
        if card_text(card.language, shown) == card.shown_text:
            return
        file = await asyncio.to_thread(self._catalogue.entry, shown.file_id)
        screen = Screens(self._callbacks, card.user_id, card.language).card(shown, file)
        self._edited[shown.job_id], closed = self._now(), shown.state in FINAL
        try:
            await self._outside.telegram.edit(card.user_id, card.card_id, screen.text, screen.keyboard)
        except Refusal as error:
            if error.code == "bot_refused":
                raise
            log.info("The card of %s is closed, since it can no longer be edited: %s", who(card.user_id), error)
            closed = True
        except Trouble as error:
            if error.status_code == 429:
                self._resumes = self._now() + (error.retry_after or PAUSE)
            log.info("The card of %s is edited later: %s", who(card.user_id), error)
            return
        await asyncio.to_thread(self._desk.mark_shown, card, screen.text, closed=closed)
