"""Following a download in a terminal, from a first look to its end."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn, TransferSpeedColumn
from rich.text import Text
from typing_extensions import override

from apps.common.telling import plain

from .desk import Desk
from .library import Download
from .telling import how_it_stands, status

EVERY = 1.0
"""Seconds between two looks."""
Draw = Callable[[Download], None]


def followed(desk: Desk, id: str, out: TextIO, wait: Callable[[], None], *, terminal: bool, said: str = "") -> Download:
    """Show a download until it has ended, and answer how it did: as a bar in a terminal, else as a line for each change since what was `said`."""
    screen = Console(file=out, force_terminal=terminal, markup=False, highlight=False, emoji=False, soft_wrap=True)
    seen = desk.found(id)
    with _bar(screen) if terminal else _lines(screen, said) as draw:
        draw(seen)
        while seen.active:
            wait()
            seen = desk.download(seen.user_id, seen.id)
            draw(seen)
    screen.print(_end(desk, seen))
    return seen


@contextmanager
def _lines(screen: Console, said: str) -> Generator[Draw]:
    def draw(seen: Download) -> None:
        nonlocal said
        if seen.active and (line := how_it_stands(seen)) != said:
            screen.print(said := line)

    yield draw


class _Speed(TransferSpeedColumn):
    """How fast it comes, as soon as two looks have differed."""

    @override
    def render(self, task: Task) -> Text:
        return super().render(task) if task.speed else Text("")


@contextmanager
def _bar(screen: Console) -> Generator[Draw]:
    words = TextColumn("{task.description}", markup=False)
    with Progress(words, BarColumn(), DownloadColumn(), _Speed(), console=screen, auto_refresh=False) as bar:
        task = bar.add_task("", total=None)
        yield lambda seen: _draw(bar, bar.tasks[task], seen)


def _draw(bar: Progress, task: Task, seen: Download) -> None:
    done, total = (seen.progress.done, seen.progress.total) if seen.progress else (task.completed, task.total)
    if seen.status == "completed" and total is not None:
        done = total
    note = seen.progress.note if seen.progress and seen.active else ""
    word = "not found" if seen.first_not_found_at_utc and seen.active else note
    bar.update(task.id, description=plain(f"{status(seen)} ({word})" if word else status(seen)), completed=done, total=total, refresh=True)


def _end(desk: Desk, seen: Download) -> str:
    if seen.status == "completed":
        return plain(f"completed: the {seen.media_type} of book {seen.book_id} is at {desk.stored_at(seen)}")
    return plain(f"{seen.status}: {seen.failure_reason}" if seen.failure_reason else seen.status)
