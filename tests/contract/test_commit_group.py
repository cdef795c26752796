"""commit_group: moves of several jobs in one transaction, with their functions."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from interlock.core.job import Job
from interlock.core.outcome import Returned
from interlock.core.transition import Move
from interlock.errors import InterlockError
from interlock.store.commit_group import AbandonGroup
from interlock.store.contract import Store
from interlock.store.types import Fence, GroupCommit, Heartbeat, Lease
from tests.contract.kit import check, claim, decided, lose, make, many
from tests.kit import Place, PostgresPlace, Raw, SettableClock

NONE: frozenset[str] = frozenset()


@pytest.fixture(autouse=True)
def effects(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's table. No group ends early because the machine is slow."""
    raw("CREATE TABLE {effects} (job text, what text)")
    monkeypatch.setattr("interlock.store.commit_group.LONGEST", 60.0)


def leased(store: Store, n: int) -> list[Lease]:
    """Return n claimed jobs, in the order of their ids."""
    store.queue.enqueue(many(n))
    return sorted(claim(store), key=lambda lease: lease.job.id)


def moves_of(leases: Sequence[Lease], *, boundary: bool = False) -> list[Move]:
    return [decided(lease, Returned(f'"{n}"', boundary=boundary)) for n, lease in enumerate(leases)]


class GroupBody:
    """A caller's function that writes one row for each job, and raises for some."""

    def __init__(self, raw: Raw, *bad: Job) -> None:
        self.raw, self.bad, self.calls = raw, {job.id for job in bad}, list[list[str]]()

    def __call__(self, tx: Any, jobs: Sequence[Job]) -> None:
        self.calls.append([job.id for job in jobs])
        for job in jobs:
            tx.execute(self.raw.words(f"INSERT INTO {{effects}} VALUES ('{job.id}', '{job.state}')"))
        if not self.bad.isdisjoint(job.id for job in jobs):
            raise PermissionError("no")

    @property
    def effects(self) -> list[str]:
        return sorted(str(row[0]) for row in self.raw("SELECT job FROM {effects}"))


def ids(leases: Sequence[Lease]) -> list[str]:
    return [lease.job.id for lease in leases]


def states(store: Store, leases: Sequence[Lease]) -> list[str]:
    return [store.inspect.get(id).state for id in ids(leases)]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("boundary", [False, True])
def test_functions_and_moves_of_a_group_are_stored_together(
    store: Store, raw: Raw, together: bool, boundary: bool
) -> None:
    """Each function gets its job as it is before the move; `together`, one call gets all jobs."""
    leases, body = leased(store, 4), GroupBody(raw)
    found = store.transitions.commit_group(moves_of(leases, boundary=boundary), body, together=together)
    assert found == GroupCommit(frozenset(ids(leases)), NONE)
    assert body.calls == ([ids(leases)] if together else [[id] for id in ids(leases)])
    assert body.effects == ids(leases)
    for lease in leases:
        assert store.inspect.executions(lease.job.id)[0].status == ("COMMITTED" if boundary else "DONE")
        check(store, lease.job.id)


def test_functions_of_a_group_share_one_transaction(store: Store, raw: Raw) -> None:
    """A function sees what the functions before it have written."""
    leases, seen = leased(store, 3), list[int]()
    write = GroupBody(raw)

    def body(tx: Any, jobs: Sequence[Job]) -> None:
        seen.append(tx.execute(raw.words("SELECT count(*) FROM {effects}")).fetchone()[0])
        write(tx, jobs)

    store.transitions.commit_group(moves_of(leases), body)
    assert seen == [0, 1, 2]


def test_function_that_raises_is_left_out_of_its_group(store: Store, raw: Raw) -> None:
    """Its writes are rolled back and its job is not moved; the other jobs are stored."""
    leases = leased(store, 5)
    body = GroupBody(raw, leases[0].job, leases[3].job)
    good = [leases[n] for n in (1, 2, 4)]
    assert store.transitions.commit_group(moves_of(leases), body) == GroupCommit(frozenset(ids(good)), NONE)
    assert body.effects == ids(good)
    assert states(store, leases) == ["RUNNING", "SUCCEEDED", "SUCCEEDED", "RUNNING", "SUCCEEDED"]


