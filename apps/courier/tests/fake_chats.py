"""The people and chats of the fake Telegram.

Every change notifies the waiting tests, so that a test waits for an event and not for time.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar, cast

Json = dict[str, object]
T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    """A file on Telegram. `content` is kept only if it is small."""

    name: str
    size: int
    sha256: str
    md5: str
    file_id: str
    content: bytes | None = None

    def json(self) -> Json:
        return {
            "file_id": self.file_id,
            "file_unique_id": f"unique-{self.file_id}",
            "file_name": self.name,
            "file_size": self.size,
        }


@dataclass
class Message:
    """A message of the bot. `edits` are its earlier texts, oldest first."""

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
        rows = cast("list[list[dict[str, str]]]", self.keyboard["inline_keyboard"] if self.keyboard else [])
        return [(button["text"], button.get("callback_data", "")) for row in rows for button in row]


@dataclass(frozen=True)
class CallbackAnswer:
    """The bot's answer to a pressed button."""

    person_id: int
    data: str
    text: str | None
    alert: bool


class Person:
    """A person. They have a private chat with the bot once they write to it."""

    def __init__(self, chats: "FakeChats", id: int, name: str, language: str | None) -> None:
        self.id, self.name, self.language = id, name, language
        self.spoke = False
        self.blocked = False
        self._chats = chats

    @property
    def chat(self) -> list[Message]:
        """The bot's messages to this person, oldest first."""
        return self._chats.chat(self.id)

    def send_text(self, text: str, *, group: int | None = None) -> int:
        """Write to the bot, or to a group with the bot. Return the update ID."""
        with self._chats.changed:
            self.spoke = True
            command = (
                [{"type": "bot_command", "offset": 0, "length": len(text.split(maxsplit=1)[0])}]
                if text.startswith("/")
                else []
            )
            where = self._chats.chat_json(self.id if group is None else group)
            said: Json = {
                "message_id": self._chats.next_number(),
                "date": int(time.time()),
                "chat": where,
                "from": self.json(),
                "text": text,
            }
            return self._chats.add_update("message", said | ({"entities": command} if command else {}))

    def press(self, message: Message, button: str) -> int:
        """Press the button with this label or callback data. Return the update ID."""
        with self._chats.changed:
            found = [data for label, data in message.buttons if button in (label, data)]
        if not found:
            raise LookupError(f"There is no button {button!r}; the message has {message.buttons}.")
        return self.press_forged(found[0], message)

    def press_forged(self, data: str, message: Message | None = None) -> int:
        """Send a callback with any data, as a manipulated client can. Return the update ID."""
        with self._chats.changed:
            self.spoke = True
            to_json = message or next(reversed(self.chat), None)
            query: Json = {
                "id": self._chats.new_query(self.id, data),
                "from": self.json(),
                "chat_instance": str(self.id),
                "data": data,
            }
            return self._chats.add_update(
                "callback_query", query | ({"message": self._chats.to_json(to_json)} if to_json else {})
            )

    def block_bot(self) -> None:
        """Block the bot, which may then not write to this person."""
        with self._chats.changed:
            self.blocked = True
            self._chats.notify()

    def unblock_bot(self) -> None:
        with self._chats.changed:
            self.blocked = False
            self._chats.notify()

    def wait(self, seen: Callable[[list[Message]], T], timeout: float = 20) -> T:
        """Wait until the chat satisfies this function, and return its result."""
        try:
            return self._chats.wait(lambda: seen(self.chat), timeout)
        except AssertionError:
            text = "\n".join(f"  {each.id}: {each.text or each.document} {each.buttons}" for each in self.chat)
            raise AssertionError(f"Within {timeout} s the chat did not become what was waited for:\n{text}") from None

    def json(self) -> Json:
        return {"id": self.id, "is_bot": False, "first_name": self.name} | (
            {"language_code": self.language} if self.language else {}
        )


