"""Every lifecycle on the real stores: allowed transitions work, all others are refused."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from interlock.core.lifecycle import Lifecycle
from interlock.core.lifecycle_checks import EVENTS
from interlock.core.machine import Arrow
from interlock.core.outcome import (
    Advanced,
    CancelRequested,
    Errored,
    FailedFinally,
    Finished,
    Handed,
    Held,
    Lost,
    Outcome,
    Rejected,
    Requeued,
    Returned,
    Snoozed,
    Started,
)
from interlock.core.projection import phase_of
from interlock.core.transition import Take
from interlock.errors import TransitionRefused
from interlock.store.contract import Store
from interlock.store.types import ClaimRule, Lease
from tests.contract.kit import (
    KIND_OF,
    LIFECYCLES,
    again,
    check,
    claim,
    claim_rules,
    decided,
    forged,
    make,
    taken,
    walked,
)
from tests.kit import Raw

Action = Outcome | str
"""An outcome that the holder reports, or one of: claim, cancel, expire, reject."""
TAKES = ("cancel", "expire", "reject")
RAISES: dict[str, Outcome] = {
    "start": Started(),
    "succeed": Returned("1", boundary=False),
    "retry": Errored("busy", retryable=True, after=0),
    "lose": Lost(),
    "fail": FailedFinally("broken"),
    "bury": FailedFinally("broken"),
    "reject": Rejected("no"),
    "cancel": CancelRequested(None, "olga"),
}


@dataclass
class Walker:
    """One job, and its lease, if it has one."""

    store: Store
    lifecycle: Lifecycle
    id: str
    lease: Lease | None = None

    @property
    def place(self) -> tuple[str, str, str | None]:
        job = self.store.inspect.get(self.id)
        return job.state, job.phase, self.lease.status if self.lease else None

    def can(self, action: Action) -> bool:
        """Claims and takes are for waiting jobs, outcomes for leased jobs."""
        sleeper = self.store.inspect.get(self.id).phase == "pending"
        return sleeper if isinstance(action, str) else self.lease is not None

    def step(self, action: Action) -> None:
        """Do the action, or raise `TransitionRefused` if the lifecycle does not allow it. The store must accept the
        decision.
        """
        if action == "claim":
            (self.lease,) = claim(self.store, KIND_OF[self.lifecycle.name], 1)
        elif isinstance(action, str):
            assert self.store.transitions.take([taken(self.store.inspect.get(self.id), action)]) == []
        else:
            assert self.lease is not None
            assert self.store.transitions.move([decided(self.lease, action)]) == []
            self.lease = again(self.store, self.lease)
            if self.lease.status in ("DONE", "ABORTED"):
                self.lease = None


def actions(lifecycle: Lifecycle) -> list[Action]:
    outcomes = [
        Started(),
        *(Advanced(state) for state in lifecycle.states),
        Returned("1", boundary=False),
        Returned("1", boundary=True),
        Finished(),
        Finished("gave up"),
        Errored("busy", retryable=True, after=0),
        Errored("bad", retryable=False),
        FailedFinally("broken"),
        Rejected("no"),
        Lost(),
        Requeued("stopping"),
        Snoozed(0.0, "later"),
        CancelRequested(None, "olga"),
        Handed("outside-1", 0.0),
    ]
    return ["claim", *TAKES, *outcomes]


def walk(store: Store, lifecycle: Lifecycle, route: tuple[Action, ...]) -> Walker:
    """Create a job and lead it along a route. Each has a higher priority than the last, so the next claim finds it."""
    job = make(KIND_OF[lifecycle.name], priority=_newest())
    walker = Walker(store, lifecycle, store.queue.enqueue([job])[0].id)
    for action in route:
        walker.step(action)
    return walker


def _newest(counter: Iterator[int] = iter(range(10**9))) -> int:  # noqa: B008 - one counter for all walks
    return next(counter)


def routes(store: Store, lifecycle: Lifecycle) -> dict[tuple[str, str, str | None], tuple[Action, ...]]:
    """Return the shortest route to every situation that a job of this lifecycle can reach; each step of the search runs
    in the store.
    """
    start = walk(store, lifecycle, ())
    found: dict[tuple[str, str, str | None], tuple[Action, ...]] = {start.place: ()}
    queue = deque(found)
    while queue:
        route = found[queue.popleft()]
        for action in actions(lifecycle):
            walker = walk(store, lifecycle, route)
            if not walker.can(action):
                continue
            before = walker.place
            try:
                walker.step(action)
            except TransitionRefused:
                assert walker.place == before
                continue
            check(store, walker.id)
            if walker.place not in found:
                found[walker.place] = (*route, action)
                queue.append(walker.place)
    return found


_known: dict[str, dict[tuple[str, str, str | None], tuple[Action, ...]]] = {}


def known_routes(store: Store, lifecycle: Lifecycle) -> dict[tuple[str, str, str | None], tuple[Action, ...]]:
    """Return the routes, searched once: they depend on the lifecycle, not on the store."""
    if lifecycle.name not in _known:
        _known[lifecycle.name] = routes(store, lifecycle)
    return _known[lifecycle.name]


@pytest.fixture(params=list(LIFECYCLES))
def lifecycle(request: pytest.FixtureRequest) -> Lifecycle:
    return LIFECYCLES[request.param]


def test_jobs_take_every_allowed_transition_and_no_other(store: Store, lifecycle: Lifecycle) -> None:
    """If every action is tried in every reachable situation, the audit has all transitions of the lifecycle and no
    others.
    """
    found = routes(store, lifecycle)
    assert {state for state, _, _ in found} >= set(lifecycle.states) - lifecycle.resting - {"queued"}
    seen = {arrow for job in _all(store) for arrow in walked(store, job)}
    assert seen == {(arrow.source, arrow.event, arrow.target) for arrow in lifecycle.arrows}
    assert set(store.inspect.counts()[lifecycle.name]) >= lifecycle.finals


def _all(store: Store) -> list[str]:
    return [record.job_id for page in store.inspect.job_records() for record in page]


def test_decide_refuses_every_event_that_the_lifecycle_does_not_allow(store: Store, lifecycle: Lifecycle) -> None:
    """In each situation an event that is not allowed is refused or replaced by one that is allowed; it is never
    recorded itself.
    """
    for (state, phase, status), route in known_routes(store, lifecycle).items():
        walker = walk(store, lifecycle, route)
        for event in EVENTS:
            if event == "advance" or lifecycle.arrow(state, event):
                continue
            if walker.lease and event in RAISES:
                try:
                    move = decided(walker.lease, RAISES[event])
                except TransitionRefused:
                    continue
                assert all(arrow in lifecycle.arrows for arrow in move.path), (state, phase, status, event)
                assert (state, event) not in {(arrow.source, arrow.event) for arrow in move.path}
            elif phase == "pending" and event in TAKES:
                with pytest.raises(TransitionRefused):
                    taken(store.inspect.get(walker.id), event)
        for stage in lifecycle.states:
            if walker.lease and stage != state and not lifecycle.advance(state, stage):
                with pytest.raises(TransitionRefused):
                    decided(walker.lease, Advanced(stage))


def test_database_refuses_every_other_move(store: Store, raw: Raw, lifecycle: Lifecycle) -> None:
    """A forged move by the holder to a state that no transition leads to is refused by the database, and nothing
    changes.
    """
    held = {(change.source, change.target) for change in lifecycle.state_changes() if change.attempts == 0}
    refused = 0
    for (state, _, _), route in known_routes(store, lifecycle).items():
        walker = walk(store, lifecycle, route)
        if walker.lease is None:
            continue
        before = raw.dump()
        for target in [*lifecycle.states, "nowhere"]:
            if target == state or (state, target) in held:
                continue
            success = (
                {"to_status": "DONE", "ended_by": "succeed"}
                if target in lifecycle.successes and walker.lease.status != "LEASED"
                else {}
            )
            (refusal,) = store.transitions.move([forged(walker.lease, target, "lose", **success)])
            assert refusal.error, (state, target)
            assert "interlock refuses" in refusal.error
            refused += 1
        assert raw.dump() == before
    assert refused >= 2


def test_database_refuses_every_other_take(store: Store, raw: Raw, lifecycle: Lifecycle) -> None:
    """A take along a transition that is not allowed is refused, and so is every take of an ended job."""
    for (state, phase, _), route in known_routes(store, lifecycle).items():
        walker = walk(store, lifecycle, route)
        if walker.lease is not None:
            continue
        job, before = store.inspect.get(walker.id), raw.dump()
        for target in [*lifecycle.states, "nowhere"]:
            if target == state or any(
                (arrow.source, arrow.target) == (state, target) and arrow.event in TAKES for arrow in lifecycle.arrows
            ):
                continue
            ends = "failed" if target not in lifecycle.states else phase_of(lifecycle, target, live=False)
            (refusal,) = store.transitions.take(
                [
                    Take(
                        job.id,
                        job.version,
                        job.attempt,
                        job.kind,
                        Arrow(state, "cancel", target),
                        ends,
                        "operator:olga",
                    )
                ]
            )
            assert bool(refusal.error) == (phase == "pending"), (state, target)
        assert raw.dump() == before


def test_database_refuses_every_other_claim(store: Store, raw: Raw, lifecycle: Lifecycle) -> None:
    """A forged claim rule claims no job, and the job and its executions do not change."""
    drawn = {(change.source, change.target) for change in lifecycle.state_changes() if change.attempts == 1}
    (rule,) = (rule for rule in claim_rules(KIND_OF[lifecycle.name]) if rule.state == lifecycle.initial)
    for target in lifecycle.states:
        if target == rule.state or (rule.state, target) in drawn:
            continue
        walker = walk(store, lifecycle, ())
        before = raw.dump()
        assert store.queue.claim("ann", [_along(rule, target)], ["default"], 1) == []
        after = raw.dump()
        assert (after["jobs"], after["executions"]) == (before["jobs"], before["executions"])
        assert walker.place == (lifecycle.initial, "pending", None)


def _along(rule: ClaimRule, target: str) -> ClaimRule:
    return replace(rule, path=(Arrow(rule.state, "claim", target),))


def test_move_with_a_bad_second_transition_is_refused_as_a_whole(store: Store, raw: Raw) -> None:
    """If the second of two transitions cannot be written, the first is not written either."""
    walker = walk(store, LIFECYCLES["image"], ("claim",))
    assert walker.lease is not None
    move = decided(walker.lease, FailedFinally("broken"))
    for second in (
        Arrow("failed", "bury", "completed"),
        Arrow("queued", "bury", "dead_letter"),
        Arrow("failed", "bury", "nowhere"),
    ):
        before = raw.dump()
        assert len(store.transitions.move([replace(move, path=(move.path[0], second), state=second.target)])) == 1
        assert raw.dump() == before


def test_held_job_waits_if_its_lifecycle_allows_it_and_fails_otherwise(store: Store, lifecycle: Lifecycle) -> None:
    """An operator's hold returns a job to a waiting state along allowed transitions, or ends it if there are none."""
    walker = walk(store, lifecycle, ("claim",))
    assert walker.lease is not None
    assert store.transitions.move([decided(walker.lease, Held("look"))]) == []
    check(store, walker.id)
    job = store.inspect.get(walker.id)
    assert (job.held_at is not None) == (job.phase == "pending")