def test_call_for_all_jobs_that_raises_stores_none_of_them(store: Store, raw: Raw) -> None:
    leases = leased(store, 3)
    before = raw.dump()
    body = GroupBody(raw, leases[1].job)
    assert store.transitions.commit_group(moves_of(leases), body, together=True) == GroupCommit(NONE, NONE)
    assert (len(body.calls), body.effects, raw.dump()) == (1, [], before)


@pytest.mark.parametrize("together", [False, True])
def test_stale_holder_in_a_group_loses_only_its_own_job(
    store: Store, other: Store, raw: Raw, clock: SettableClock, together: bool
) -> None:
    """The fence of each job is checked under its lock. The function is not called for a stale one."""
    (stale,) = leased(store, 1)
    clock.advance(31)
    lose(other)
    leases, body = leased(store, 3), GroupBody(raw)
    good = [lease for lease in leases if lease.job.id != stale.job.id][:2]
    found = store.transitions.commit_group(moves_of([stale, *good]), body, together=together)
    assert (found, body.effects) == (GroupCommit(frozenset(ids(good)), NONE), ids(good))


def test_group_leaves_out_a_job_that_another_worker_adopted(
    store: Store, other: Store, raw: Raw, clock: SettableClock
) -> None:
    """Only the holder differs. The job is stored for its new holder."""
    leases, body = leased(store, 3), GroupBody(raw)
    assert len(store.leases.renew([Heartbeat(Fence(id, 1, 1), 100.0) for id in ids(leases[1:])]).renewed) == 2
    clock.advance(31)
    (adopted,) = other.leases.adopt("bob", ["mail"], 30.0, 3)
    found = store.transitions.commit_group(moves_of(leases), body)
    assert (found.stored, body.effects) == (set(ids(leases[1:])), ids(leases[1:]))
    assert other.transitions.commit_group(moves_of([adopted]), body).stored == {leases[0].job.id}
    assert body.effects == ids(leases)


def test_group_of_stale_holders_calls_no_function(store: Store, raw: Raw, clock: SettableClock) -> None:
    leases, body = leased(store, 2), GroupBody(raw)
    clock.advance(31)
    lose(store)
    before = raw.dump()
    assert store.transitions.commit_group(moves_of(leases), body, together=True) == GroupCommit(NONE, NONE)
    assert (body.calls, raw.dump()) == ([], before)


def test_refused_transition_stores_nothing_of_its_group(store: Store, raw: Raw) -> None:
    """The database refuses a transition that no lifecycle allows, so the group is rolled back."""
    leases, body = leased(store, 3), GroupBody(raw)
    before = raw.dump()
    moves = moves_of(leases)
    moves[1] = replace(moves[1], state="EXPIRED")
    with pytest.raises(Exception, match="interlock refuses"):
        store.transitions.commit_group(moves, body)
    assert (body.effects, raw.dump()) == ([], before)


def test_functions_of_a_group_run_without_the_planner_settings_of_its_lock(
    store: Store, raw: Raw, place: Place
) -> None:
    """Protocol 18. SQLite has no such settings."""
    if not isinstance(place, PostgresPlace):
        return
    leases, seen = leased(store, 2), list[tuple[str, ...]]()
    names = ("enable_seqscan", "enable_hashjoin", "enable_material", "plan_cache_mode", "lock_timeout")

    def body(tx: Any, jobs: Sequence[Job]) -> None:
        seen.append(tuple(tx.execute(f"SHOW {name}").fetchone()[0] for name in names))

    store.transitions.commit_group(moves_of(leases), body)
    assert seen == [("on", "on", "on", "auto", "10s")] * 2


