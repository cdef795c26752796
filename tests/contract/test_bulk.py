"""Operations on many jobs: cancel requests, redrives and deletions of whole batches."""

from collections.abc import Sequence
from typing import Any

import pytest

from interlock.core.job import AuditEntry, Job
from interlock.operate.verify import verify
from interlock.store import OpenStore
from interlock.store.contract import Store
from interlock.store.selection import Redriven
from interlock.store.types import NewJob
from tests.contract.kit import check, claim, claimed, commit, fail, finish, make, many, stored, taken
from tests.contract.test_receipts_inherited import old_job
from tests.kit import Raw, SettableClock


def failed(store: Store, **fields: Any) -> Job:
    return fail(store, claimed(store, **fields)).job


def redrive_of(job: Job, **fields: Any) -> NewJob:
    """Return the new job that redrives this one."""
    return make(job.kind, redrive_of=job.id, root=job.id, actor="operator:olga", **{"inherits": True, **fields})


def redriven(
    store: Store, *jobs: NewJob, again: bool = False, reason: str | None = "mended", **given: Any
) -> list[Redriven]:
    return store.bulk.redrive(jobs, again=again, reason=reason, **given)


def notes(store: Store, id: str, event: str) -> list[tuple[str, str | None]]:
    return [(entry.actor, entry.reason) for entry in store.inspect.history(id) if entry.n and entry.event == event]


# ---------------------------------------------------------------- cancel requests
def test_cancel_requests_of_many_jobs_are_stored_once(store: Store) -> None:
    """Each running job gets the request and a note; a job with a request keeps it, and other jobs get none."""
    store.queue.enqueue(many(3))
    first, second, past = claim(store, limit=3)
    commit(store, past)
    waiting, ended = stored(store), finish(store, claimed(store, kind="chore")).job
    assert store.control.request_cancel(first.job.id, by="ann", reason="mine")
    ids = [first.job.id, second.job.id, past.job.id, waiting.id, ended.id, make().id, "nonsense"]
    assert store.control.request_cancels(ids, by="olga", reason="all") == {first.job.id: False, second.job.id: True}
    assert notes(store, first.job.id, "cancel_requested") == [("ann", "mine")]
    assert notes(store, second.job.id, "cancel_requested") == [("olga", "all")]
    assert store.inspect.history(second.job.id)[-1].attempt == 1
    asked = {job.id: job.cancel_requested_by for job in store.inspect.jobs() if job.cancel_requested_by}
    assert asked == {first.job.id: "ann", second.job.id: "olga"}
    assert store.control.request_cancels([], by="olga", reason=None) == {}


# ---------------------------------------------------------------- takes
def test_takes_of_different_jobs_share_a_batch(store: Store) -> None:
    """Takes with other reasons, events and kinds are written together; a stale one is refused alone."""
    jobs = [stored(store, kind) for kind in ("mail", "paint", "mail", "deliver", "mail")]
    takes = [
        taken(jobs[0], reason="a"),
        taken(jobs[1], "reject", reason="b"),
        taken(jobs[2], reason="a"),
        taken(jobs[3], reason="a"),
        taken(jobs[4], reason="a"),
    ]
    moved = claim(store, "deliver", 1)[0]
    assert [refusal.job_id for refusal in store.transitions.take(takes)] == [moved.job.id]
    ended = {job.id: (job.state, job.last_error) for job in store.inspect.jobs() if job.ended}
    assert ended == {
        jobs[0].id: ("CANCELLED", "a"),
        jobs[1].id: ("rejected", "b"),
        jobs[2].id: ("CANCELLED", "a"),
        jobs[4].id: ("CANCELLED", "a"),
    }
    for job in jobs:
        check(store, job.id)


# ---------------------------------------------------------------- redrive
def test_redriven_job_has_a_note_in_the_old_jobs_audit(store: Store, clock: SettableClock) -> None:
    """The note names the new job, the operator and the reason. The old job does not change."""
    old = failed(store, payload='{"n":1}')
    clock.advance(10)
    new = redrive_of(old, payload='{"n":1}')
    assert redriven(store, new) == [Redriven(old.id, "stored", new.id)]
    job = store.inspect.get(new.id)
    assert (job.redrive_of, job.root, job.phase, job.payload) == (old.id, old.id, "pending", {"n": 1})
    assert store.inspect.history(new.id)[0].actor == "operator:olga"
    assert notes(store, old.id, "redrive") == [("operator:olga", f"as {new.id}: mended")]
    note = store.inspect.history(old.id)[-1]
    assert (note.version, note.n, note.attempt, note.at) == (old.version, 1, None, clock.now())
    assert store.inspect.get(old.id) == old
    assert verify(store).ok


