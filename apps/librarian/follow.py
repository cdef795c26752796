"""Shows the progress of a download in a terminal until it ends."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn, TransferSpeedColumn
from rich.text import Text
from typing_extensions import override

from apps.common.formatting import plain_text

from .formatting import describe_download, format_status
from .models import Download
from .service import StaffService

REFRESH_SECONDS = 1.0
Draw = Callable[[Download], None]


def follow_download(
    service: StaffService, id: str, out: TextIO, wait: Callable[[], None], *, terminal: bool, last_line: str = ""
) -> Download:
    """Show a download until it ends, and return it: a progress bar in a terminal, else a line for each change.

    `last_line` is the line that was printed last. It is not printed again.
    """
    screen = Console(file=out, force_terminal=terminal, markup=False, highlight=False, emoji=False, soft_wrap=True)
    download = service.find_download(id)
    with _bar(screen) if terminal else _lines(screen, last_line) as draw:
        draw(download)
        while download.active:
            wait()
            download = service.download(download.user_id, download.id)
            draw(download)
    screen.print(_summary(service, download))
    return download


@contextmanager
def _lines(screen: Console, last_line: str) -> Generator[Draw]:
    def draw(download: Download) -> None:
        nonlocal last_line
        if download.active and (line := describe_download(download)) != last_line:
            screen.print(last_line := line)

    yield draw


class _Speed(TransferSpeedColumn):
    """The transfer speed, or nothing while it is unknown."""

    @override
    def render(self, task: Task) -> Text:
        return super().render(task) if task.speed else Text("")


@contextmanager
def _bar(screen: Console) -> Generator[Draw]:
    status = TextColumn("{task.description}", markup=False)
    with Progress(status, BarColumn(), DownloadColumn(), _Speed(), console=screen, auto_refresh=False) as bar:
        task = bar.add_task("", total=None)
        yield lambda download: _update(bar, bar.tasks[task], download)


def _update(bar: Progress, task: Task, download: Download) -> None:
    progress, status = download.progress, format_status(download)
    done, total = (progress.done, progress.total) if progress else (task.completed, task.total)
    if download.status == "completed" and total is not None:
        done = total
    note = progress.note if progress and download.active else ""
    if download.first_not_found_at_utc and download.active:
        note = "not found"
    description = plain_text(f"{status} ({note})" if note else status)
    bar.update(task.id, description=description, completed=done, total=total, refresh=True)


def _summary(service: StaffService, download: Download) -> str:
    if download.status == "completed":
        path = service.storage_path(download)
        return plain_text(f"completed: the {download.media_type} of book {download.book_id} is at {path}")
    reason = download.failure_reason
    return plain_text(f"{download.status}: {reason}" if reason else download.status)
