"""The text of /status for administrators. It names no token, no person, no chat and no file."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from . import formatting
from .redact import redact_text
from .service_models import FINAL, Overview

STATES = ("QUEUED", "CLAIMED", "DOWNLOADING", "STREAMING", *FINAL)
MAX_LINES = 10
"""Lines per section, at most."""
RECENT = 600.0
"""Seconds for which a worker without heartbeats is still listed."""


class Render(Protocol):
    """Renders a text of the catalogue in the reader's language."""

    def __call__(self, key: str, /, **values: object) -> str: ...


def format_status(language: str | None, overview: Overview, now: datetime) -> str:
    """Format an overview as one message. States have the same names as in the audit."""

    def render(key: str, /, **values: object) -> str:
        return formatting.render(language, key, **values)

    def age(seconds: float) -> str:
        return formatting.format_duration(seconds, language)

    lines = [
        render("status"),
        *(f"{state}: {overview.counts[state]}" for state in STATES if overview.counts.get(state)),
    ]
    lines += ["", render("depth", waiting=overview.waiting, running=overview.running)]
    if overview.waiting:
        lines.append(render("oldest", age=age(overview.oldest)))
    lines += ["", render("stuck", count=len(overview.stuck))]
    lines += [
        f"– {render('stuck_line', state=each.state, age=age((now - each.heartbeat_at).total_seconds()))}"
        for each in overview.stuck[:MAX_LINES]
    ]
    lines += _worker_lines(overview, render, age)
    lines += [
        "",
        render("token_unknown")
        if overview.token_expires_at is None
        else render("token_expiry", at=_format_time(overview.token_expires_at)),
    ]
    lines += [render("doubted", count=overview.doubted)]
    lines += _error_lines(overview, render)
    return formatting.truncate(redact_text("\n".join(lines)), formatting.MAX_TEXT)


def _worker_lines(overview: Overview, render: Render, age: Callable[[float], str]) -> list[str]:
    alive = sum(worker.alive for worker in overview.workers)
    recent = [worker for worker in overview.workers if worker.alive or worker.age < RECENT]
    lines = ["", render("workers", count=alive)]
    lines += [
        f"– {render('worker_line' if each.alive else 'worker_gone', name=each.name, age=age(each.age))}"
        for each in recent[:MAX_LINES]
    ]
    return lines if alive else [*lines, render("no_worker")]


def _error_lines(overview: Overview, render: Render) -> list[str]:
    if not overview.errors:
        return ["", f"{render('errors')}: {render('none')}"]
    return [
        "",
        render("errors"),
        *(
            f"– {render('error_line', at=_format_time(each.at), code=each.code, sentence=each.sentence).rstrip()}"
            for each in overview.errors
        ),
    ]


def _format_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
