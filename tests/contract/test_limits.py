"""Limits of queues and kinds: how many jobs run at once, how often they start, and pauses."""

from typing import Any

import pytest

from interlock.core.limits import Limit, Rate, Scope
from interlock.core.outcome import Errored, Handed, Lost
from interlock.errors import UsageError
from interlock.store.contract import Store
from interlock.store.postgres.limited_claim import PostgresLimitedQueries
from interlock.store.types import Lease
from tests.contract.kit import (
    claim,
    claim_rules,
    decided,
    finish,
    limit,
    make,
    many,
    pause,
    resume,
    settle,
    started,
    stored,
)
from tests.kit import Raw, SettableClock


def due_in(store: Store, *kinds: str, queues: tuple[str, ...] = ("default",)) -> float | None:
    return store.queue.due_in(claim_rules(*(kinds or ("mail",))), queues)


def ids(leases: list[Lease]) -> list[str]:
    return [lease.job.id for lease in leases]


# ---------------------------------------------------------------- running jobs
def test_full_limit_leaves_nothing_due_until_a_job_ends(store: Store) -> None:
    limit(store, "kind", "mail", max_running=1)
    store.queue.enqueue(many(2))
    (first,) = claim(store)
    assert (claim(store), due_in(store)) == ([], None)
    finish(store, first)
    assert due_in(store) == 0.0
    assert len(claim(store)) == 1


@pytest.mark.parametrize("scope", ["queue", "kind"])
@pytest.mark.parametrize("end", ["retry", "lose", "hand over"])
def test_only_a_job_that_runs_counts(store: Store, clock: SettableClock, end: str, scope: Scope) -> None:
    """A job that waits for its retry frees its place; one that an external system works on does not."""
    limit(store, scope, "fetch" if scope == "kind" else "default", max_running=1)
    first = started(store, "fetch")
    store.queue.enqueue(many(1, "fetch"))
    if end == "retry":
        settle(store, first, Errored("busy", retryable=True))
    elif end == "lose":
        clock.advance(31)
        (adopted,) = store.leases.adopt("bob", ["fetch"], 30.0, 1)
        assert claim(store, "fetch") == []
        assert store.transitions.move([decided(adopted, Lost())]) == []
    else:
        settle(store, first, Handed("x-1", 10.0))
        assert [each.running for each in store.limits.all()] == [1]
    assert len(claim(store, "fetch")) == (0 if end == "hand over" else 1)


def test_limits_of_queue_and_kind_apply_together(store: Store) -> None:
    """The jobs of highest priority fill what both limits leave."""
    limit(store, "kind", "mail", max_running=2)
    limit(store, "queue", "narrow", max_running=1)
    jobs = [
        make("mail", queue="narrow", priority=9),
        make("mail", queue="narrow", priority=8),
        make("mail", queue="wide", priority=1),
        make("mail", queue="wide", priority=2),
        make("chore", queue="narrow", priority=7),
        make("chore", queue="wide"),
    ]
    store.queue.enqueue(jobs)
    leases = store.queue.claim("ann", claim_rules("mail", "chore"), ["narrow", "wide"], 9)
    assert ids(leases) == [jobs[0].id, jobs[3].id, jobs[5].id]


def test_higher_priority_comes_first_with_and_without_limits(store: Store) -> None:
    """Jobs of a limited kind and of others are claimed in one order."""
    limit(store, "kind", "chore", max_running=5)
    jobs = [make(kind, priority=priority) for priority in (3, 2, 1) for kind in ("chore", "mail")]
    store.queue.enqueue(jobs)
    leases = store.queue.claim("ann", claim_rules("mail", "chore"), ["default"], 4)
    assert sorted(lease.job.priority for lease in leases) == [2, 2, 3, 3]


def test_lower_limit_stops_claims_until_enough_jobs_have_ended(store: Store) -> None:
    limit(store, "kind", "mail", max_running=3)
    store.queue.enqueue(many(5))
    first, second, third = claim(store)
    limit(store, "kind", "mail", max_running=1)
    for lease in (first, second):
        finish(store, lease)
        assert claim(store) == []
    finish(store, third)
    assert len(claim(store)) == 1


def test_plain_kinds_are_claimed_plainly_beside_a_full_limited_kind(store: Store) -> None:
    """A kind without limits does not pay for those of another kind that cannot start."""
    limit(store, "kind", "chore", max_running=0)
    store.queue.enqueue([*many(2), *many(2, "chore")])
    claim_it = store.queue.claims._claim_limited  # type: ignore[attr-defined]
    store.queue.claims._claim_limited = lambda *args: pytest.fail("a claim with limits")  # type: ignore[attr-defined]
    if not hasattr(store, "file"):
        assert len(store.queue.claim("ann", claim_rules("mail", "chore"), ["default"], 9)) == 2
    store.queue.claims._claim_limited = claim_it  # type: ignore[attr-defined]