class FakeChats:
    """The state of the fake Telegram. Any thread may use it: `changed` guards it and is notified of each change."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.me: Json = {
            "id": int(token.partition(":")[0]),
            "is_bot": True,
            "first_name": "Courier",
            "username": "courier_bot",
        }
        self.changed = threading.Condition(threading.RLock())
        self.people: dict[int, Person] = {}
        self.messages: dict[int, list[Message]] = {}
        self.documents: dict[str, Document] = {}
        self.updates: list[Json] = []
        """All updates so far."""
        self.pending: list[Json] = []
        """Updates that the bot has not confirmed."""
        self.answered: list[CallbackAnswer] = []
        self._queries: dict[str, tuple[int, str]] = {}
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- for tests

    def person(self, id: int, name: str = "Ann", language: str | None = "ru") -> Person:
        """Return the person with this ID, created on first use. New people have not written to the bot."""
        with self.changed:
            return self.people.setdefault(id, Person(self, id, name, language))

    def chat(self, id: int) -> list[Message]:
        """Return the bot's messages in a chat, oldest first."""
        with self.changed:
            return list(self.messages.get(id, []))

    def replay(self, update_ids: Iterable[int] | None = None, *, shuffled: Random | None = None) -> None:
        """Deliver old updates again, with their old IDs: all of them, or these."""
        with self.changed:
            wanted = None if update_ids is None else set(update_ids)
            replayed = [each for each in self.updates if wanted is None or each["update_id"] in wanted]
            if shuffled:
                shuffled.shuffle(replayed)
            self.pending += [each | {"again": True} for each in replayed]
            self.notify()

    def wait(self, seen: Callable[[], T], timeout: float = 20) -> T:
        """Wait until this function returns a true value, and return it. It is called at each change."""
        with self.changed:
            found = self.changed.wait_for(seen, timeout)
        if not found:
            raise AssertionError(f"Within {timeout} s it did not become true.")
        return found

    # ---------------------------------------------------------------- for the server

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def next_number(self) -> int:
        return next(self._numbers)

    def add_update(self, kind: str, what: Json) -> int:
        update: Json = {"update_id": 1000 + len(self.updates), kind: what}
        self.updates.append(update)
        self.pending.append(update)
        self.notify()
        return 1000 + len(self.updates) - 1

    def confirm(self, offset: int) -> None:
        """Drop the updates before this offset. Replayed updates are dropped when they are delivered instead."""
        with self.changed:
            self.pending = [
                each for each in self.pending if "again" in each or cast("int", each["update_id"]) >= offset
            ]
            self.notify()

    def take_updates(self, limit: int, kinds: list[str]) -> list[Json]:
        with self.changed:
            found = [each for each in self.pending if not kinds or not each.keys().isdisjoint(kinds)][:limit]
            gone = {id(each) for each in found if "again" in each}
            self.pending = [each for each in self.pending if id(each) not in gone]
            return [{key: value for key, value in each.items() if key != "again"} for each in found]

    def new_query(self, person_id: int, data: str) -> str:
        query = f"{person_id}{self.next_number():08}"
        self._queries[query] = (person_id, data)
        return query

    def answer_query(self, query: str, text: str | None, alert: bool) -> bool:
        """Answer a query. Return False if it does not exist or was answered."""
        with self.changed:
            asked = self._queries.pop(query, None)
            if asked:
                self.answered.append(CallbackAnswer(*asked, text, alert))
                self.notify()
            return asked is not None

    def chat_json(self, chat_id: int) -> Json:
        if chat_id < 0:
            self.messages.setdefault(chat_id, [])
            return {"id": chat_id, "type": "supergroup", "title": "A group"}
        return {"id": chat_id, "type": "private", "first_name": self.people[chat_id].name}

    def add_message(self, message: Message) -> Message:
        with self.changed:
            self.messages.setdefault(message.chat_id, []).append(message)
            self.notify()
        return message

    def to_json(self, message: Message) -> Json:
        """Return a message as the Bot API shows it."""
        text: Json = {
            "message_id": message.id,
            "date": message.date,
            "chat": self.chat_json(message.chat_id),
            "from": self.me,
        }
        parts = {"text": message.text, "caption": message.caption, "reply_markup": message.keyboard}
        if message.document:
            parts["document"] = message.document.json()
        return text | {key: value for key, value in parts.items() if value is not None}