def test_job_is_redriven_once_unless_asked_again(store: Store) -> None:
    """A second call stores nothing. With `again` it stores a second job, and another note."""
    old = failed(store)
    first, second, third = (redrive_of(old) for _ in range(3))
    assert redriven(store, first)[0].result == "stored"
    assert redriven(store, second) == [Redriven(old.id, "redriven_before")]
    assert redriven(store, third, again=True, reason=None) == [Redriven(old.id, "stored", third.id)]
    assert {job.id for job in store.inspect.jobs()} == {old.id, first.id, third.id}
    assert [reason for _, reason in notes(store, old.id, "redrive")] == [f"as {first.id}: mended", f"as {third.id}"]


def test_note_of_a_redrive_counts_after_the_new_job_was_deleted(store: Store, clock: SettableClock) -> None:
    """Retention deletes succeeded jobs first, so the note is the proof, not the new job."""
    old = failed(store)
    redriven(store, redrive_of(old))
    finish(store, claim(store)[0])
    clock.advance(100)
    assert store.retention.prune(phase="succeeded", age=1, limit=9) == 1
    assert redriven(store, redrive_of(old))[0].result == "redriven_before"


def test_only_jobs_that_ended_without_success_are_redriven(store: Store, raw: Raw) -> None:
    """Not those that wait, run, succeeded or were deleted. The others of the batch are redriven."""
    good, cancelled = failed(store), stored(store)
    store.transitions.take([taken(cancelled)])
    succeeded, running, waiting, gone = finish(store, claimed(store)).job, claimed(store).job, stored(store), make()
    missing = Job(**{name: getattr(good, name) for name in Job.__slots__} | {"id": gone.id})
    jobs = [redrive_of(job) for job in (waiting, good, succeeded, missing, cancelled, running)]
    assert [(each.redrive_of, each.result) for each in redriven(store, *jobs)] == [
        (waiting.id, "not_failed"),
        (good.id, "stored"),
        (succeeded.id, "not_failed"),
        (gone.id, "not_failed"),
        (cancelled.id, "stored"),
        (running.id, "not_failed"),
    ]
    assert raw("SELECT count(*) FROM {audit} WHERE event = 'redrive'") == [(2,)]


def test_job_whose_unique_key_is_taken_is_not_redriven(store: Store) -> None:
    """Neither if an active job has the key, nor if an earlier job of the batch takes it; no note is stored."""
    first, second = failed(store, unique_key="u"), failed(store, unique_key="u")
    other = failed(store, unique_key="v")
    holder = stored(store, unique_key="v")
    jobs = [redrive_of(job, unique_key=job.unique_key) for job in (first, second, other)]
    results = redriven(store, *jobs)
    assert results == [
        Redriven(first.id, "stored", jobs[0].id),
        Redriven(second.id, "key_taken", jobs[0].id),
        Redriven(other.id, "key_taken", holder.id),
    ]
    assert [len(notes(store, job.id, "redrive")) for job in (first, second, other)] == [1, 0, 0]


def test_redrive_of_many_jobs_copies_the_receipts_of_each(store: Store) -> None:
    """A fresh one copies none."""
    old, other = old_job(store), old_job(store)
    jobs = [redrive_of(old.job), redrive_of(other.job, inherits=False)]
    redriven(store, *jobs)
    assert [len(store.receipts.for_job(job.id)) for job in jobs] == [3, 0]


def test_refused_redrive_stores_nothing(store: Store, raw: Raw) -> None:
    """If `admit` raises, neither the new jobs nor the notes are stored."""
    jobs = [redrive_of(failed(store)) for _ in range(2)]
    before = raw.dump()

    def admit(tx: Any, job: NewJob) -> None:
        if job.id == jobs[1].id:
            raise ValueError("no credit")

    with pytest.raises(ValueError, match="no credit"):
        redriven(store, *jobs, admit=admit)
    assert raw.dump() == before