# ---------------------------------------------------------------- rates
def test_rate_spends_one_token_for_each_start(store: Store, clock: SettableClock) -> None:
    """A burst starts at once; after that, each start waits for its token."""
    limit(store, "queue", "default", rate="2/s", burst=3)
    store.queue.enqueue(many(10))
    assert (len(claim(store)), claim(store)) == (3, [])
    assert due_in(store) == pytest.approx(0.5)
    clock.advance(0.4)
    assert claim(store) == []
    clock.advance(0.1)
    assert (len(claim(store)), claim(store)) == (1, [])
    clock.advance(60)
    assert len(claim(store)) == 3


def test_rate_counts_retries(store: Store, clock: SettableClock) -> None:
    """Each attempt calls the external system that the rate protects."""
    limit(store, "kind", "mail", rate="1/10s")
    lease = started(store)
    settle(store, lease, Errored("busy", retryable=True))
    clock.advance(9.9)
    assert claim(store) == []
    clock.advance(0.2)
    assert len(claim(store)) == 1


def test_slower_rate_of_queue_and_kind_decides(store: Store, clock: SettableClock) -> None:
    limit(store, "queue", "default", rate="10/s", burst=10)
    limit(store, "kind", "mail", rate="1/s")
    store.queue.enqueue(many(20))
    assert len(claim(store)) == 1
    clock.advance(2)
    assert len(claim(store)) == 1
    assert due_in(store) == pytest.approx(1.0)


def test_change_of_the_rate_applies_at_once(store: Store, clock: SettableClock) -> None:
    limit(store, "queue", "default", rate="1/h")
    store.queue.enqueue(many(9))
    assert len(claim(store)) == 1
    limit(store, "queue", "default", rate="1/s")
    clock.advance(1)
    assert len(claim(store)) == 1
    limit(store, "queue", "default", rate=None)
    assert len(claim(store)) == 7


def test_clock_that_steps_back_starts_no_job_early(store: Store, clock: SettableClock) -> None:
    limit(store, "queue", "default", rate="1/s")
    store.queue.enqueue(many(3))
    assert len(claim(store)) == 1
    clock.advance(-30)
    store.queue.enqueue(many(1))
    assert claim(store) == []
    clock.advance(31)
    assert len(claim(store)) == 1


@pytest.mark.parametrize("scope", ["kind", "key"])
def test_clock_that_steps_back_stops_no_rate(store: Store, clock: SettableClock, scope: Scope) -> None:
    """From the step on, tokens grow again."""
    limit(store, scope, "mail", rate="1/s")
    key = "a" if scope == "key" else None
    store.queue.enqueue(many(2, concurrency_key=key))
    assert len(claim(store)) == 1
    clock.advance(-3600)
    store.queue.enqueue(many(9, concurrency_key=key))
    assert claim(store) == []
    for _ in range(5):
        clock.advance(1)
        assert len(claim(store)) == 1
    assert due_in(store) == pytest.approx(1.0)


