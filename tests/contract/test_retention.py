"""prune and archive: ended jobs are deleted, and their audit is archived afterwards."""

from contextlib import suppress

import pytest

from interlock.core.job import AuditEntry
from interlock.store.contract import Store
from tests.contract.kit import claim, claimed, fail, finish, make, many, stored
from tests.kit import Raw, SettableClock


def ended(store: Store, clock: SettableClock, n: int = 1, age: float = 100.0) -> list[str]:
    """Create jobs that succeeded `age` seconds ago."""
    store.queue.enqueue(many(n))
    ids = [finish(store, lease).job.id for lease in claim(store, limit=n)]
    clock.advance(age)
    return ids


def test_only_old_jobs_of_the_given_phase_are_pruned(store: Store, clock: SettableClock) -> None:
    """No live job, no job of another phase and no recent job."""
    old = ended(store, clock)
    failed = fail(store, claimed(store)).job
    young = ended(store, clock, age=49.0)
    running, waiting = claimed(store).job, stored(store)
    assert store.retention.prune(phase="succeeded", age=50.0, limit=100) == 1
    assert {job.id for job in store.inspect.jobs()} == {failed.id, *young, running.id, waiting.id}
    assert old[0] not in {job.id for job in store.inspect.jobs()}


def test_oldest_jobs_are_pruned_first_up_to_the_limit(store: Store, clock: SettableClock) -> None:
    """Pruning works in batches."""
    first, second, third = (ended(store, clock, age=10.0)[0] for _ in range(3))
    assert store.retention.prune(phase="succeeded", age=5.0, limit=2) == 2
    assert [job.id for job in store.inspect.jobs()] == [third]
    assert store.retention.prune(phase="succeeded", age=5.0, limit=2) == 1
    assert store.retention.prune(phase="succeeded", age=5.0, limit=2) == 0
    assert {first, second, third} == {record.job_id for page in store.inspect.job_records() for record in page}


def test_pruning_deletes_executions_and_receipts_and_keeps_the_audit(
    store: Store, clock: SettableClock, raw: Raw
) -> None:
    """Only the history of a pruned job is left."""
    (id,) = ended(store, clock)
    history = store.inspect.history(id)
    raw(
        """INSERT INTO {receipts} (job_id, name, kind, attempt, holder, args_hash, begun_at)
           SELECT job_id, 'link', 'step', 1, 1, 'x', leased_at FROM {executions} WHERE job_id = :id""",
        id=id,
    )
    store.retention.prune(phase="succeeded", age=50.0, limit=9)
    assert store.inspect.executions(id) == []
    assert raw("SELECT count(*) FROM {receipts}") == [(0,)]
    assert store.inspect.history(id) == history
    assert len(history) == 3


@pytest.mark.parametrize("phase", ["pending", "running"])
def test_live_job_is_never_pruned(store: Store, clock: SettableClock, phase: str) -> None:
    """Whatever phase the caller passes."""
    claimed(store)
    stored(store)
    clock.advance(1_000_000)
    with suppress(ValueError):
        assert store.retention.prune(phase=phase, age=1.0, limit=9) == 0
    assert sum(store.inspect.counts()["standard"].values()) == 2


def test_audit_of_pruned_jobs_is_written_out_and_deleted(store: Store, clock: SettableClock) -> None:
    """Exactly these rows are deleted; those of stored or recent jobs stay."""
    old = ended(store, clock, 3)
    histories = {id: store.inspect.history(id) for id in old}
    store.retention.prune(phase="succeeded", age=50.0, limit=9)
    kept = ended(store, clock, 1)
    out: list[AuditEntry] = []
    assert store.retention.archive(age=50.0, write=out.extend, limit=9) == 3
    assert sorted(out, key=lambda e: (e.job_id, e.version, e.n)) == [
        entry for id in sorted(old) for entry in histories[id]
    ]
    assert [store.inspect.history(id) for id in old] == [[], [], []]
    assert len(store.inspect.history(kept[0])) == 3


def test_audit_of_a_stored_job_is_not_archived(store: Store, clock: SettableClock, raw: Raw) -> None:
    """Neither of a live job nor of an ended job that is not pruned."""
    ended(store, clock)
    stored(store)
    clock.advance(1_000_000)
    before = raw.dump()
    assert store.retention.archive(age=1.0, write=lambda entries: None, limit=9) == 0
    assert raw.dump() == before


def test_recent_audit_is_not_archived(store: Store, clock: SettableClock) -> None:
    """The age of the last entry counts."""
    (id,) = ended(store, clock, age=100.0)
    store.retention.prune(phase="succeeded", age=50.0, limit=9)
    assert store.retention.archive(age=101.0, write=lambda entries: None, limit=9) == 0
    assert len(store.inspect.history(id)) == 3


def test_archive_deletes_nothing_if_the_writer_fails(store: Store, clock: SettableClock, raw: Raw) -> None:
    """The rows stay, and the exception is raised."""
    ended(store, clock, 2)
    store.retention.prune(phase="succeeded", age=50.0, limit=9)
    before = raw.dump()

    def full(entries: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.retention.archive(age=1.0, write=full, limit=9)
    assert raw.dump() == before


def test_archive_stops_at_its_limit(store: Store, clock: SettableClock) -> None:
    """At most as many jobs as the limit, each once."""
    ids = ended(store, clock, 5)
    store.retention.prune(phase="succeeded", age=50.0, limit=9)
    seen: list[str] = []
    counts = [
        store.retention.archive(
            age=1.0, write=lambda entries: seen.extend({entry.job_id for entry in entries}), limit=2
        )
        for _ in range(4)
    ]
    assert (counts, sorted(seen)) == ([2, 2, 1, 0], sorted(ids))


def test_key_of_an_archived_job_makes_a_new_job(store: Store, clock: SettableClock) -> None:
    """The old job is pruned and archived, and its key is free."""
    old = finish(store, claimed(store, idempotency_key="k")).job
    clock.advance(100)
    store.retention.prune(phase="succeeded", age=50.0, limit=9)
    store.retention.archive(age=50.0, write=lambda entries: None, limit=9)
    (new,) = store.queue.enqueue([make(idempotency_key="k")])
    assert new.created
    assert new.id != old.id


def test_only_named_kinds_are_pruned(store: Store, clock: SettableClock) -> None:
    """One app's retention must not delete jobs of another app in the same database."""
    (id,) = ended(store, clock)
    kind = store.inspect.get(id).kind
    assert store.retention.prune(phase="succeeded", age=50.0, limit=9, kinds=["another"]) == 0
    assert store.retention.prune(phase="succeeded", age=50.0, limit=9, kinds=["another", kind]) == 1
