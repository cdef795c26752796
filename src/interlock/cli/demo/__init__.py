"""`interlock demo`: shows the guarantees with real workers that are killed and frozen."""

import shutil
import signal
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from .. import arguments, output
from .demo_workers import server
from .display import open_display
from .scenario import Scenario
from .summary import ends, last_screen


def demo(
    postgres: Annotated[
        bool,
        typer.Option("--postgres", help="Use a temporary PostgreSQL server; by default a new SQLite file."),
    ] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Shorter leases and no pauses for reading.")] = False,
) -> None:
    """Kill a worker that runs six jobs, freeze another, and count the results, in under a minute.

    Exits with 0 only if every job ended as expected, no effect was doubled, and verify finds no violation.

    Example: interlock demo --postgres
    """
    directory = Path(tempfile.mkdtemp(prefix="interlock-demo-"))
    try:
        with _stoppable():
            clean = _on_server(directory, fast) if postgres else _on_file(directory, fast)
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if not isinstance(error, Stopped):
            raise
        output.print_error("The demo was stopped; its processes and files are removed.")
        raise typer.Exit(128 + error.number) from None
    if not clean:
        output.print_error("The demo did not end as expected.")
        raise typer.Exit(1)


def _on_file(directory: Path, fast: bool) -> bool:
    url = f"sqlite:///{directory / 'demo.db'}"
    return _run_scenario(
        url,
        directory,
        fast,
        lambda job: arguments.command_line(f"show {job}", None, [("--database", url)]),
        f"{directory}, which you can delete",
    )


def _on_server(directory: Path, fast: bool) -> bool:
    output.print_line("Starting a temporary PostgreSQL server.", style="dim")
    try:
        with server(directory) as url:
            return _run_scenario(
                url,
                directory,
                fast,
                lambda _: f"{arguments.program()} lifecycle standard",
                "nothing: the server and its files are removed",
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_scenario(url: str, directory: Path, fast: bool, next_command: Callable[[str], str], leftover: str) -> bool:
    with open_display() as shown:
        story = Scenario(url, directory, shown, fast=fast)
        result = story.run()
    last_screen(result, ends(story.app), next_command(story.refused), leftover)
    story.app.close()
    return result.clean


class Stopped(BaseException):
    """A signal stopped the demo."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _stoppable() -> Generator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the block once. A signal that is ignored, as by nohup, stays ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {
        each: kept
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if (kept := signal.getsignal(each)) is not signal.SIG_IGN
    }
    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, kept in before.items():
            signal.signal(each, kept)
