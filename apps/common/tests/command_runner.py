"""Runs the commands of an application in this process, as a person would."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


RunCommand = Callable[..., CommandResult]


def run_command(
    main: Callable[[list[str]], None], capsys: pytest.CaptureFixture[str], *arguments: object
) -> CommandResult:
    """Run a command, and check that it prints no traceback."""
    with pytest.raises(SystemExit) as end:
        main([str(each) for each in arguments])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return CommandResult(
        end.value.code if isinstance(end.value.code, int) else 0 if end.value.code is None else 1,
        printed.out,
        printed.err,
    )


def assert_refused(app: str, result: CommandResult, code: int, word: str) -> None:
    """The command exited with this code, printed nothing to stdout, and one sentence to stderr."""
    assert (result.code, result.out) == (code, ""), result
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith(f"{app}: ")
    assert word in result.err
