"""The people behind a Telegram for tests, what they see in their chats, and what they do there.

Every change is told to whoever waits for it, so that a test waits for what is to be seen and for nothing else.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

Json = dict[str, object]
T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    """A file as Telegram has it. `content` is kept only if it is small."""

    name: str
    size: int
    sha256: str
    md5: str
    file_id: str
    content: bytes | None = None

    def json(self) -> Json:
        return {"file_id": self.file_id, "file_unique_id": f"unique-{self.file_id}", "file_name": self.name, "file_size": self.size}


@dataclass
class Message:
    """One message of the bot, as it stands now. `edits` are the texts that it had before, the oldest first."""

    id: int
    chat_id: int
    text: str | None = None
    caption: str | None = None
    document: Document | None = None
    keyboard: Json | None = None
    edits: list[str | None] = field(default_factory=list)
    date: int = field(default_factory=lambda: int(time.time()))

    @property
    def buttons(self) -> list[tuple[str, str]]:
        """The label and the callback data of each button, row by row."""
        rows: list[list[dict[str, str]]] = self.keyboard["inline_keyboard"] if self.keyboard else []  # type: ignore[assignment]
        return [(button["text"], button.get("callback_data", "")) for row in rows for button in row]


@dataclass(frozen=True)
class Answered:
    """What the bot said to a button that was pressed."""

    person_id: int
    data: str
    text: str | None
    alert: bool


class Person:
    """Somebody with a private chat with the bot. Whoever never spoke to the bot has none."""

    def __init__(self, chats: "Chats", id: int, name: str, language: str | None) -> None:
        self.id, self.name, self.language = id, name, language
        self.spoke = False
        self.blocked = False
        self._chats = chats

    @property
    def chat(self) -> list[Message]:
        """The messages that the bot sent to this person, the oldest first."""
        return self._chats.chat(self.id)

    def says(self, text: str, *, group: int | None = None) -> int:
        """Write to the bot, or into a group where it is. Returns the id of the update."""
        with self._chats.changed:
            self.spoke = True
            command = [{"type": "bot_command", "offset": 0, "length": len(text.split(maxsplit=1)[0])}] if text.startswith("/") else []
            where = self._chats.place(self.id if group is None else group)
            said: Json = {"message_id": self._chats.number(), "date": int(time.time()), "chat": where, "from": self.json(), "text": text}
            return self._chats.deliver("message", said | ({"entities": command} if command else {}))

    def presses(self, message: Message, button: str) -> int:
        """Press the button with this label, or with this callback data. Returns the id of the update."""
        with self._chats.changed:
            found = [data for label, data in message.buttons if button in (label, data)]
        if not found:
            raise LookupError(f"There is no button {button!r}; the message has {message.buttons}.")
        return self.forges(found[0], message)

    def forges(self, data: str, message: Message | None = None) -> int:
        """Send a callback with any data at all, as a client that was tampered with can. Returns the id of the update."""
        with self._chats.changed:
            self.spoke = True
            shown = message or next(reversed(self.chat), None)
            query: Json = {"id": self._chats.ask(self.id, data), "from": self.json(), "chat_instance": str(self.id), "data": data}
            return self._chats.deliver("callback_query", query | ({"message": self._chats.shown(shown)} if shown else {}))

    def blocks(self) -> None:
        """Block the bot: it may not write here any more."""
        with self._chats.changed:
            self.blocked = True
            self._chats.notify()

    def unblocks(self) -> None:
        with self._chats.changed:
            self.blocked = False
            self._chats.notify()

    def wait(self, seen: Callable[[list[Message]], T], timeout: float = 20) -> T:
        """Wait until the chat satisfies this, and return what it answered."""
        try:
            return self._chats.wait(lambda: seen(self.chat), timeout)
        except AssertionError:
            told = "\n".join(f"  {each.id}: {each.text or each.document} {each.buttons}" for each in self.chat)
            raise AssertionError(f"Within {timeout} s the chat did not become what was waited for:\n{told}") from None

    def json(self) -> Json:
        return {"id": self.id, "is_bot": False, "first_name": self.name} | ({"language_code": self.language} if self.language else {})


class Chats:
    """Everything that Telegram remembers. May be used from any thread: `changed` guards it, and is notified of each change."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.me: Json = {"id": int(token.partition(":")[0]), "is_bot": True, "first_name": "Courier", "username": "courier_bot"}
        self.changed = threading.Condition(threading.RLock())
        self.people: dict[int, Person] = {}
        self.messages: dict[int, list[Message]] = {}
        self.documents: dict[str, Document] = {}
        self.updates: list[Json] = []
        """Every update there ever was."""
        self.pending: list[Json] = []
        """Those that the bot has not confirmed yet."""
        self.answered: list[Answered] = []
        self._queries: dict[str, tuple[int, str]] = {}
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- what tests do

    def person(self, id: int, name: str = "Ann", language: str | None = "ru") -> Person:
        """The person with this id, who is made on first sight and has not spoken to the bot yet."""
        with self.changed:
            return self.people.setdefault(id, Person(self, id, name, language))

    def chat(self, id: int) -> list[Message]:
        """The messages of the bot in a chat, the oldest first."""
        with self.changed:
            return list(self.messages.get(id, []))

    def replay(self, update_ids: Iterable[int] | None = None, *, shuffled: Random | None = None) -> None:
        """Deliver old updates once more, with the ids that they had; all there ever were, unless told which."""
        with self.changed:
            wanted = None if update_ids is None else set(update_ids)
            again = [each for each in self.updates if wanted is None or each["update_id"] in wanted]
            if shuffled:
                shuffled.shuffle(again)
            self.pending += [each | {"again": True} for each in again]
            self.notify()

    def wait(self, seen: Callable[[], T], timeout: float = 20) -> T:
        """Wait until this is true, and return what it answered. It is asked again at each change."""
        with self.changed:
            found = self.changed.wait_for(seen, timeout)
        if not found:
            raise AssertionError(f"Within {timeout} s it did not become true.")
        return found

    # ---------------------------------------------------------------- what Telegram does

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def number(self) -> int:
        return next(self._numbers)

    def deliver(self, kind: str, what: Json) -> int:
        update: Json = {"update_id": 1000 + len(self.updates), kind: what}
        self.updates.append(update)
        self.pending.append(update)
        self.notify()
        return 1000 + len(self.updates) - 1

    def confirmed(self, offset: int) -> None:
        """Forget the updates before this one. One that is replayed is older than any offset, and is forgotten as it is handed out."""
        with self.changed:
            self.pending = [each for each in self.pending if each["update_id"] >= offset or "again" in each]  # type: ignore[operator]
            self.notify()

    def handed_out(self, limit: int, kinds: list[str]) -> list[Json]:
        with self.changed:
            found = [each for each in self.pending if not kinds or not each.keys().isdisjoint(kinds)][:limit]
            gone = {id(each) for each in found if "again" in each}
            self.pending = [each for each in self.pending if id(each) not in gone]
            return [{key: value for key, value in each.items() if key != "again"} for each in found]

    def ask(self, person_id: int, data: str) -> str:
        query = f"{person_id}{self.number():08}"
        self._queries[query] = (person_id, data)
        return query

    def answer(self, query: str, text: str | None, alert: bool) -> bool:
        """False if there is no such query, or no longer."""
        with self.changed:
            asked = self._queries.pop(query, None)
            if asked:
                self.answered.append(Answered(*asked, text, alert))
                self.notify()
            return asked is not None

    def place(self, chat_id: int) -> Json:
        if chat_id < 0:
            self.messages.setdefault(chat_id, [])
            return {"id": chat_id, "type": "supergroup", "title": "A group"}
        return {"id": chat_id, "type": "private", "first_name": self.people[chat_id].name}

    def put(self, message: Message) -> Message:
        with self.changed:
            self.messages.setdefault(message.chat_id, []).append(message)
            self.notify()
        return message

    def shown(self, message: Message) -> Json:
        """A message as the Bot API tells it."""
        told: Json = {"message_id": message.id, "date": message.date, "chat": self.place(message.chat_id), "from": self.me}
        parts = {"text": message.text, "caption": message.caption, "reply_markup": message.keyboard}
        if message.document:
            parts["document"] = message.document.json()
        return told | {key: value for key, value in parts.items() if value is not None}
