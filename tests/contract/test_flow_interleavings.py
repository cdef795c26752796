"""Interleavings of redrives and the resolution of dependencies on PostgreSQL: each test forces one."""

import threading
from collections.abc import Iterator, Sequence

import pytest

from interlock.core.blocked_jobs import OnFailed
from interlock.core.outcome import FailedFinally, Returned
from interlock.store import OpenStore
from interlock.store.dependents import EndedDependency
from interlock.store.postgres import flow as postgres_flow
from interlock.store.postgres.flow import PostgresFlowQueries
from interlock.store.types import NewJob
from tests.contract.flow_kit import batch, cancel_requested, events, get, node, put, run, run_all
from tests.contract.kit import CONTENTS, claim, decided, finish, make
from tests.kit import Place, SettableClock, postgres_place


@pytest.fixture
def place(postgres_url: str) -> Iterator[Place]:
    place = postgres_place(postgres_url)
    yield place
    place.close()


@pytest.fixture
def store(place: Place) -> OpenStore:
    return place.open_with(CONTENTS)


@pytest.fixture
def other_store(place: Place, store: OpenStore) -> OpenStore:
    """Another process."""
    return place.open()


@pytest.fixture
def clock(place: Place) -> SettableClock:
    return place.clock


def fail_unseen(store: OpenStore, bad: NewJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """End all waiting jobs, this one with a failure, in a process that dies before it looks at their dependents."""
    leases = claim(store)
    with monkeypatch.context() as patch:
        patch.setattr(store.transitions._flow, "resolve_ended", lambda: None)  # type: ignore[attr-defined]
        for lease in leases:
            outcome = FailedFinally("bad") if lease.job.id == bad.id else Returned('"v"', boundary=False)
            assert store.transitions.move([decided(lease, outcome)]) == []


def redrive(store: OpenStore, job: NewJob, conn: object | None = None) -> NewJob:
    new = make(redrive_of=job.id, root=job.id, inherits=True, batch=job.batch)
    (answer,) = store.bulk.redrive([new], again=False, reason=None, conn=conn)
    assert answer.result == "stored"
    return new


CASES: list[tuple[bool, bool, OnFailed]] = [
    (in_batch, arrives_later, on_failed)
    for in_batch in (True, False)
    for arrives_later in (True, False)
    for on_failed in ("cancel", "hold")
]
"""Whether the dependent waits for the batch or the job, whether it is enqueued during the redrive, and its policy."""


@pytest.mark.parametrize("case", CASES)
def test_no_failure_is_stored_while_it_is_being_redriven(
    store: OpenStore,
    other_store: OpenStore,
    clock: SettableClock,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[bool, bool, OnFailed],
) -> None:
    """The transaction of the redrive is open while another process looks at the dependents."""
    in_batch, arrives_later, on_failed = case
    parts = batch("parts")
    bad = node(batch=parts.id if in_batch else None)
    last = node([parts if in_batch else bad], on_failed)
    put(store, [bad] if arrives_later else [bad, last], parts)
    fail_unseen(store, bad, monkeypatch)
    with store.transaction() as tx:
        new = redrive(store, bad, tx)
        if arrives_later:
            other_store.queue.enqueue([last])
        other_store.flow.resolve()
        assert other_store.flow.count_needs(last.id) == (1, 1)
    clock.advance(2)
    assert cancel_requested(store) == []
    assert run_all(store) == [new.id, last.id]
    assert not {"hold", "cancel_requested"} & {event for event, _ in events(store, last)}


@pytest.mark.parametrize("arrives_later", [True, False])
def test_redrive_waits_for_the_outcome_that_is_being_stored(
    store: OpenStore,
    other_store: OpenStore,
    clock: SettableClock,
    monkeypatch: pytest.MonkeyPatch,
    arrives_later: bool,
) -> None:
    """It then re-opens the dependency."""
    parts = batch("parts")
    bad = node(batch=parts.id)
    last = node([parts], "hold")
    put(store, [bad] if arrives_later else [bad, last], parts)
    fail_unseen(store, bad, monkeypatch)
    if arrives_later:
        store.queue.enqueue([last])
    redriven: list[NewJob] = []
    redriving = threading.Thread(target=lambda: redriven.append(redrive(other_store, bad)))
    mark = PostgresFlowQueries.mark

    def marking(self: PostgresFlowQueries, *given: object) -> None:
        redriving.start()
        redriving.join(0.5)
        assert redriving.is_alive()
        mark(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(PostgresFlowQueries, "mark", marking)
        store.flow.resolve()
    redriving.join(10)
    clock.advance(2)
    assert run_all(store) == [redriven[0].id, last.id]


def test_redrive_between_the_two_readings_of_an_outcome_counts(
    store: OpenStore, other_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure that was read before the locks were taken is not stored."""
    parts = batch("parts")
    bad = node(batch=parts.id)
    last = node([parts])
    put(store, [bad, last], parts)
    fail_unseen(store, bad, monkeypatch)
    redriven: list[NewJob] = []
    lock = PostgresFlowQueries.lock_edges

    def locking(self: PostgresFlowQueries, edges: Sequence[EndedDependency]) -> list[str]:
        redriven.append(redrive(other_store, bad))
        return lock(self, edges)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresFlowQueries, "lock_edges", locking)
        store.flow.resolve()
    assert cancel_requested(store) == []
    assert run_all(store) == [redriven[0].id, last.id]


def failed_and_undecided(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> tuple[NewJob, NewJob]:
    """Return a failed job and one that waits for it: the outcome is stored, and nothing was decided."""
    bad = node()
    last = node([bad], "hold")
    put(store, [bad, last])
    fail_unseen(store, bad, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(postgres_flow, "ROUNDS", 1)
        store.flow.resolve()
    assert (store.flow.count_needs(last.id), get(store, last).held_at) == ((0, 1), None)
    return bad, last


def test_job_that_is_being_reopened_is_not_waited_for(
    store: OpenStore, other_store: OpenStore, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decided later what happens to it."""
    bad, last = failed_and_undecided(store, monkeypatch)
    deciding = threading.Thread(target=other_store.flow.resolve)
    with store.transaction() as tx:
        new = redrive(store, bad, tx)
        deciding.start()
        deciding.join(3)
        waited = deciding.is_alive()
    deciding.join()
    assert not waited
    clock.advance(2)
    assert run_all(store) == [new.id, last.id]


def test_job_that_was_reopened_before_it_was_locked_is_not_held(
    store: OpenStore, other_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, last = failed_and_undecided(store, monkeypatch)
    redriven: list[NewJob] = []
    lock = PostgresFlowQueries.lock

    def locking(self: PostgresFlowQueries, ids: Sequence[str]) -> list[str]:
        if not redriven:
            redriven.append(redrive(other_store, bad))
        return lock(self, ids)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresFlowQueries, "lock", locking)
        store.flow.resolve()
    assert get(store, last).held_at is None
    assert run_all(store) == [redriven[0].id, last.id]


def test_two_processes_that_store_the_same_outcome_let_the_job_run_at_once(
    store: OpenStore, other_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one cannot decide while the second one has its lock, so the second one does."""
    parts = batch("parts")
    first = node(batch=parts.id)
    last = node([parts])
    put(store, [first, last], parts)
    fail_unseen(store, last, monkeypatch)
    real = PostgresFlowQueries.mark
    entered: list[bool] = []

    def marking(self: PostgresFlowQueries, *given: object) -> None:
        if not entered:
            entered.append(True)
            raw_check(store, first)
            other_store.flow.resolve()
            assert get(store, last).blocked_at is not None
        real(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(PostgresFlowQueries, "mark", marking)
        store.flow.resolve()
    assert get(store, last).blocked_at is None


def raw_check(store: OpenStore, job: NewJob) -> None:
    """Add a check, as the end of another job of the batch would do."""
    with store.session.pool.begin() as conn:  # type: ignore[attr-defined]
        conn.execute(
            f"INSERT INTO {store.session.schema}.flow_checks VALUES ('epoch', %s, 'ended')",  # type: ignore[attr-defined]
            (job.id,),
        )


def test_late_check_of_a_redriven_job_fails_nothing(
    store: OpenStore, other_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job has begun to wait for it during the redrive, and waits for the new one at once."""
    bad = node()
    last = node([bad])
    put(store, [bad])
    fail_unseen(store, bad, monkeypatch)
    with store.transaction() as tx:
        new = redrive(store, bad, tx)
        other_store.queue.enqueue([last])
        other_store.flow.resolve()
    raw_check(store, bad)
    store.flow.resolve()
    assert [(need.needs, need.outcome) for need in store.flow.needs(last.id, 5)] == [(new.id, None)]
    assert run_all(store) == [new.id, last.id]


def test_locked_job_is_checked_again(store: OpenStore, other_store: OpenStore, clock: SettableClock) -> None:
    """Its new dependent does not lose the end of a job that is being changed while it arrives."""
    first = node()
    put(store, [first])
    (lease,) = claim(store)
    last = node([first])
    with store.session.pool.begin() as conn:  # type: ignore[attr-defined]
        conn.execute(f"SELECT FROM {store.session.schema}.jobs WHERE id = %s FOR UPDATE", (first.id,))  # type: ignore[attr-defined]
        other_store.queue.enqueue([last])
        other_store.flow.resolve()
    clock.advance(2)
    other_store.flow.resolve()
    finish(store, lease)
    assert run(store) == [last.id]
