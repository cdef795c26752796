"""The methods of the fake Bot API, with Telegram's limits and error descriptions. Independent of HTTP."""

import json
from collections.abc import Callable
from typing import cast

from .fake_chats import Document, FakeChats, Json, Message

NOT_MODIFIED = (
    "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as "
    "a current content and reply markup of the message"
)
TOO_OLD = "Bad Request: query is too old and response timeout expired or query ID is invalid"


class ApiError(Exception):
    """An error response of Telegram."""

    def __init__(self, status: int, description: str, retry_after: int | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.body: Json = {"ok": False, "error_code": status, "description": description}
        if retry_after is not None:
            self.body["parameters"] = {"retry_after": retry_after}


class FakeBotMethods(FakeChats):
    """The methods with an immediate answer. Each takes its raw parameters, and changes nothing if it fails."""

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.commands: list[Json] = []
        self.methods: dict[str, Callable[[Json], object]] = {
            "getMe": lambda _: self.me,
            "deleteWebhook": lambda _: True,
            "setMyCommands": self._commands,
            "sendMessage": self._send,
            "editMessageText": self._edit,
            "editMessageReplyMarkup": self._edit_keyboard,
            "answerCallbackQuery": self._answer_query,
            "sendDocument": self._send_document,
        }

    def _commands(self, given: Json) -> bool:
        self.commands.append(given)
        return True

    def _chat_id(self, given: Json) -> int:
        chat_id = parse_number(given.get("chat_id"))
        person = self.people.get(chat_id)
        if chat_id not in self.messages and not (person and person.spoke):
            raise ApiError(400, "Bad Request: chat not found")
        if person and person.blocked:
            raise ApiError(403, "Forbidden: bot was blocked by the user")
        return chat_id

    def _send(self, given: Json) -> Json:
        chat_id, text, keyboard = self._chat_id(given), _text(given), _keyboard(given)
        return self.to_json(self.add_message(Message(self.next_number(), chat_id, text=text, keyboard=keyboard)))

    def _send_document(self, given: Json) -> Json:
        chat_id, document, keyboard = self._chat_id(given), given.get("document"), _keyboard(given)
        caption = str(given["caption"]) if given.get("caption") else None
        if isinstance(document, str):
            document = (
                given.get(document.removeprefix("attach://"))
                if document.startswith("attach://")
                else self.documents.get(document)
            )
        if not isinstance(document, Document):
            raise ApiError(
                400,
                "Bad Request: "
                + (
                    "wrong file identifier/HTTP URL specified"
                    if given.get("document")
                    else "there is no document in the request"
                ),
            )
        if not document.size:
            raise ApiError(400, "Bad Request: file must be non-empty")
        if caption and len(caption) > 1024:
            raise ApiError(400, "Bad Request: message caption is too long")
        self.documents[document.file_id] = document
        return self.to_json(
            self.add_message(
                Message(self.next_number(), chat_id, caption=caption, document=document, keyboard=keyboard)
            )
        )

    def _find_message(self, given: Json) -> Message:
        chat_id, message_id = self._chat_id(given), parse_number(given.get("message_id"))
        found = next((each for each in self.messages.get(chat_id, []) if each.id == message_id), None)
        if found is None:
            raise ApiError(400, "Bad Request: message to edit not found")
        return found

    def _edit(self, given: Json) -> Json:
        message, text, keyboard = self._find_message(given), _text(given), _keyboard(given)
        if message.text is None:
            raise ApiError(400, "Bad Request: there is no text in the message to edit")
        return self._change(message, text, keyboard)

    def _edit_keyboard(self, given: Json) -> Json:
        message = self._find_message(given)
        return self._change(message, message.text, _keyboard(given))

    def _change(self, message: Message, text: str | None, keyboard: Json | None) -> Json:
        if (text, keyboard) == (message.text, message.keyboard):
            raise ApiError(400, NOT_MODIFIED)
        message.edits.append(message.text)
        message.text, message.keyboard = text, keyboard
        self.notify()
        return self.to_json(message)

    def _answer_query(self, given: Json) -> bool:
        text = str(given["text"]) if given.get("text") else None
        if text and len(text) > 200:
            raise ApiError(400, "Bad Request: MESSAGE_TOO_LONG")
        if not self.answer_query(
            str(given.get("callback_query_id")), text, str(given.get("show_alert")).lower() == "true"
        ):
            raise ApiError(400, TOO_OLD)
        return True


def parse_number(value: object) -> int:
    try:
        return int(str(value or 0))
    except ValueError:
        raise ApiError(400, "Bad Request: a number was expected") from None


def _text(given: Json) -> str:
    text = str(given.get("text") or "").strip()
    if not text:
        raise ApiError(400, "Bad Request: message text is empty")
    if len(text) > 4096:
        raise ApiError(400, "Bad Request: message is too long")
    return text


def _keyboard(given: Json) -> Json | None:
    written = given.get("reply_markup")
    keyboard = cast("Json | None", json.loads(written) if isinstance(written, str) and written else written)
    if not keyboard or not keyboard.get("inline_keyboard"):
        return None
    for row in keyboard["inline_keyboard"]:  # type: ignore[attr-defined]
        for button in row:
            if "callback_data" in button and not 1 <= len(button["callback_data"].encode()) <= 64:
                raise ApiError(400, "Bad Request: BUTTON_DATA_INVALID")
    return keyboard


def parse_list(value: object) -> list[str]:
    """Parse a list, given as it is or as JSON."""
    return cast("list[str]", json.loads(value) if isinstance(value, str) and value else value or [])
