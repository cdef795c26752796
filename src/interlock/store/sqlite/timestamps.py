"""Times as SQLite stores them: texts of one width, in UTC, so that they sort in order."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def text_of(at: datetime) -> str:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def when(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


class Timestamp:
    """One reading of the clock, as a time and as text."""

    __slots__ = ("at", "text")

    def __init__(self, at: datetime) -> None:
        self.at = at
        self.text = text_of(at)

    @property
    def us(self) -> int:
        """Microseconds since 1970."""
        return (self.at - _EPOCH) // _MICROSECOND

    def after(self, seconds: float | None) -> str | None:
        return None if seconds is None else self.plus(seconds)

    def plus(self, seconds: float) -> str:
        return text_of(self.at + timedelta(seconds=seconds)) if seconds else self.text
