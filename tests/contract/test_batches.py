"""Batches: one bad row does not stop the others, no lock order deadlocks, and a move can be sent again."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event
from typing import Any

import pytest

from interlock.core.job import Job
from interlock.core.outcome import (
    Advanced,
    CancelRequested,
    Errored,
    FailedFinally,
    Handed,
    Held,
    Lost,
    Requeued,
    Returned,
    Started,
)
from interlock.core.transition import Move
from interlock.store.contract import Store
from interlock.store.types import Heartbeat, Lease
from tests.contract.kit import (
    again,
    check,
    claim,
    claimed,
    close,
    commit,
    decided,
    fail,
    finish,
    forged,
    make,
    many,
    settle,
    started,
    walked,
)
from tests.kit import Place, Raw, SettableClock


def batch(store: Store, n: int = 250, kind: str = "mail") -> list[Lease]:
    store.queue.enqueue(many(n, kind))
    leases = claim(store, kind, n)
    assert len(leases) == n
    return leases


# ---------------------------------------------------------------- protocol 9: one bad row
def illegal(store: Store, lease: Lease) -> Move:
    return forged(lease, "EXPIRED", "expire")


def stale(store: Store, lease: Lease) -> Move:
    fail(store, lease)
    return decided(lease, Returned("1", boundary=False))


def no_json(store: Store, lease: Lease) -> Move:
    return decided(lease, Returned('{"half":', boundary=False))


def surrogate(store: Store, lease: Lease) -> Move:
    return replace(decided(lease, FailedFinally("x")), error="half \ud800 a pair")


def too_many_tries(store: Store, lease: Lease) -> Move:
    return replace(decided(lease, Errored("busy", retryable=True)), tries_left=99)


def unknown_status(store: Store, lease: Lease) -> Move:
    return replace(decided(lease, FailedFinally("x")), to_status="RESTING")  # type: ignore[arg-type]


def never_was(store: Store, lease: Lease) -> Move:
    return replace(decided(lease, FailedFinally("x")), job_id=many(1)[0].id)


def no_id(store: Store, lease: Lease) -> Move:
    return replace(decided(lease, FailedFinally("x")), job_id="nonsense")


@pytest.mark.parametrize("bad", [illegal, stale, no_json, surrogate, too_many_tries, unknown_status, never_was, no_id])
@pytest.mark.parametrize("position", [0, 137, 249])
def test_one_bad_row_does_not_stop_its_batch(
    store: Store, raw: Raw, bad: Callable[[Store, Lease], Move], position: int
) -> None:
    """249 good rows are written in a batch with each kind of bad row, which is named and changes nothing."""
    leases = batch(store)
    victim = leases[position]
    wrong = bad(store, victim)
    moves = [decided(lease, Returned('"good"', boundary=False)) for lease in leases]
    moves[position] = wrong
    before = (
        raw("SELECT * FROM {jobs} WHERE id = :id", id=victim.job.id),
        store.inspect.executions(victim.job.id),
        store.inspect.history(victim.job.id),
    )
    (refusal,) = store.transitions.move(moves)
    assert refusal.job_id == wrong.job_id
    assert store.inspect.counts()["standard"]["SUCCEEDED"] == 249
    assert (
        raw("SELECT * FROM {jobs} WHERE id = :id", id=victim.job.id),
        store.inspect.executions(victim.job.id),
        store.inspect.history(victim.job.id),
    ) == before


def test_refusal_of_a_bad_row_has_the_databases_error(store: Store) -> None:
    """The refusal has the database's error and the stored row; a stale move has no error."""
    leases = batch(store, 10)
    moves = [decided(lease, FailedFinally("x")) for lease in leases]
    moves[3] = illegal(store, leases[3])
    moves[7] = stale(store, leases[7])
    refusals = {refusal.job_id: refusal for refusal in store.transitions.move(moves)}
    assert set(refusals) == {leases[3].job.id, leases[7].job.id}
    bad, old = refusals[leases[3].job.id], refusals[leases[7].job.id]
    assert "interlock refuses" in (bad.error or "")
    assert (bad.attempt, bad.holder, bad.status, bad.state) == (1, 1, "IN_PROGRESS", "RUNNING")
    assert (old.error, old.status) == (None, "ABORTED")


def test_job_with_an_unstorable_result_can_still_be_failed(store: Store) -> None:
    """The same holder reports a failure that says that the result could not be stored."""
    lease = claimed(store)
    assert store.transitions.move([no_json(store, lease)])[0].error
    assert settle(store, lease, FailedFinally("unstorable: the result is no JSON")).job.state == "FAILED"


