"""Dependencies: a job waits until the jobs and batches that it needs have ended."""

import pytest

from interlock.core.outcome import Errored, FailedFinally, Lost, Returned
from interlock.errors import NotFound
from interlock.operate.verify import verify
from interlock.store.contract import Store
from tests.contract.flow_kit import batch, cancel_requested, events, get, node, put, run, run_all
from tests.contract.kit import check, claim, claim_rules, decided, finish, limit, settle, started, stored, taken
from tests.kit import Place, Raw, SettableClock


# ---------------------------------------------------------------- waiting
def test_job_starts_when_all_that_it_needs_have_ended(store: Store) -> None:
    first, second = node(), node()
    last = node([first, second])
    put(store, [first, second, last])
    assert get(store, last).blocked_at is not None
    assert sorted(run(store)) == sorted([first.id, second.id])
    assert events(store, last) == [("unblock", "its 2 dependencies have ended")]
    assert run(store) == [last.id]
    assert run(store) == []
    check(store, last.id)


def test_blocked_job_is_neither_claimed_nor_due(store: Store, clock: SettableClock) -> None:
    first = node()
    last = node([first], priority=9)
    put(store, [first, last])
    (lease,) = claim(store)
    assert (claim(store), store.queue.due_in(claim_rules("mail"), ["default"])) == ([], None)
    clock.advance(3600)
    settle(store, lease, Errored("x", retryable=True))
    assert get(store, last).blocked_at is not None


def test_chain_runs_in_order(store: Store) -> None:
    links = [node()]
    for _ in range(9):
        links.append(node([links[-1]]))
    put(store, list(reversed(links)))
    assert run_all(store) == [link.id for link in links]


def test_blocked_job_keeps_its_delay(store: Store, clock: SettableClock) -> None:
    """It runs when its dependencies have ended and its delay is over."""
    first = node()
    last = node([first], delay=60)
    put(store, [first, last])
    run(store)
    assert run(store) == []
    clock.advance(60)
    assert run(store) == [last.id]


def test_unblocked_job_takes_its_turn_from_then_on(store: Store, clock: SettableClock) -> None:
    """It does not overtake jobs that have been due for longer."""
    first = node()
    last = node([first])
    put(store, [first, last])
    (lease,) = claim(store)
    clock.advance(10)
    other = stored(store)
    clock.advance(10)
    finish(store, lease)
    assert [each.job.id for each in claim(store)] == [other.id, last.id]


@pytest.mark.parametrize("when", ["waiting", "running", "ended"])
def test_job_can_wait_for_one_that_exists_already(store: Store, when: str) -> None:
    """Whatever that job is doing, and whatever it does meanwhile."""
    first = node()
    put(store, [first])
    lease = None if when == "waiting" else claim(store)[0]
    if when == "ended" and lease is not None:
        finish(store, lease)
    last = node([first])
    store.queue.enqueue([last])
    if when == "waiting":
        (lease,) = claim(store)
    if when != "ended" and lease is not None:
        assert claim(store) == []
        finish(store, lease)
    assert [each.job.id for each in claim(store)] == [last.id]


def test_enqueue_in_an_open_transaction_loses_no_end(store: Store) -> None:
    """The needed job ends while the transaction that enqueues its dependent is open."""
    first = started(store)
    with store.transaction() as tx:
        last = node([make_job(first.job.id)])
        store.queue.enqueue([last], conn=tx)
        if not hasattr(store, "file"):
            finish(store, first)
    if hasattr(store, "file"):
        finish(store, first)
    assert [lease.job.id for lease in claim(store)] == [last.id]


def make_job(id: str) -> object:
    job = node()
    job.id = id
    return job