# ---------------------------------------------------------------- slow functions
def test_slow_function_is_left_out_of_its_group(store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the function that took longer than the timeout is rolled back."""
    leases, body, spent = leased(store, 3), GroupBody(raw), [0.0]
    monkeypatch.setattr("interlock.store.commit_boundary.monotonic", lambda: spent[0])

    def slow(tx: Any, jobs: Sequence[Job]) -> None:
        body(tx, jobs)
        spent[0] += 6 if jobs[0].id == leases[1].job.id else 4

    found = store.transitions.commit_group(moves_of(leases), slow, timeout=5)
    assert (found.stored, body.effects) == ({leases[0].job.id, leases[2].job.id}, [leases[0].job.id, leases[2].job.id])


def test_slow_group_stores_the_jobs_whose_functions_ran(
    store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other jobs are late, and their functions are not called."""
    leases, body = leased(store, 5), GroupBody(raw)
    times = count(step=24)
    monkeypatch.setattr("interlock.store.commit_group.monotonic", lambda: next(times))
    found = store.transitions.commit_group(moves_of(leases), body)
    assert found == GroupCommit(frozenset(ids(leases[:2])), frozenset(ids(leases[2:])))
    assert body.effects == ids(leases[:2])
    assert states(store, leases) == ["SUCCEEDED"] * 2 + ["RUNNING"] * 3


def test_group_whose_session_the_server_ends_stores_nothing(store: Store, raw: Raw, place: Place) -> None:
    """A function hung: PostgreSQL ended the transaction. SQLite has no server."""
    if not isinstance(place, PostgresPlace):
        return
    leases, body = leased(store, 3), GroupBody(raw)

    def hanging(tx: Any, jobs: Sequence[Job]) -> None:
        body(tx, jobs)
        (pid,) = tx.execute("SELECT pg_backend_pid()").fetchone()
        while jobs[0].id == leases[1].job.id and raw("SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=pid):
            pass

    with pytest.raises(InterlockError):
        store.transitions.commit_group(moves_of(leases), hanging, timeout=0.2)
    assert (body.effects, states(store, leases)) == ([], ["RUNNING"] * 3)


def test_error_at_commit_stores_nothing_of_its_group(store: Store, raw: Raw, place: Place) -> None:
    """A deferred constraint raises such an error."""
    raw("CREATE TABLE {other} (id text PRIMARY KEY)")
    raw("CREATE TABLE {late} (job text REFERENCES {other} (id) DEFERRABLE INITIALLY DEFERRED)")
    leases, body = leased(store, 3), GroupBody(raw)
    before = raw.dump()

    def deferring(tx: Any, jobs: Sequence[Job]) -> None:
        body(tx, jobs)
        if jobs[0].id == leases[1].job.id:
            tx.execute(raw.words("INSERT INTO {late} VALUES ('none')"))

    with pytest.raises(Exception, match=r"foreign key constraint|FOREIGN KEY constraint"):
        store.transitions.commit_group(moves_of(leases), deferring)
    assert (body.effects, raw.dump()) == ([], before)


def test_abandoned_group_stores_nothing(store: Store, raw: Raw) -> None:
    leases, body = leased(store, 3), GroupBody(raw)
    before = raw.dump()

    def abandoning(tx: Any, jobs: Sequence[Job]) -> None:
        body(tx, jobs)
        if len(body.calls) == 2:
            raise AbandonGroup

    with pytest.raises(AbandonGroup):
        store.transitions.commit_group(moves_of(leases), abandoning)
    assert (len(body.calls), body.effects, raw.dump()) == (2, [], before)


# ---------------------------------------------------------------- several groups
def test_groups_that_list_the_same_jobs_in_another_order_do_not_deadlock(store: Store, other: Store, raw: Raw) -> None:
    """Locks are taken in the order of the job ids. One of the groups stores each job."""
    leases = leased(store, 20)
    moves, body = moves_of(leases), GroupBody(raw)
    stored: list[str] = []
    both = threading.Barrier(2)

    def go(store: Store, moves: Sequence[Move]) -> None:
        both.wait()
        stored.extend(store.transitions.commit_group(moves, body).stored)

    threads = [
        threading.Thread(target=go, args=(store, moves)),
        threading.Thread(target=go, args=(other, moves[::-1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stored) == body.effects == ids(leases)


def test_job_enqueued_in_a_group_is_stored_with_it(store: Store, raw: Raw) -> None:
    """Only an error of its own function rolls it back."""
    leases = leased(store, 3)

    def body(tx: Any, jobs: Sequence[Job]) -> None:
        store.queue.enqueue([make("chore")], conn=tx)
        if jobs[0].id == leases[1].job.id:
            raise PermissionError

    store.transitions.commit_group(moves_of(leases), body)
    assert len(claim(store, "chore")) == 2
