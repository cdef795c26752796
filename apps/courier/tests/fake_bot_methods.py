"""What the Bot API of a Telegram for tests does for each method, with Telegram's limits and in its words. Nothing here knows of HTTP."""

import json
from collections.abc import Callable

from .people import Chats, Document, Json, Message

NOT_MODIFIED = (
    "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as "
    "a current content and reply markup of the message"
)
TOO_OLD = "Bad Request: query is too old and response timeout expired or query ID is invalid"


class Says(Exception):
    """Telegram answers with an error."""

    def __init__(self, status: int, description: str, retry_after: int | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.body: Json = {"ok": False, "error_code": status, "description": description}
        if retry_after is not None:
            self.body["parameters"] = {"retry_after": retry_after}


class Methods(Chats):
    """The methods that are answered at once. Each takes the parameters as they were written, and changes nothing if it refuses."""

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.commands: list[Json] = []
        self.methods: dict[str, Callable[[Json], object]] = {
            "getMe": lambda _: self.me, "deleteWebhook": lambda _: True, "setMyCommands": self._commands, "sendMessage": self._send,
            "editMessageText": self._edit, "editMessageReplyMarkup": self._edit_keyboard, "answerCallbackQuery": self._answer_query,
            "sendDocument": self._send_document,
        }  # fmt: skip

    def _commands(self, given: Json) -> bool:
        self.commands.append(given)
        return True

    def _where(self, given: Json) -> int:
        chat_id = number(given.get("chat_id"))
        person = self.people.get(chat_id)
        if chat_id not in self.messages and not (person and person.spoke):
            raise Says(400, "Bad Request: chat not found")
        if person and person.blocked:
            raise Says(403, "Forbidden: bot was blocked by the user")
        return chat_id

    def _send(self, given: Json) -> Json:
        chat_id, text, keyboard = self._where(given), _text(given), _keyboard(given)
        return self.shown(self.put(Message(self.number(), chat_id, text=text, keyboard=keyboard)))

    def _send_document(self, given: Json) -> Json:
        chat_id, document, keyboard = self._where(given), given.get("document"), _keyboard(given)
        caption = str(given["caption"]) if given.get("caption") else None
        if isinstance(document, str):
            document = given.get(document.removeprefix("attach://")) if document.startswith("attach://") else self.documents.get(document)
        if not isinstance(document, Document):
            raise Says(400, "Bad Request: " + ("wrong file identifier/HTTP URL specified" if given.get("document") else "there is no document in the request"))
        if not document.size:
            raise Says(400, "Bad Request: file must be non-empty")
        if caption and len(caption) > 1024:
            raise Says(400, "Bad Request: message caption is too long")
        self.documents[document.file_id] = document
        return self.shown(self.put(Message(self.number(), chat_id, caption=caption, document=document, keyboard=keyboard)))

    def _edited(self, given: Json) -> Message:
        chat_id, message_id = self._where(given), number(given.get("message_id"))
        found = next((each for each in self.messages.get(chat_id, []) if each.id == message_id), None)
        if found is None:
            raise Says(400, "Bad Request: message to edit not found")
        return found

    def _edit(self, given: Json) -> Json:
        message, text, keyboard = self._edited(given), _text(given), _keyboard(given)
        if message.text is None:
            raise Says(400, "Bad Request: there is no text in the message to edit")
        return self._changed(message, text, keyboard)

    def _edit_keyboard(self, given: Json) -> Json:
        message = self._edited(given)
        return self._changed(message, message.text, _keyboard(given))

    def _changed(self, message: Message, text: str | None, keyboard: Json | None) -> Json:
        if (text, keyboard) == (message.text, message.keyboard):
            raise Says(400, NOT_MODIFIED)
        message.edits.append(message.text)
        message.text, message.keyboard = text, keyboard
        self.notify()
        return self.shown(message)

    def _answer_query(self, given: Json) -> bool:
        text = str(given["text"]) if given.get("text") else None
        if text and len(text) > 200:
            raise Says(400, "Bad Request: MESSAGE_TOO_LONG")
        if not self.answer(str(given.get("callback_query_id")), text, str(given.get("show_alert")).lower() == "true"):
            raise Says(400, TOO_OLD)
        return True


def number(value: object) -> int:
    try:
        return int(str(value or 0))
    except ValueError:
        raise Says(400, "Bad Request: a number was expected") from None


def _text(given: Json) -> str:
    text = str(given.get("text") or "").strip()
    if not text:
        raise Says(400, "Bad Request: message text is empty")
    if len(text) > 4096:
        raise Says(400, "Bad Request: message is too long")
    return text


def _keyboard(given: Json) -> Json | None:
    written = given.get("reply_markup")
    keyboard: Json | None = json.loads(written) if isinstance(written, str) and written else written  # type: ignore[assignment]
    if not keyboard or not keyboard.get("inline_keyboard"):
        return None
    for row in keyboard["inline_keyboard"]:  # type: ignore[attr-defined]
        for button in row:
            if "callback_data" in button and not 1 <= len(button["callback_data"].encode()) <= 64:
                raise Says(400, "Bad Request: BUTTON_DATA_INVALID")
    return keyboard


def listed(value: object) -> list[str]:
    """A list, as it is or as JSON."""
    found: list[str] = json.loads(value) if isinstance(value, str) and value else value or []  # type: ignore[assignment]
    return found