def test_worker_that_dies_after_an_end_leaves_the_dependents_to_the_next(store: Store, other: Store) -> None:
    """The end and what it means for others are stored together; anyone may carry it out."""
    first = node()
    last = node([first])
    put(store, [first, last])
    (lease,) = claim(store)
    store.transitions._flow.resolve_ended = lambda: None  # type: ignore[attr-defined]  # it dies here
    finish(store, lease)
    assert get(store, last).blocked_at is not None
    assert store.inspect.maintenance_due(["mail"]).flow
    assert [each.job.id for each in claim(other, by="bob")] == [last.id]


@pytest.mark.parametrize("verb", ["commit", "commit_group"])
@pytest.mark.parametrize("in_batch", [True, False])
def test_dependents_of_a_job_with_a_commit_function_are_checked_at_once(
    store: Store, verb: str, in_batch: bool
) -> None:
    parts = batch("parts")
    first = node(batch=parts.id if in_batch else None)
    last = node([parts if in_batch else first])
    put(store, [first, last], parts)
    (lease,) = claim(store)
    move = decided(lease, Returned('"v"', boundary=False))
    if verb == "commit":
        assert store.transitions.commit(move, lambda _tx, _job: None) is None
    else:
        store.transitions.commit_group([move], lambda _tx, _job: None)
    assert get(store, last).blocked_at is None


def test_lost_attempt_does_not_count_as_an_end(store: Store, clock: SettableClock) -> None:
    first = node()
    last = node([first])
    put(store, [first, last])
    claim(store)
    clock.advance(31)
    (adopted,) = store.leases.adopt("bob", ["mail"], 30.0, 1)
    assert store.transitions.move([decided(adopted, Lost())]) == []
    assert get(store, last).blocked_at is not None
    assert run_all(store) == [first.id, last.id]


# ---------------------------------------------------------------- failures
def test_failed_job_cancels_its_dependents_by_default(store: Store) -> None:
    """At once, with the reason, and so on for whatever waits for that."""
    bad, slow = node(), node()
    second = node([bad, slow])
    third = node([second])
    put(store, [bad, slow, second, third])
    leases = {lease.job.id: lease for lease in claim(store)}
    settle(store, leases[bad.id], FailedFinally("bad"))
    reason = f"one of its 2 dependencies failed: mail {bad.id}"
    assert get(store, second).cancel_reason == reason
    assert claim(store) == []
    assert cancel_requested(store) == [second.id, third.id]
    assert (get(store, second).state, get(store, third).state) == ("CANCELLED", "CANCELLED")
    assert events(store, second) == [("cancel_requested", reason), ("cancel", reason)]
    assert events(store, third)[0][1] == f"its dependency mail {second.id} failed"
    finish(store, leases[slow.id])
    assert verify(store).violations == []


@pytest.mark.parametrize("end", ["fail", "cancel", "expire"])
def test_every_end_without_success_is_a_failure(store: Store, clock: SettableClock, end: str) -> None:
    first = node(ttl=60 if end == "expire" else None)
    last = node([first], "hold")
    put(store, [first, last])
    if end == "fail":
        run(store, fails=[first])
    else:
        assert store.transitions.take([taken(get(store, first), end)]) == []
    assert get(store, last).held_reason == f"its dependency mail {first.id} failed"


def test_job_can_run_although_a_dependency_failed(store: Store) -> None:
    """It waits until all have ended."""
    bad, slow = node(), node()
    last = node([bad, slow], "run")
    put(store, [bad, slow, last])
    leases = {lease.job.id: lease for lease in claim(store)}
    settle(store, leases[bad.id], FailedFinally("bad"))
    assert get(store, last).blocked_at is not None
    finish(store, leases[slow.id])
    assert events(store, last) == [
        ("unblock", f"its 2 dependencies have ended; one of its 2 dependencies failed: mail {bad.id}")
    ]
    assert run(store) == [last.id]


def test_held_job_runs_after_a_release(store: Store) -> None:
    bad = node()
    last = node([bad], "hold")
    put(store, [bad, last])
    run(store, fails=[bad])
    assert (run(store), get(store, last).blocked_at) == ([], None)
    assert store.control.release(last.id, by="olga", reason="fine without it")
    assert run(store) == [last.id]


