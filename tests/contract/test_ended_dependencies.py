"""Dependencies on jobs that had ended before: retention, deletion and redrives treat them like any others."""

import pytest

from interlock.core.blocked_jobs import OnFailed
from interlock.store.contract import Store
from interlock.store.types import NewJob
from tests.contract.flow_kit import batch, cancel_requested, events, get, node, put, run, run_all
from tests.contract.kit import make
from tests.kit import SettableClock


def redrive(store: Store, job: NewJob, **fields: object) -> NewJob:
    new = make(redrive_of=job.id, root=job.id, inherits=True, batch=job.batch, **fields)
    (answer,) = store.bulk.redrive([new], again=False, reason=None)
    assert answer.result == "stored"
    return new


@pytest.fixture
def ended(store: Store) -> NewJob:
    """A job that has succeeded, and that no other one has waited for."""
    job = node()
    put(store, [job])
    run(store)
    return job


# ---------------------------------------------------------------- deletion
@pytest.mark.parametrize("resolved", [True, False])
def test_retention_keeps_a_job_that_had_ended_before(
    store: Store, clock: SettableClock, ended: NewJob, resolved: bool
) -> None:
    """Whether or not its dependent was checked before."""
    slow = node(delay=2000)
    last = node([ended, slow])
    store.queue.enqueue([slow, last])
    if resolved:
        store.flow.resolve()
    clock.advance(1000)
    assert store.retention.prune(phase="succeeded", age=100, limit=10) == 0
    clock.advance(1000)
    assert run_all(store) == [slow.id, last.id]
    assert store.flow.results(last.id, "mail") == ['"v"', '"v"']
    clock.advance(1000)
    assert store.retention.prune(phase="succeeded", age=100, limit=10) == 3


def test_only_dependency_is_kept_before_its_dependent_was_checked(
    store: Store, clock: SettableClock, ended: NewJob
) -> None:
    clock.advance(1000)
    last = node([ended])
    store.queue.enqueue([last])
    assert store.retention.prune(phase="succeeded", age=100, limit=10) == 0
    assert run(store) == [last.id]


def test_job_that_had_ended_before_is_not_deleted_while_another_waits_for_it(
    store: Store, clock: SettableClock, ended: NewJob
) -> None:
    """The refused delete leaves no note. A plain job in the same call is deleted."""
    slow, plain = node(delay=60), node()
    put(store, [plain])
    run(store)
    last = node([ended, slow])
    store.queue.enqueue([slow, last])
    assert store.bulk.delete([ended.id, plain.id], by="olga", reason=None) == [plain.id]
    assert [event for event, _ in events(store, ended)] == ["claim", "succeed"]
    clock.advance(60)
    run_all(store)
    assert store.bulk.delete([ended.id], by="olga", reason=None) == [ended.id]


def test_jobs_of_a_flow_are_kept_while_another_waits_for_the_flow(store: Store, clock: SettableClock) -> None:
    """Also those in its batches."""
    whole = batch("import")
    parts = batch("parts", whole)
    inner, slow = node(batch=parts.id), node(delay=2000, batch=whole.id)
    last = node([whole])
    put(store, [inner, slow, last], whole, parts)
    run(store)
    clock.advance(1000)
    assert store.retention.prune(phase="succeeded", age=100, limit=10) == 0
    assert store.bulk.delete([inner.id], by="olga", reason=None) == []
    clock.advance(1000)
    assert run_all(store) == [slow.id, last.id]


# ---------------------------------------------------------------- redrives
@pytest.mark.parametrize("on_failed", ["cancel", "hold"])
def test_redrive_reopens_dependents_that_were_enqueued_after_the_failure(store: Store, on_failed: OnFailed) -> None:
    bad = node()
    put(store, [bad])
    run(store, fails=[bad])
    last = node([bad], on_failed)
    store.queue.enqueue([last])
    store.flow.resolve()
    assert (get(store, last).held_at is None, get(store, last).cancel_requested_at is None) == (
        on_failed == "cancel",
        on_failed == "hold",
    )
    new = redrive(store, bad)
    assert [need.needs for need in store.flow.needs(last.id, 5)] == [new.id]
    assert cancel_requested(store) == []
    assert run_all(store) == [new.id, last.id]


def test_redrive_names_a_cancelled_job_that_was_enqueued_after_the_failure(store: Store) -> None:
    bad = node()
    put(store, [bad])
    run(store, fails=[bad])
    last = node([bad])
    store.queue.enqueue([last])
    run_all(store)
    assert get(store, last).state == "CANCELLED"
    new = make(redrive_of=bad.id, root=bad.id)
    (answer,) = store.bulk.redrive([new], again=False, reason=None)
    assert (answer.result, answer.awaited) == ("stored", True)
    assert [job.id for job in store.flow.reopenable([new.id])] == [last.id]


@pytest.mark.parametrize("in_batch", [True, False])
def test_failed_job_is_redriven_although_what_it_needed_was_deleted(
    store: Store, clock: SettableClock, in_batch: bool
) -> None:
    """Together with other jobs. A note says that it runs without the deleted results; the others stay."""
    whole, kept = batch("import"), node(tries=3)
    first = node(batch=whole.id if in_batch else None)
    last, other = node([whole if in_batch else first, kept]), node()
    put(store, [first, kept, last, other], whole)
    run(store, fails=[other])
    run(store, fails=[last])
    assert store.bulk.delete([first.id], by="olga", reason=None) == [first.id]
    new = [make(redrive_of=job.id, root=job.id, inherits=True) for job in (last, other)]
    assert {each.result for each in store.bulk.redrive(new, again=False, reason="go on")} == {"stored"}
    assert [need.needs for need in store.flow.needs(new[0].id, 5)] == [kept.id]
    assert events(store, last)[-1][1] == f"as {new[0].id}, without 1 deleted dependency: go on"
    assert events(store, other)[-1][1] == f"as {new[1].id}: go on"
    assert sorted(run_all(store)) == sorted(job.id for job in new)


@pytest.mark.parametrize("times", [1, 2])
def test_dependency_on_a_redriven_job_is_one_on_the_last_new_job(store: Store, times: int) -> None:
    """A batch counts it the same way. It does not matter whether the job had been redriven before or is redriven now."""
    first = bad = node()
    put(store, [bad])
    for _ in range(times):
        run(store, fails=[bad])
        bad = redrive(store, bad)
    last, both = node([first]), node([first, bad])
    store.queue.enqueue([last, both])
    store.flow.resolve()
    for job in (last, both):
        assert [(need.needs, need.outcome) for need in store.flow.needs(job.id, 5)] == [(bad.id, None)]
    assert run_all(store) == [bad.id, last.id, both.id]


def test_dependency_on_a_redriven_job_fails_if_the_new_job_has_failed(store: Store) -> None:
    bad = node()
    put(store, [bad])
    run(store, fails=[bad])
    new = redrive(store, bad)
    run(store, fails=[new])
    last = node([bad], "hold")
    store.queue.enqueue([last])
    store.flow.resolve()
    assert get(store, last).held_reason == f"its dependency mail {new.id} failed"
