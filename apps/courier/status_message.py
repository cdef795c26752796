"""The text of /status: how deliveries stand, for administrators. It names no token, no person, no chat and no file."""

from datetime import UTC, datetime

from . import words
from .desk import FINAL, Overview
from .redact import scrub

STATES = ("QUEUED", "CLAIMED", "DOWNLOADING", "STREAMING", *FINAL)
LINES = 10
"""Of each sort, at most."""
GONE = 600.0
"""Seconds for which a worker that went silent is still news."""


def page(language: str | None, overview: Overview, now: datetime) -> str:
    """An overview, as one message. States have their own names here, as in the audit."""

    def say(key: str, **values: object) -> str:
        return words.say(language, key, **values)

    def age(seconds: float) -> str:
        return words.span(seconds, language)

    lines = [say("status"), *(f"{state}: {overview.counts[state]}" for state in STATES if overview.counts.get(state))]
    lines += ["", say("depth", waiting=overview.waiting, running=overview.running)]
    if overview.waiting:
        lines.append(say("oldest", age=age(overview.oldest)))
    lines += ["", say("stuck", count=len(overview.stuck))]
    lines += [f"– {say('stuck_line', state=each.state, age=age((now - each.heartbeat_at).total_seconds()))}" for each in overview.stuck[:LINES]]
    alive, news = sum(worker.alive for worker in overview.workers), [worker for worker in overview.workers if worker.alive or worker.age < GONE]
    lines += ["", say("workers", count=alive)]
    lines += [f"– {say('worker_line' if each.alive else 'worker_gone', name=each.name, age=age(each.age))}" for each in news[:LINES]]
    if not alive:
        lines.append(say("no_worker"))
    lines += ["", say("token_unknown") if overview.token_expires_at is None else say("token_expiry", at=_moment(overview.token_expires_at))]
    lines += [say("doubted", count=overview.doubted)]
    lines += ["", say("errors"), *(f"– {say('error_line', at=_moment(each.at), code=each.code, sentence=each.sentence).rstrip()}" for each in overview.errors)]
    if not overview.errors:
        lines[-1] += f": {say('none')}"
    return words.fit(scrub("\n".join(lines)), words.TEXT)


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
