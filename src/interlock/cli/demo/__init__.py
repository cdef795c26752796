"""`interlock demo`: what the kernel promises, shown with real processes that are killed and frozen."""

import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from ...ids import uuid7
from .. import screen
from ..target import Miscalled, answering, knock
from ..words import program, written
from .story import Story


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Shorter leases, and no pauses for reading.")] = False,
    postgres: Annotated[str | None, typer.Option(metavar="URL", help="Run on this server, in a schema of its own that is dropped at the end.")] = None,
) -> None:
    """Kill a holder inside its commit, freeze another, and count what happened: forty jobs, on a new SQLite file.

    Exits with 0 only if every job succeeded once, nothing was doubled, and verify finds every rule kept.
    """
    try:
        with _stoppable():
            clean = _on_file(fast) if postgres is None else _on_server(postgres, fast)
    except Stopped as stop:
        screen.complain("the demo was stopped; its processes are ended, and what it made is removed.")
        raise typer.Exit(128 + stop.number) from None
    if not clean:
        screen.complain("the demo did not end as it should.")
        raise typer.Exit(1)


def _on_file(fast: bool) -> bool:
    directory = Path(tempfile.mkdtemp(prefix="interlock-demo-"))
    try:
        file = directory / "demo.db"
        next_command = written("jobs", None, [("--database", f"sqlite:///{file}")])
        return Story(f"sqlite:///{file}", "interlock", fast).tell(next_command, f"delete {directory} when you like")
    except Stopped:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _on_server(url: str, fast: bool) -> bool:
    if not url.startswith("postgres"):
        raise Miscalled("--postgres needs the address of a server: write it as postgresql://user@host/name.")
    with answering(url):
        knock(url)
        story = Story(url, f"interlock_demo_{uuid7()[-12:]}", fast)
        try:
            return story.tell(f"{program()} lifecycle standard", "the schema is dropped")
        finally:
            story.drop()


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
