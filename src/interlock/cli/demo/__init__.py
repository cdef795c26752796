"""`interlock demo`: what Interlock promises, shown with real workers that are killed and frozen."""

import shutil
import signal
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from .. import screen, words
from .cast import server
from .stage import stage
from .story import Story
from .tally import ends, last_screen


def demo(
    postgres: Annotated[bool, typer.Option("--postgres", help="On a PostgreSQL server of its own, which ends with it; else on a new SQLite file.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Shorter leases, and no pauses for reading.")] = False,
) -> None:
    """Kill a worker that holds six jobs, freeze another, and count what happened, in under a minute.

    Exits with 0 only if every job ended as it should, nothing was doubled, and verify finds every rule kept.

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
        screen.complain("the demo was stopped; its processes are ended, and what it made is removed.")
        raise typer.Exit(128 + error.number) from None
    if not clean:
        screen.complain("the demo did not end as it should.")
        raise typer.Exit(1)


def _on_file(directory: Path, fast: bool) -> bool:
    url = f"sqlite:///{directory / 'demo.db'}"
    return _tell(url, directory, fast, lambda job: words.written(f"show {job}", None, [("--database", url)]), f"delete {directory} when you like")


def _on_server(directory: Path, fast: bool) -> bool:
    screen.say("A PostgreSQL server starts, for this demo alone.", style="dim")
    try:
        with server(directory) as url:
            return _tell(url, directory, fast, lambda _: f"{words.program()} lifecycle standard", "nothing: the server has ended, and its files are removed")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _tell(url: str, directory: Path, fast: bool, next_command: Callable[[str], str], leftover: str) -> bool:
    with stage() as shown:
        story = Story(url, directory, shown, fast=fast)
        result = story.tell()
    last_screen(result, ends(story.app), next_command(story.refused), leftover)
    story.app.close()
    return result.clean


class Stopped(BaseException):
    """Somebody wants the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _stoppable() -> Generator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end the block in order, and once; one that is ignored, as by nohup, stays so."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {each: kept for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if (kept := signal.getsignal(each)) is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, kept in before.items():
            signal.signal(each, kept)
