"""Outcomes: what a handler, a keeper or a reconciler has to say about an execution. `decide` turns each into a move."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """Work begins. `walks` is False where another raises `start` later, as a reconciler does."""

    walks: bool = True


@dataclass(frozen=True, slots=True)
class Advanced:
    """The work came to a named stage."""

    stage: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned. With a `boundary` the value is committed first and finished later; without one, both at once."""

    value: str
    """As JSON text."""
    boundary: bool
    begins: bool = False
    """Work that went on elsewhere may end before anyone saw it begin: `start` is then walked on the way."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What follows the commit is done, or, with an error, is given up; the job has succeeded all the same."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Raised:
    error: str
    retryable: bool
    after: float | None = None
    """Seconds that its kind asks for, in place of the backoff."""
    at_least: float = 0.0
    """Seconds that the error asks for: they may lengthen the backoff, and never shorten it."""

    def pause(self, backoff: float) -> float:
        """Seconds until the next try, where the kind's own backoff would be so many."""
        return max(backoff, self.at_least) if self.after is None else self.after


@dataclass(frozen=True, slots=True)
class Errored(_Raised):
    """The handler raised."""

    crashed: bool = False
    """Or rather, the process that it ran in has died: as with a lost lease, nobody can say that it was the handler's word."""
    shared: bool = False
    """Whether other jobs ran in the process that died, since any of them may have killed it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It failed for good."""

    reason: str
    seen: bool = False
    """A reconciler saw it there."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Policy says no; never tried again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease ended, and whoever says so has adopted the execution."""


@dataclass(frozen=True, slots=True)
class Released:
    """Given back through no fault of the job; spends no try."""

    reason: str


@dataclass(frozen=True, slots=True)
class Snoozed:
    """To be run again after so many seconds; spends no try."""

    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The holder stopped because it was asked to."""

    reason: str | None
    by: str


@dataclass(frozen=True, slots=True)
class Handed:
    """The work goes on elsewhere; a reconciler looks at it in so many seconds."""

    external_id: str
    check_in: float


@dataclass(frozen=True, slots=True)
class Looked:
    """A reconciler has looked at work that goes on elsewhere, and gives it back until the next look, in so many seconds."""

    check_in: float
    seen: bool | None
    """Whether it is there; None if the outside could not say."""
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Unrecorded(_Raised):
    """Work elsewhere is done, and what was to be written here about it raised: it is looked at again, at the price of a try."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Cancelled outside."""

    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """An operator must decide before it runs again."""

    reason: str


Outcome = (
    Started | Advanced | Returned | Finished | Errored | Failed | Rejected | Lost | Released | Snoozed | Cancelled | Handed | Looked | Unrecorded | Gone | Held
)
