"""Drives the real bot in tests: it handles the updates of the fake Telegram when the test says so."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from apps.courier.bot import make_dispatcher
from apps.courier.card_updater import CardUpdater
from apps.courier.polling import UpdatePoller
from apps.courier.tests.courier_kit import ADMIN, READER, CourierKit
from apps.courier.tests.fake_telegram import Message, Person


@dataclass
class BotDriver:
    """The bot of a kit, and the clock of its cards."""

    kit: CourierKit
    runner: asyncio.Runner
    time: float = 0.0
    cards: CardUpdater = field(init=False)

    def __post_init__(self) -> None:
        kit = self.kit
        self.cards = CardUpdater(kit.service, kit.catalogue, kit.courier.clients, kit.settings, now=lambda: self.time)

    def person(self, id: int = READER, name: str = "Ann", language: str = "en") -> Person:
        return self.kit.telegram.person(id, name=name, language=language)

    @property
    def admin(self) -> Person:
        return self.person(ADMIN, "Root")

    def reader(self, id: int = READER, name: str = "Ann", language: str = "en") -> Person:
        """Return a person with access."""
        self.kit.add_user(id, name=name, language=language)
        return self.person(id, name, language)

    # ------------------------------------------------------------ actions of the bot
    def with_poller(self, do: Callable[[UpdatePoller], Awaitable[None]]) -> None:
        """Run a function with a newly started bot."""
        kit = self.kit

        async def main() -> None:
            async with asyncio.timeout(60):
                await do(
                    UpdatePoller(
                        make_dispatcher(kit.service, kit.catalogue, kit.courier.clients, kit.settings),
                        kit.courier.clients,
                    )
                )

        self.runner.run(main())

    def handle_updates(self) -> None:
        """Handle all pending updates."""

        async def poll_until_empty(poller: UpdatePoller) -> None:
            while await poller.poll_once(wait=0):
                pass

        self.with_poller(poll_until_empty)

    def update_cards(self) -> None:
        """Update the cards once."""
        self.runner.run(self.cards.update_all())

    # ------------------------------------------------------------ actions of people
    def send_text(self, person: Person, text: str) -> list[Message]:
        """Send a text and let the bot answer. Return the new messages."""
        before = len(person.chat)
        person.send_text(text)
        self.handle_updates()
        return person.chat[before:]

    def press(self, person: Person, label: str, message: Message | None = None) -> str | None:
        """Press the button with this label, or with a label that ends with it. Return the callback answer."""
        message = message or person.chat[-1]
        whole = next((each for each, _ in message.buttons if each.endswith(label)), label)
        person.press(message, whole)
        return self._callback_answer()

    def press_forged(self, person: Person, data: str) -> str | None:
        person.press_forged(data)
        return self._callback_answer()

    def _callback_answer(self) -> str | None:
        before = len(self.kit.telegram.answered)
        self.handle_updates()
        answered = self.kit.telegram.answered[before:]
        assert len(answered) == 1, f"A press is answered once, and not {len(answered)} times."
        return answered[0].text

    def jobs(self) -> list[str]:
        """Return the states of all deliveries."""
        return [job.state for job in self.kit.app.jobs(kind="deliver")]


@contextmanager
def driver(kit: CourierKit) -> Iterator[BotDriver]:
    """Open a driver with connected clients, once per test because it is slow."""
    clients = kit.courier.clients.open()
    with asyncio.Runner() as runner:
        runner.run(clients.__aenter__())
        try:
            yield BotDriver(kit, runner)
        finally:
            runner.run(clients.__aexit__(None, None, None))


def button_labels(message: Message) -> list[str]:
    return [label for label, _ in message.buttons]
