"""The counter of an office: the real bot, which answers all that people have said and pressed, as soon as a test lets it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from apps.courier.bot import dispatcher
from apps.courier.cards import Cards
from apps.courier.polling import Polling
from apps.courier.tests.bot_api import Message, Person
from apps.courier.tests.kit import ADMIN, READER, Office


@dataclass
class Counter:
    """The bot of an office, and the time that its cards go by."""

    office: Office
    runner: asyncio.Runner
    time: float = 0.0
    cards: Cards = field(init=False)

    def __post_init__(self) -> None:
        office = self.office
        self.cards = Cards(office.desk, office.catalogue, office.courier.outside, office.settings, now=lambda: self.time)

    def person(self, id: int = READER, name: str = "Ann", language: str = "en") -> Person:
        return self.office.telegram.person(id, name=name, language=language)

    @property
    def admin(self) -> Person:
        return self.person(ADMIN, "Root")

    def reader(self, id: int = READER, name: str = "Ann", language: str = "en") -> Person:
        """Somebody who was let in."""
        self.office.user(id, name=name, language=language)
        return self.person(id, name, language)

    # ------------------------------------------------------------ what the bot does
    def within(self, do: Callable[[Polling], Awaitable[None]]) -> None:
        """Do this with a bot that has just been started."""
        office = self.office

        async def main() -> None:
            async with asyncio.timeout(60):
                await do(Polling(dispatcher(office.desk, office.catalogue, office.courier.outside, office.settings), office.courier.outside))

        self.runner.run(main())

    def answer(self) -> None:
        """Answer all that waits to be answered."""

        async def until_nothing_waits(polling: Polling) -> None:
            while await polling.turn(wait=0):
                pass

        self.within(until_nothing_waits)

    def look(self) -> None:
        """Bring the cards up to date."""
        self.runner.run(self.cards.look())

    # ------------------------------------------------------------ what people do
    def says(self, person: Person, text: str) -> list[Message]:
        """Say this, and be answered. The messages that came of it."""
        before = len(person.chat)
        person.says(text)
        self.answer()
        return person.chat[before:]

    def presses(self, person: Person, label: str, message: Message | None = None) -> str | None:
        """Press what has this label, or a label that ends with it, in the last message unless told in which. What was answered in passing."""
        message = message or person.chat[-1]
        whole = next((each for each, _ in message.buttons if each.endswith(label)), label)
        person.presses(message, whole)
        return self._passing()

    def forges(self, person: Person, data: str) -> str | None:
        person.forges(data)
        return self._passing()

    def _passing(self) -> str | None:
        before = len(self.office.telegram.answered)
        self.answer()
        answered = self.office.telegram.answered[before:]
        assert len(answered) == 1, f"A press is answered once, and not {len(answered)} times."
        return answered[0].text

    def jobs(self) -> list[str]:
        """The states of all deliveries."""
        return [job.state for job in self.office.app.jobs(kind="deliver")]


@contextmanager
def counter(office: Office) -> Iterator[Counter]:
    """A counter that is open: it reaches for Telegram and the disk once, since that takes its time."""
    outside = office.courier.outside.open()
    with asyncio.Runner() as runner:
        runner.run(outside.__aenter__())
        try:
            yield Counter(office, runner)
        finally:
            runner.run(outside.__aexit__(None, None, None))


def labels(message: Message) -> list[str]:
    return [label for label, _ in message.buttons]
