"""Loads the settings of an application from variables that a test sets."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def reader(
    monkeypatch: pytest.MonkeyPatch, directory: Path, prefix: str, read: Callable[[], T], **always: str
) -> Callable[..., T]:
    """A function that loads settings from its arguments and from the variables that are `always` set.

    It runs in `directory`. A variable that is None is not set.
    """
    for name in [name for name in os.environ if name.startswith(prefix)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(directory)

    def load(**variables: str | None) -> T:
        with monkeypatch.context() as patch:
            for name, value in (always | variables).items():
                if value is not None:
                    patch.setenv(f"{prefix}{name}", value)
            return read()

    return load


def refusal(bad: type[Exception], read: Callable[..., object], **variables: str | None) -> str:
    """Return the error for these variables. It has no cause and contains no value with the word "canary"."""
    with pytest.raises(bad) as refused:
        read(**variables)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    assert "canary" not in str(refused.value)
    return str(refused.value)
