"""What Telegram says of a file that it took. It stands apart from the client, which takes seconds to import."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sent:
    """Telegram's receipt: the message that a file is in, and the name by which this bot can send the same file again."""

    message_id: int
    telegram_file_id: str
