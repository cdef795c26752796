"""Batches: named sets of jobs, which other jobs wait for."""

import pytest

from interlock.core.outcome import FailedFinally
from interlock.errors import NotFound
from interlock.store.contract import Store
from tests.contract.flow_kit import batch, get, node, put, run, run_all
from tests.contract.kit import claim, finish, settle
from tests.kit import SettableClock


def test_job_waits_for_all_jobs_of_a_batch(store: Store) -> None:
    parts = batch("parts")
    jobs = [node(batch=parts.id) for _ in range(5)]
    last = node([parts])
    put(store, [*jobs, last], parts)
    run(store, limit=4)
    assert get(store, last).blocked_at is not None
    assert len(run(store)) == 1
    assert run(store) == [last.id]


def test_empty_batch_has_ended(store: Store) -> None:
    parts = batch("parts")
    last = node([parts])
    put(store, [last], parts)
    assert run(store) == [last.id]


def test_batch_counts_its_jobs(store: Store) -> None:
    parts = batch("parts")
    jobs = [node(batch=parts.id) for _ in range(5)]
    blocked = node([jobs[0]], "run", batch=parts.id)
    put(store, [*jobs, blocked], parts)
    (lease,) = claim(store, limit=1)
    seen = store.flow.batch(parts.id)
    assert (seen.name, seen.blocked, seen.waiting, seen.running, seen.total) == ("parts", 1, 4, 1, 6)
    finish(store, lease)
    run(store, fails=jobs[1:3])
    seen = store.flow.batch(parts.id)
    assert (seen.succeeded, seen.failed, seen.ended, seen.total) == (4, 2, True, 6) or not seen.ended
    run_all(store)
    assert store.flow.batch(parts.id).ended


def test_failed_job_of_a_batch_cancels_at_once_or_decides_at_the_end(store: Store) -> None:
    parts = batch("parts")
    jobs = [node(batch=parts.id) for _ in range(3)]
    strict, lenient, careful = node([parts]), node([parts], "run"), node([parts], "hold")
    put(store, [*jobs, strict, lenient, careful], parts)
    leases = claim(store, limit=3)
    settle(store, leases[0], FailedFinally("bad"))
    assert get(store, strict).cancel_reason == "its dependency batch parts failed"
    assert get(store, lenient).blocked_at == get(store, careful).blocked_at is not None
    for lease in leases[1:]:
        finish(store, lease)
    assert (get(store, lenient).blocked_at, get(store, careful).held_reason) == (
        None,
        "its dependency batch parts failed",
    )


def test_flow_ends_after_its_own_jobs_and_those_of_its_batches(store: Store) -> None:
    whole = batch("import")
    parts = batch("parts", whole)
    inner, outer = node(batch=parts.id), node(batch=whole.id)
    after = node([whole])
    put(store, [inner, outer, after], whole, parts)
    assert len(run(store, limit=1)) == 1
    assert get(store, after).blocked_at is not None
    run(store, limit=1)
    assert run(store) == [after.id]
    assert store.flow.batch(whole.id).total == 2
    assert [each.name for each in store.flow.batches()] == ["import"]
    assert [each.name for each in store.flow.batches(parent=whole.id)] == ["parts"]
    assert {job.id for job in store.flow.members(whole.id)} == {inner.id, outer.id}
    assert [job.id for job in store.flow.members(parts.id, phase="succeeded")] == [inner.id]
    with pytest.raises(NotFound):
        store.flow.batch(inner.id)


def test_batch_can_be_awaited_after_it_was_stored(store: Store) -> None:
    parts = batch("parts")
    jobs = [node(batch=parts.id) for _ in range(3)]
    put(store, jobs, parts)
    run(store, limit=2)
    last = node([parts])
    store.queue.enqueue([last])
    assert run(store) == [jobs[2].id]
    assert run(store) == [last.id]


@pytest.mark.parametrize("last", ["flow", "batch"])
def test_empty_batch_is_deleted_with_the_last_job_of_its_flow(store: Store, last: str) -> None:
    whole, alone = batch("import"), batch("alone")
    empty, parts = batch("empty", whole), batch("parts", whole)
    outer, inner, kept = node(batch=whole.id), node(batch=parts.id), node(batch=alone.id)
    put(store, [outer, inner, kept], whole, empty, parts, alone)
    run(store)
    first, second = (inner, outer) if last == "flow" else (outer, inner)
    assert store.bulk.delete([first.id], by="olga", reason=None) == [first.id]
    assert "empty" in [each.name for each in store.flow.batches(parent=whole.id)]
    assert store.bulk.delete([second.id], by="olga", reason=None) == [second.id]
    assert [each.name for each in store.flow.batches()] == ["alone"]
    assert store.flow.batches(parent=whole.id) == []


def test_flow_is_pruned_with_its_empty_batches(store: Store, clock: SettableClock) -> None:
    whole = batch("import")
    empty, parts = batch("empty", whole), batch("parts", whole)
    put(store, [node(batch=whole.id), node(batch=parts.id), node(batch=parts.id)], whole, empty, parts)
    run(store)
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=50, limit=10) == 3
    assert store.flow.batches() == store.flow.batches(parent=whole.id) == []