def test_all_bad_rows_of_a_batch_are_named(store: Store) -> None:
    """A batch may have any number of bad rows."""
    leases = batch(store, 100)
    moves = [
        illegal(store, lease) if n % 7 == 0 else decided(lease, Returned("1", boundary=False))
        for n, lease in enumerate(leases)
    ]
    refusals = store.transitions.move(moves)
    assert {refusal.job_id for refusal in refusals} == {lease.job.id for lease in leases[::7]}
    assert all(refusal.error for refusal in refusals)
    assert store.inspect.counts() == {"standard": {"SUCCEEDED": 85, "RUNNING": 15}}


def test_moves_with_one_and_two_transitions_share_a_batch(store: Store) -> None:
    """The batch also has one move that the database refuses at its second transition."""
    leases = batch(store, 20, "paint")
    moves = [
        decided(lease, FailedFinally("broken") if n % 2 else Returned("1", boundary=False))
        for n, lease in enumerate(leases)
    ]
    moves[5] = replace(moves[5], phase="succeeded")
    (refusal,) = store.transitions.move(moves)
    assert (refusal.job_id, refusal.state, refusal.status) == (leases[5].job.id, "running", "IN_PROGRESS")
    assert store.inspect.counts() == {"image": {"completed": 10, "dead_letter": 9, "running": 1}}
    for lease in leases:
        check(store, lease.job.id)


def test_job_named_twice_in_a_batch_is_refused(store: Store, raw: Raw) -> None:
    """Protocol 8: the call is refused before anything is written."""
    leases = batch(store, 10)
    before = raw.dump()
    with pytest.raises(ValueError, match="names a job twice"):
        store.transitions.move([decided(lease, FailedFinally("x")) for lease in [*leases, leases[4]]])
    assert raw.dump() == before


