"""What is hidden in a text takes time in proportion to the text: errors of strangers are logged, too."""

import time

import pytest

from interlock.telemetry import redact


def cpu(value: str) -> float:
    """Seconds of CPU that hiding takes; the best of three, since the machine has other work too."""

    def once() -> float:
        begun = time.process_time()
        redact.text(value, limit=redact.TRACEBACK, lines=True)
        return time.process_time() - begun

    return min(once() for _ in range(3))


ADDRESSES = "://a:"
WORD = "x"


@pytest.mark.parametrize(
    ("unit", "tail"),
    [(ADDRESSES, " @"), ("@://a:", ""), (WORD, " " + "y" * 100_000), ("token=\\", "\n"), ("bearer ", ""), ("-", " =")],
)
def test_redaction_time_is_proportional_to_the_text(unit: str, tail: str) -> None:
    """Eight times the text takes about eight times as long, and not sixty-four times."""
    short, long = unit * (4_000 // len(unit)) + tail, unit * (32_000 // len(unit)) + tail
    assert cpu(long) < 24 * cpu(short) + 0.01


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("postgresql://me:pa:s/s@w@host/db is unreachable", "postgresql://me:***@host/db is unreachable"),
        ("two: http://a:b@c and\thttps://d:e@f/x:y", "two: http://a:***@c and\thttps://d:***@f/x:y"),
        ("https://token@host/x", "https://***@host/x"),
        ("write to me@host, see http://host:80/x", "write to me@host, see http://host:80/x"),
    ],
)
def test_password_of_an_address_is_hidden(said: str, shown: str) -> None:
    """To the last @ of its run, and nothing beside it."""
    assert redact.text(said) == shown


def test_text_is_shortened_between_words() -> None:
    """Half a password would have lost the sign that it is one."""
    assert redact.text("a b " + "c" * 100, limit=10) == "a b …"
    assert redact.text("c" * 100, limit=10) == "…"
