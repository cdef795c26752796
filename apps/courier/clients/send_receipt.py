"""Telegram's receipt for a sent file. It is apart from the client, which takes seconds to import."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SendReceipt:
    """The message that contains the file, and the file ID by which this bot can send the same file again."""

    message_id: int
    telegram_file_id: str