def test_each_dependency_has_its_own_policy(store: Store) -> None:
    """The strictest of those that failed decides."""
    soft, hard = node(), node()
    last = node([soft], "run")
    last.after += node([hard], "cancel").after
    put(store, [soft, hard, last])
    run(store, fails=[soft])
    assert events(store, last)[0][0] == "unblock"


# ---------------------------------------------------------------- reading
def test_results_of_dependencies_are_read_by_kind(store: Store) -> None:
    """Those of jobs that succeeded, in the order of creation; a batch counts with all its jobs."""
    parts = batch("parts")
    members = [node(batch=parts.id) for _ in range(4)]
    single, unrelated = node(), node()
    last = node([parts, single], "run")
    put(store, [*members, single, unrelated, last], parts)
    leases = {lease.job.id: lease for lease in claim(store)}
    for n, job in enumerate([*members, single, unrelated]):
        value = FailedFinally("bad") if n == 2 else Returned(f"{n}", boundary=False)
        settle(store, leases[job.id], value)
    assert store.flow.results(last.id, "mail") == ["0", "1", "3", "4"]
    assert store.flow.results(last.id, "chore") == []


def test_needs_show_what_a_job_waits_for(store: Store) -> None:
    parts = batch("parts")
    member, good, bad = node(batch=parts.id), node(), node()
    last = node([parts, good, bad], "run")
    put(store, [member, good, bad, last], parts)
    leases = {lease.job.id: lease for lease in claim(store)}
    finish(store, leases[good.id])
    settle(store, leases[bad.id], FailedFinally("bad"))
    assert store.flow.count_needs(last.id) == (1, 3)
    assert [(each.name, each.outcome, each.state) for each in store.flow.needs(last.id, 10)] == [
        ("parts", None, None),
        ("mail", "failed", "FAILED"),
        ("mail", "succeeded", "SUCCEEDED"),
    ]


# ---------------------------------------------------------------- rules of the database
def test_dependency_must_exist(store: Store) -> None:
    with pytest.raises(NotFound, match="does not exist, so no job can wait for it"):
        store.queue.enqueue([node([node()])])
    assert store.inspect.jobs() == []


def test_blocked_job_cannot_be_started_by_hand(store: Store, raw: Raw) -> None:
    first = node()
    last = node([first])
    put(store, [first, last])
    with pytest.raises(Exception, match=r"interlock refuses|jobs_held"):
        raw(
            "UPDATE {jobs} SET phase = 'running', state = 'RUNNING', attempt = 1, version = 1, updated_at = {later} "
            "WHERE id = :id",
            id=last.id,
        )


def test_job_is_kept_while_another_waits_for_it(store: Store, clock: SettableClock) -> None:
    """Its result is still needed. When the last dependent has ended, the whole flow can be deleted."""
    whole = batch("import")
    first, slow = node(batch=whole.id), node(batch=whole.id, delay=500)
    last = node([first, slow], batch=whole.id)
    put(store, [first, slow, last], whole)
    run(store)
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=50, limit=10) == 0
    clock.advance(500)
    run_all(store)
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=50, limit=10) == 3
    assert (store.flow.batches(), store.flow.count_needs(last.id)) == ([], (0, 0))


def test_job_of_a_blocked_key_waits_for_both(store: Store) -> None:
    """For its dependencies, and then for its concurrency key."""
    limit(store, "key", "mail", max_running=1)
    first = node(concurrency_key="a")
    last = node([first], concurrency_key="a")
    other = node(concurrency_key="a", priority=-1)
    put(store, [first, last, other])
    assert [run(store) for _ in range(4)] == [[first.id], [last.id], [other.id], []]


def test_verify_accepts_flows(place: Place, store: Store) -> None:
    bad = node()
    jobs = [bad, node([bad]), node([bad], "hold"), node([bad], "run")]
    put(store, jobs)
    run_all(store, fails=[bad])
    assert verify(store).violations == []