@pytest.mark.parametrize("scope", ["queue", "key"])
def test_rate_counts_from_the_time_of_the_leases(
    store: Store, clock: SettableClock, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, a claim leases its jobs later than it reads the rate: nothing is saved up in between."""
    if hasattr(store, "file"):
        pytest.skip("A claim on SQLite has one time.")
    limit(store, scope, "default" if scope == "queue" else "mail", rate="1/s", burst=5)
    store.queue.enqueue(many(20, concurrency_key="a" if scope == "key" else None))
    lease = PostgresLimitedQueries.lease

    def lease_later(self: PostgresLimitedQueries, *given: Any) -> list[Lease]:
        clock.advance(2)
        return lease(self, *given)

    monkeypatch.setattr(PostgresLimitedQueries, "lease", lease_later)
    assert len(claim(store)) == 5
    monkeypatch.undo()
    assert claim(store) == []
    clock.advance(1)
    assert len(claim(store)) == 1


# ---------------------------------------------------------------- pauses
def test_paused_kind_starts_nothing(store: Store) -> None:
    """Its jobs wait, other kinds are claimed, and a resume makes them due."""
    store.queue.enqueue([*many(2), *many(1, "chore")])
    pause(store, "kind", "mail")
    leases = store.queue.claim("ann", claim_rules("mail", "chore"), ["default"], 9)
    assert [lease.job.kind for lease in leases] == ["chore"]
    assert due_in(store) is None
    resume(store, "kind", "mail")
    assert due_in(store) == 0.0
    assert len(claim(store)) == 2


def test_pause_keeps_the_limit(store: Store) -> None:
    limit(store, "queue", "default", max_running=1, rate="5/s")
    pause(store, "queue", "default")
    resume(store, "queue", "default")
    (seen,) = store.limits.all()
    assert (seen.limit, seen.paused_at) == (Limit(1, "5/s", 5), None)


def test_second_pause_and_second_resume_change_nothing(store: Store) -> None:
    """Nor does a reset of a limit that nobody has changed."""
    assert store.limits.pause("queue", "mail", by="operator:ann", reason="deploy")
    assert not store.limits.pause("queue", "mail", by="operator:bob", reason=None)
    (seen,) = store.limits.all()
    assert (seen.paused_by, seen.pause_reason) == ("operator:ann", "deploy")
    assert store.limits.resume("queue", "mail", by="operator:bob", reason="done")
    assert not store.limits.resume("queue", "mail", by="operator:bob", reason=None)
    assert not store.limits.reset("queue", "mail", by="operator:bob", reason=None)
    assert store.limits.all() == []
    assert [(each.event, each.actor, each.reason) for each in store.limits.operations()] == [
        ("resume", "operator:bob", "done"),
        ("pause", "operator:ann", "deploy"),
    ]


# ---------------------------------------------------------------- changes and their record
def test_each_change_is_an_operation(store: Store) -> None:
    """With who changed what; the newest first, in pages."""
    limit(store, "queue", "default", max_running=5, rate="10/s")
    limit(store, "queue", "default", max_running=None)
    limit(store, "kind", "mail", max_running=1)
    shown = [(each.scope, each.name, each.event, each.actor, each.detail) for each in store.limits.operations()]
    assert shown == [
        ("kind", "mail", "limit", "operator:olga", {"max_running": 1}),
        ("queue", "default", "limit", "operator:olga", {"max_running": None}),
        ("queue", "default", "limit", "operator:olga", {"max_running": 5, "rate": "10/s", "burst": 10.0}),
    ]
    first = store.limits.operations(limit=1)
    assert [each.scope for each in store.limits.operations(limit=5, after=first[0].id)] == ["queue", "queue"]
    assert [each.name for each in store.limits.operations(scope="kind")] == ["mail"]
    assert store.limits.operations(scope="kind", name="other") == []


@pytest.mark.parametrize("statement", ["UPDATE {operations} SET actor = 'me'", "DELETE FROM {operations}"])
def test_recorded_operations_never_change(store: Store, raw: Raw, statement: str) -> None:
    limit(store, "queue", "default", max_running=5)
    with pytest.raises(Exception, match="recorded operations never change"):
        raw(statement)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_running": -1},
        {"max_running": 1.5},
        {"max_running": True},
        {"rate": "fast"},
        {"rate": "0/s"},
        {"rate": "1/0s"},
        {"rate": "1/s", "burst": 0},
        {"burst": 3},
    ],
)
def test_wrong_limit_is_refused_and_changes_nothing(store: Store, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        limit(store, "queue", "default", **wrong)
    assert (store.limits.all(), store.limits.operations()) == ([], [])


def test_running_jobs_and_waits_are_shown(store: Store, clock: SettableClock) -> None:
    limit(store, "queue", "default", max_running=5, rate="1/10s")
    limit(store, "kind", "chore", max_running=5)
    started(store)
    clock.advance(4)
    queue, kind = sorted(store.limits.all(), key=lambda seen: seen.scope, reverse=True)
    assert (queue.running, queue.next_start) == (1, pytest.approx(6.0))
    assert (kind.running, kind.next_start) == (0, 0.0)


@pytest.mark.parametrize(
    ("text", "count", "seconds", "shown", "burst"),
    [
        ("10/s", 10, 1, "10/s", 10),
        ("1000/h", 1000, 3600, "1000/h", 1),
        ("5/30s", 5, 30, "5/30s", 1),
        (" 600 / m ", 600, 60, "600/m", 10),
        ("2.5/s", 2.5, 1, "2.5/s", 3),
        ("1/2d", 1, 172800, "1/2d", 1),
    ],
)
def test_rates_are_read_and_shown(text: str, count: float, seconds: float, shown: str, burst: float) -> None:
    rate = Rate.parse(text)
    assert (rate, str(rate), rate.default_burst) == (Rate(count, seconds), shown, burst)
    assert Rate.parse(str(rate)) == rate


def test_waiting_job_stays_where_it_is_while_a_limit_is_full(store: Store, raw: Raw) -> None:
    """A full limit costs no execution and no write of the job."""
    limit(store, "kind", "mail", max_running=0)
    job = stored(store)
    before = raw("SELECT updated_at, attempt FROM {jobs}")
    assert claim(store) == []
    assert raw("SELECT updated_at, attempt FROM {jobs}") == before
    assert store.inspect.executions(job.id) == []