def test_forged_audit_entry_keeps_only_its_job_from_being_claimed(
    store: Store, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """The claim leaves out a job whose next transition cannot be written, and claims the others."""
    jobs = [each.id for each in store.queue.enqueue(many(50))]
    raw.copy("audit", "job_id = :id AND version = 0", {"version": "1"}, id=jobs[17])
    leases = claim(store, limit=100)
    assert {lease.job.id for lease in leases} == set(jobs) - {jobs[17]}
    assert store.inspect.get(jobs[17]).state == "PENDING"
    assert store.inspect.executions(jobs[17]) == []
    assert jobs[17] in caplog.text
    assert claim(store) == []
    store.queue.enqueue(many(1))
    assert len(claim(store, limit=1)) == 1


def test_forged_audit_entry_stops_only_its_own_move(store: Store, raw: Raw) -> None:
    """A move is refused if the audit already has its transition; the other moves are stored."""
    leases = batch(store, 20)
    raw.copy("audit", "job_id = :id AND version = 1", {"version": "2"}, id=leases[3].job.id)
    (refusal,) = store.transitions.move([decided(lease, Returned("1", boundary=False)) for lease in leases])
    assert refusal.job_id == leases[3].job.id
    assert refusal.error
    assert store.inspect.counts() == {"standard": {"SUCCEEDED": 19, "RUNNING": 1}}


# ---------------------------------------------------------------- protocol 7: no lock order deadlocks
def test_moves_and_renewals_in_opposite_orders_do_not_deadlock(live: Store, place: Place) -> None:
    """Concurrent moves and renewals of the same rows in opposite orders wait for each other, and none fails."""
    other = place.open(real_time=True)
    leases = batch(live, 200)
    barrier = Barrier(4)

    def advance(store: Store, order: list[Lease]) -> None:
        barrier.wait()
        for _ in range(10):
            assert store.transitions.move([decided(lease, Advanced("RUNNING")) for lease in order]) == []

    def renew(store: Store, order: list[Lease]) -> None:
        barrier.wait()
        for _ in range(10):
            assert store.leases.renew([Heartbeat(lease.fence, 60.0) for lease in order]).lost == []

    with ThreadPoolExecutor(4) as pool:
        tasks = [
            pool.submit(advance, live, leases),
            pool.submit(advance, other, leases[::-1]),
            pool.submit(renew, live, leases[::-1]),
            pool.submit(renew, other, leases),
        ]
        for task in tasks:
            task.result(timeout=60)


def test_bulk_enqueues_of_the_same_keys_in_opposite_orders_do_not_deadlock(live: Store, place: Place) -> None:
    """Each caller gets an answer, and each key gets one job."""
    other = place.open(real_time=True)
    keys = [f"k{n:03}" for n in range(200)]
    barrier = Barrier(2)

    def enqueue(store: Store, order: list[str]) -> list[str]:
        barrier.wait()
        return [each.id for each in store.queue.enqueue([make(idempotency_key=key) for key in order])]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(enqueue, live, keys), pool.submit(enqueue, other, keys[::-1])
        assert first.result(timeout=60) == second.result(timeout=60)[::-1]


# ---------------------------------------------------------------- protocol 10: an ambiguous reply
OUTCOMES = [
    Returned('"v"', boundary=False),
    Returned('"v"', boundary=True),
    Errored("busy", retryable=True),
    FailedFinally("x"),
    Lost(),
    Requeued("stopping"),
    CancelRequested(None, "olga"),
    Held("look"),
    Handed("ext", 5.0),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_move_sent_again_counts_as_done(store: Store, raw: Raw, outcome: Any) -> None:
    """The second call is not refused, and changes nothing but a heartbeat."""
    leases = batch(store, 20)
    moves = [decided(lease, outcome) for lease in leases]
    assert store.transitions.move(moves[:10]) == []
    before = {
        lease.job.id: (store.inspect.get(lease.job.id), store.inspect.history(lease.job.id)) for lease in leases[:10]
    }
    assert store.transitions.move(moves) == []
    assert {
        lease.job.id: (store.inspect.get(lease.job.id), store.inspect.history(lease.job.id)) for lease in leases[:10]
    } == before
    assert store.transitions.move(moves) == []
    for lease in leases:
        check(store, lease.job.id)


@pytest.mark.parametrize(
    "steps", [[Started()], [Started(), Advanced("STREAMING")], [Started(), FailedFinally("x")]], ids=str
)
def test_stage_sent_again_counts_as_done(store: Store, steps: list[Any]) -> None:
    """A start or stage is not recorded twice."""
    lease = claimed(store, "deliver")
    for outcome in steps:
        move = decided(lease, outcome)
        lease = settle(store, lease, outcome)
    arrows = walked(store, lease.job.id)
    assert store.transitions.move([move]) == []
    assert walked(store, lease.job.id) == arrows
    check(store, lease.job.id)


def test_move_with_two_transitions_sent_again_counts_as_done(store: Store) -> None:
    """A failure that is buried at once is buried only once."""
    lease = claimed(store, "paint")
    move = decided(lease, FailedFinally("broken"))
    assert store.transitions.move([move]) == []
    assert store.transitions.move([move]) == []
    assert len(walked(store, lease.job.id)) == 3


def test_return_sent_again_counts_as_done_after_another_claim(store: Store, raw: Raw) -> None:
    """The returned job has been claimed by another worker; the repeated move is not refused and changes nothing."""
    lease = claimed(store)
    move = decided(lease, Requeued("stopping"))
    assert store.transitions.move([move]) == []
    claim(store, by="bob")
    before = raw.dump()
    assert store.transitions.move([move]) == []
    assert raw.dump() == before


def test_another_outcome_from_the_same_holder_is_refused(store: Store) -> None:
    """Only the same move counts as done; a different outcome is refused."""
    lease = claimed(store)
    finish(store, lease)
    assert len(store.transitions.move([decided(lease, FailedFinally("x"))])) == 1
    assert len(store.transitions.move([decided(lease, Returned('"v"', boundary=True))])) == 1


# ---------------------------------------------------------------- protocol 6: renewal during a move
def test_renewal_during_a_commit_reports_no_lost_lease(live: Store, place: Place) -> None:
    """A renewal during the commit function of one job loses neither that job nor the others."""
    other = place.open(real_time=True)
    leases = batch(live, 20)
    inside, leave = Event(), Event()

    def body(tx: object, job: Job) -> None:
        inside.set()
        leave.wait(2)

    def renew() -> Any:
        inside.wait(10)
        # SQLite has one writer, so the renewal waits; PostgreSQL locks rows, so the renewal reports the row as busy.
        pool.submit(leave.wait, 1).add_done_callback(lambda _: leave.set())
        return other.leases.renew([Heartbeat(lease.fence, 60.0) for lease in leases])

    with ThreadPoolExecutor(3) as pool:
        asked = pool.submit(renew)
        assert live.transitions.commit(decided(leases[7], Returned("1", boundary=True)), body) is None
        renewal = asked.result(timeout=30)
    assert renewal.lost == []
    assert len(renewal.renewed) + len(renewal.busy) == 20
    assert set(renewal.busy) <= {leases[7].fence}
    assert other.leases.renew([Heartbeat(lease.fence, 60.0) for lease in leases]).busy == []


def test_renewal_after_the_last_move_does_not_affect_the_job(store: Store, clock: SettableClock) -> None:
    """A heartbeat that arrives after the job's last move is reported lost, and the job is done."""
    lease = commit(store, started(store))
    done = close(store, lease)
    assert store.leases.renew([Heartbeat(done.fence, 30.0)]).lost == [lease.fence]
    assert again(store, lease).job.state == "SUCCEEDED"
