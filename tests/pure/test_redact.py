"""Redaction: secrets in a text are hidden, in time proportional to its length."""

import time

import pytest

from interlock.telemetry import redact


def cpu(value: str) -> float:
    """Return the CPU seconds of redaction; the best of three, since the machine has other work too."""

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
    """Eight times the text takes about eight times as long, not sixty-four times."""
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
    """Up to the last @ of the address, and nothing else."""
    assert redact.text(said) == shown


def test_text_is_shortened_between_words() -> None:
    """Half a password could no longer be recognised as one."""
    assert redact.text("a b " + "c" * 100, limit=10) == "a b …"
    assert redact.text("c" * 100, limit=10) == "…"