def test_redrive_in_a_callers_transaction_is_stored_with_it(store: OpenStore, raw: Raw) -> None:
    """Its note, too."""
    kept, lost = failed(store), failed(store)
    with raw.transaction() as connection:
        redriven(store, redrive_of(kept), conn=connection)
    with pytest.raises(RuntimeError), raw.transaction() as connection:
        redriven(store, redrive_of(lost), conn=connection)
        raise RuntimeError
    assert raw("SELECT job_id FROM {audit} WHERE event = 'redrive'") == raw(
        "SELECT id FROM {jobs} WHERE id = :id", id=kept.id
    )
    assert redriven(store, redrive_of(kept), redrive_of(lost)) == [
        Redriven(kept.id, "redriven_before"),
        Redriven(lost.id, "stored", store.inspect.jobs(limit=1)[0].id),
    ]


def test_redrive_names_each_old_job_once(store: Store, raw: Raw) -> None:
    """A list with a job twice, or with a new job that redrives none, is refused as a whole."""
    old = failed(store)
    before = raw.dump()
    for jobs in ([redrive_of(old), redrive_of(old)], [redrive_of(old), make()]):
        with pytest.raises(ValueError, match="must name a job that it redrives"):
            redriven(store, *jobs)
    assert raw.dump() == before
    assert redriven(store) == []


# ---------------------------------------------------------------- delete
def test_only_ended_jobs_are_deleted(store: Store) -> None:
    """Jobs that wait or run stay; so do unknown ids."""
    gone = [failed(store).id, finish(store, claimed(store)).job.id]
    running, waiting = claimed(store).job, stored(store)
    ids = [*gone, running.id, waiting.id, make().id, "nonsense"]
    assert sorted(store.bulk.delete(ids, by="operator:olga", reason="old")) == sorted(gone)
    assert {job.id for job in store.inspect.jobs()} == {running.id, waiting.id}
    assert notes(store, running.id, "delete") == notes(store, waiting.id, "delete") == []
    assert store.bulk.delete(ids, by="operator:olga", reason="old") == store.bulk.delete([], by="x", reason=None) == []


def test_deleted_job_keeps_its_history_with_a_note(store: Store, raw: Raw, clock: SettableClock) -> None:
    """The note says who deleted it and why. Executions, receipts and keys are deleted."""
    old = old_job(store)
    before = store.inspect.history(old.job.id)
    clock.advance(10)
    store.bulk.delete([old.job.id], by="operator:olga", reason="a test")
    *kept, note = store.inspect.history(old.job.id)
    assert kept == before
    assert (note.event, note.actor, note.reason, note.version, note.at) == (
        "delete",
        "operator:olga",
        "a test",
        old.job.version,
        clock.now(),
    )
    assert raw("SELECT count(*) FROM {executions}") == raw("SELECT count(*) FROM {receipts}") == [(0,)]
    assert verify(store).ok


def test_deleted_jobs_history_is_archived_after_its_note(store: Store, clock: SettableClock) -> None:
    """The age counts from the note, which is archived with the other entries."""
    id = finish(store, claimed(store, idempotency_key="k")).job.id
    clock.advance(100)
    store.bulk.delete([id], by="olga", reason=None)
    archived: list[str] = []

    def write(entries: Sequence[AuditEntry]) -> None:
        archived.extend(entry.event for entry in entries)

    assert store.retention.archive(age=50, write=write, limit=9) == 0
    clock.advance(51)
    assert store.retention.archive(age=50, write=write, limit=9) == 1
    assert archived == ["enqueue", "claim", "succeed", "delete"]
    assert store.queue.enqueue([make(idempotency_key="k")])[0].created


# ---------------------------------------------------------------- read
def test_jobs_are_read_by_id(store: Store) -> None:
    """In the order of their ids, with payloads, without those that do not exist."""
    jobs = [stored(store, payload=f'{{"n":{n}}}') for n in range(3)]
    ids = [jobs[2].id, jobs[0].id, make().id, "nonsense"]
    assert store.bulk.get(ids) == [jobs[0], jobs[2]]
    assert store.bulk.get([]) == []
