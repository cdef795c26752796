"""The commands of an application, as a person would run them."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


Call = Callable[..., Said]


def called(main: Callable[[list[str]], None], capsys: pytest.CaptureFixture[str], *arguments: object) -> Said:
    """Run a command; nobody ever sees a traceback."""
    with pytest.raises(SystemExit) as end:
        main([str(each) for each in arguments])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return Said(end.value.code if isinstance(end.value.code, int) else 0 if end.value.code is None else 1, printed.out, printed.err)


def refused(app: str, said: Said, code: int, word: str) -> None:
    """It ended with this code, printed nothing, and said one sentence."""
    assert (said.code, said.out) == (code, ""), said
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith(f"{app}: ")
    assert word in said.err
