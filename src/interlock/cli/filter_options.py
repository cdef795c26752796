"""The options that filter jobs, for `interlock jobs` and for commands that change many jobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from ..app import App
from ..core.job_filter import PHASES, JobFilter
from ..errors import UsageError
from .arguments import duration, is_duration, tags
from .common_options import CommandError, lifecycles

TIME = "an age such as 90s, 15m, 12h or 7d, or a time in UTC such as 2026-01-31 or 2026-01-31T12:00"

KindOption = Annotated[str | None, typer.Option(help="Only this kind.")]
StateOption = Annotated[str | None, typer.Option(help="Only in this state.")]
PhaseOption = Annotated[str | None, typer.Option(help="Only in this phase: pending, running, succeeded or failed.")]
QueueOption = Annotated[str | None, typer.Option(help="Only in this queue.")]
TagOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only with this tag; repeatable.")]
SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="AGE|TIME",
        help=f"Only jobs that ended (or, if they have not ended, were created) at this time or later: {TIME}.",
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        metavar="AGE|TIME", help="Only jobs that ended (or, if they have not ended, were created) before this time."
    ),
]
ErrorLikeOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Only jobs whose last error contains this text; A to Z match in upper and lower case."
    ),
]


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """The options as they were given."""

    kind: str | None = None
    state: str | None = None
    phase: str | None = None
    queue: str | None = None
    tag: Sequence[str] | None = None
    since: str | None = None
    until: str | None = None
    error_like: str | None = None

    def named(self) -> list[tuple[str, object]]:
        """Return the options that were given, with their values, for a command line."""
        every = (
            ("--kind", self.kind),
            ("--state", self.state),
            ("--phase", self.phase),
            ("--queue", self.queue),
            *(("--tag", each) for each in self.tag or ()),
            ("--since", self.since),
            ("--until", self.until),
            ("--error-like", self.error_like),
        )
        return [(option, value) for option, value in every if value is not None]

    def read(self, now: Callable[[], datetime]) -> JobFilter:
        """Return the filter. `CommandError` names the option that has a wrong value."""
        if self.phase is not None and self.phase not in PHASES:
            raise CommandError(f"--phase {self.phase!r} is not a phase: give pending, running, succeeded or failed.")
        try:
            return JobFilter(
                kind=self.kind,
                state=self.state,
                phase=self.phase,
                queue=self.queue,
                tags=tags(self.tag),
                since=_time(self.since, "--since", now),
                until=_time(self.until, "--until", now),
                error_like=self.error_like,
            )
        except UsageError as error:
            raise CommandError(str(error)) from None

    def check_known(self, app: App[Any]) -> None:
        """Raise `CommandError` if the kind or the state is unknown, because it is misspelled."""
        if self.kind and self.kind not in app.kinds and app.database.store().registry.kind(self.kind) is None:
            raise CommandError(
                f"--kind {self.kind!r} is not a kind of this app, which has {', '.join(sorted(app.kinds)) or 'none'}."
            )
        states = [each for lifecycle in lifecycles(app) for each in lifecycle.states]
        if self.state and self.state not in states:
            raise CommandError(
                f"--state {self.state!r} is not a state of this app's lifecycles, which have "
                f"{', '.join(dict.fromkeys(states))}."
            )


def _time(text: str | None, option: str, now: Callable[[], datetime]) -> datetime | None:
    """Parse an age, counted back from now, or a time."""
    if text is None:
        return None
    if is_duration(text):
        return now() - timedelta(seconds=duration(text, option) or 0)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandError(f"{option} {text!r} is not a time: write {TIME}.") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
