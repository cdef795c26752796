"""Settings as an application reads them, from variables that a test sets."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def reader(monkeypatch: pytest.MonkeyPatch, directory: Path, prefix: str, read: Callable[[], T], **always: str) -> Callable[..., T]:
    """The settings of these variables and of those that are `always` set, in a directory of their own. What is None is not set."""
    for name in [name for name in os.environ if name.startswith(prefix)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(directory)

    def given(**variables: str | None) -> T:
        with monkeypatch.context() as patch:
            for name, value in (always | variables).items():
                if value is not None:
                    patch.setenv(f"{prefix}{name}", value)
            return read()

    return given


def refusal(bad: type[Exception], read: Callable[..., object], **variables: str | None) -> str:
    """What is said against these variables: by nobody else's error, and without a canary that may be in them."""
    with pytest.raises(bad) as refused:
        read(**variables)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    assert "canary" not in str(refused.value)
    return str(refused.value)
