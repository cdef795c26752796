"""The model's record of a job, and the strategies for random input."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from interlock.core.job import LIVE
from interlock.core.outcome import (
    Advanced,
    CancelRequested,
    Errored,
    FailedFinally,
    Finished,
    Handed,
    Held,
    Outcome,
    Rejected,
    Requeued,
    Returned,
    Snoozed,
    Started,
)
from tests.contract.kit import KINDS, LIFECYCLES

DRAWN = {
    kind: {(arrow.source, arrow.event, arrow.target) for arrow in LIFECYCLES[name].arrows}
    for kind, name in KINDS.items()
}
KIND = st.sampled_from(list(KINDS))
KNOWN = st.sampled_from([list(KINDS), list(KINDS), ["mail", "paint"], ["fetch"]])
"""Which kinds a worker knows: mostly all of them."""
WORKER = st.sampled_from(["ann", "bob"])
STAGES = sorted({state for lifecycle in LIFECYCLES.values() for state in lifecycle.states})
OUTCOMES: list[Outcome] = [
    Started(),
    Returned('"v"', boundary=False),
    Returned('"v"', boundary=True),
    Finished(),
    FailedFinally("broken"),
    Rejected("no"),
    Requeued("stopping"),
    CancelRequested(None, "olga"),
    Handed("ext-1", 10.0),
    Held("look"),
    Errored("bad", retryable=False),
    Errored("busy", retryable=True),
    Snoozed(0.0, "now"),
    Snoozed(20.0, "later"),
    *(Advanced(stage) for stage in STAGES),
]


@dataclass
class Known:
    """What the model expects of one job."""

    kind: str
    state: str
    phase: str = "pending"
    attempt: int = 0
    holder: int = 0
    status: str | None = None
    owner: str | None = None
    external: bool = False
    """This attempt was handed over to an external system."""
    resting: bool = False
    """No reconciler has adopted it since."""
    lease: float = 30.0
    lease_end: float = 0.0
    due: float = 0.0
    tries_left: int = 3
    held: bool = False
    asked_to_stop: bool = False
    key: str | None = None
    committed: int = 0
    arrows: list[tuple[str, str, str]] = field(default_factory=list)
    ended: dict[int, tuple[int, str, str]] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        return self.status in LIVE
