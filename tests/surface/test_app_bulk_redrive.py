"""`app.bulk.redrive` and `app.bulk.delete`: ended jobs are redriven once, and deleted with a note."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from interlock import App, BulkResult, TransitionRefused
from interlock.core.outcome import FailedFinally
from interlock.jobs.request import new_jobs
from interlock.operate.bulk_actions import KEY_TAKEN, REDRIVEN
from interlock.store.selection import JobCount
from tests.kit import Place, Raw
from tests.surface.bulk_kit import failed, greetings, last, redrives, small, states, succeeded
from tests.surface.test_app import Shop, seen, shop

__all__ = ["shop", "small"]


# ---------------------------------------------------------------- redrive
def test_bulk_redrive_redrives_only_jobs_that_failed(shop: Shop) -> None:
    """Not those that someone cancelled or rejected; these are redriven if their state is named."""
    broken = failed(shop, 2)
    cancelled = greetings(shop, 2)
    shop.app.bulk.cancel(state="PENDING", by="ann")
    succeeded(shop, 1)
    greetings(shop, 1)
    result = shop.app.bulk.redrive(kind="greet", by="ann", reason="mended")
    assert (result.matched, result.changed, redrives(shop)) == (2, 2, broken)
    for job in (job for job in shop.app.jobs() if job.redrive_of):
        assert last(shop, str(job.redrive_of)) == ("redrive", "operator:ann", f"as {job.id}: mended")
        assert (job.payload["name"], job.phase) == (shop.app.get(str(job.redrive_of)).payload["name"], "pending")
    assert states(shop, broken) == {"FAILED"}
    named = shop.app.bulk.redrive(state="CANCELLED", by="ann")
    assert (named.changed, redrives(shop)) == (2, [*broken, *cancelled])
    assert shop.app.verify().ok


def test_second_bulk_redrive_changes_nothing(shop: Shop, raw: Raw, small: None) -> None:
    """Also after one of the jobs was redriven alone. With `again`, all are redriven once more."""
    ids = failed(shop, 7)
    shop.app.redrive(ids[3], by="olga")
    first = shop.app.bulk.redrive(kind="greet", by="ann")
    assert (first.matched, first.changed, first.skipped) == (7, 6, {REDRIVEN: 1})
    assert first.counts == (JobCount("greet", "FAILED", 7, redriven=1),)
    before = raw.dump()
    second = shop.app.bulk.redrive(kind="greet", by="ann")
    assert (second.matched, second.changed, second.skipped) == (7, 0, {REDRIVEN: 7})
    assert raw.dump() == before
    third = shop.app.bulk.redrive(kind="greet", by="ann", again=True)
    assert (third.changed, third.skipped, sorted(redrives(shop))) == (7, {}, sorted(ids * 2))


def test_jobs_that_were_redriven_before_are_skipped_unread(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run after a hundred thousand jobs reads no payload."""
    failed(shop, 3)
    shop.app.bulk.redrive(kind="greet", by="ann")
    monkeypatch.delattr(type(shop.app.database.store().bulk), "get")
    assert shop.app.bulk.redrive(kind="greet", by="ann").skipped == {REDRIVEN: 3}


def test_job_that_another_operator_redrives_meanwhile_is_skipped(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database decides when the batch is stored, not when the job was read."""
    ids = failed(shop, 3)
    part = type(shop.app.database.store().bulk)
    read = part.get

    def get(self: Any, asked: Any) -> Any:
        if not redrives(shop):
            shop.app.redrive(ids[1], by="olga")
        return read(self, asked)

    monkeypatch.setattr(part, "get", get)
    result = shop.app.bulk.redrive(kind="greet", by="ann")
    assert (result.changed, result.skipped, sorted(redrives(shop))) == (2, {REDRIVEN: 1}, ids)


def test_redrive_of_one_job_is_not_skipped(shop: Shop) -> None:
    """Who names a job wants a new one, whatever happened before."""
    (id,) = failed(shop, 1)
    shop.app.bulk.redrive(kind="greet", by="ann")
    assert shop.app.redrive(id, by="ann").created
    assert redrives(shop) == [id, id]


def test_bulk_redrive_keeps_or_discards_receipts(shop: Shop) -> None:
    """As for one job: `fresh` starts without them."""
    greetings(shop, 1)
    lease = shop.claim(shop.greet)
    receipts = shop.app.database.store().receipts
    assert receipts.record_step(lease.fence, "link", "h", '"l"')
    shop.settle(shop.greet, lease, FailedFinally("broken"))
    for fresh in (False, True):
        shop.app.bulk.redrive(kind="greet", by="ann", again=True, fresh=fresh)
        (new, *_) = shop.app.jobs(limit=1)
        assert [receipt.name for receipt in receipts.for_job(new.id)] == ([] if fresh else ["link"])


def test_bulk_redrive_asks_admit_about_each_job(shop: Shop, place: Place, raw: Raw) -> None:
    """In the app's own transaction. A refused job stores nothing, and the others are redriven."""
    handles: list[Any] = []

    @contextmanager
    def begin() -> Iterator[Any]:
        with raw.transaction() as handle:
            handles.append(handle)
            yield handle

    store = shop.app.database.store()
    # Stored as by a program whose `admit` function refused nobody.
    ids = [
        new.id
        for new in new_jobs(store, [shop.paint.request(user) for user in (1, 13, 2)])
        if store.queue.enqueue([new])
    ]
    shop.app.bulk.cancel(kind="paint", by="ann")
    own = Shop(place, begin)
    result = own.app.bulk.redrive(state="canceled", by="ann")
    assert (result.changed, result.failed, len(handles), seen(shop)) == (2, 1, 3, 2)
    assert [(each.job_id, each.error) for each in result.errors] == [(ids[1], "no credit left")]
    assert redrives(shop) == [ids[0], ids[2]]
    assert last(shop, ids[1])[0] == "cancel"
    own.app.close()


def test_kinds_with_and_without_admit_are_redriven_together(shop: Shop) -> None:
    """Each new job of a kind with `admit` is admitted."""
    ids = failed(shop, 1)
    for user in (1, 2):
        shop.paint.enqueue(user)
        lease = shop.claim(shop.paint)
        shop.settle(shop.paint, lease, FailedFinally("broken"))
        ids.append(lease.job.id)
    before = seen(shop)
    assert shop.app.bulk.redrive(phase="failed", by="ann").changed == 3
    assert (seen(shop), sorted(redrives(shop))) == (before + 2, ids)


def test_process_without_admit_redrives_no_job_of_its_kind(shop: Shop, place: Place) -> None:
    """As with one job. Jobs of other kinds are redriven."""
    stranger: App[Any] = App(place.url, schema=place.schema)
    shop.paint.enqueue(1)
    greetings(shop, 2)
    shop.app.bulk.cancel(phase="pending", by="ann")
    result = stranger.bulk.redrive(state="canceled", by="ann")
    assert (result.changed, result.failed) == (0, 1)
    assert "paint has an admit function, which this process does not have" in result.errors[0].error
    assert stranger.bulk.redrive(state="CANCELLED", by="ann").changed == 2
    stranger.close()


def test_payload_that_the_code_no_longer_accepts_fails_alone(shop: Shop) -> None:
    """The error names the job; the others are redriven."""
    store = shop.app.database.store()
    jobs = new_jobs(store, [shop.greet.request("Ann"), shop.greet.request("Bob"), shop.greet.request("Cat")])
    jobs[1].payload = '{"name":"Bob","times":"often"}'
    store.queue.enqueue(jobs)
    shop.app.bulk.cancel(kind="greet", by="ann")
    result = shop.app.bulk.redrive(state="CANCELLED", by="ann")
    assert (result.changed, result.failed, result.errors[0].job_id) == (2, 1, jobs[1].id)
    assert "times" in result.errors[0].error


def test_bulk_redrive_skips_a_job_whose_unique_key_is_taken(shop: Shop) -> None:
    """By another active job, or by an earlier job of the same operation."""
    for _ in range(2):
        shop.greet.using(unique_key="u").enqueue("Ann")
        shop.settle(shop.greet, shop.claim(shop.greet), FailedFinally("broken"))
    result = shop.app.bulk.redrive(kind="greet", by="ann")
    assert (result.changed, result.skipped) == (1, {KEY_TAKEN: 1})


def test_redriven_job_that_fails_at_once_is_not_redriven_again(shop: Shop, small: None) -> None:
    """The operation changes the jobs that matched when it began, and so it ends."""
    ids = failed(shop, 7)

    def fail(result: BulkResult) -> None:
        while job := next((job for job in shop.app.jobs(phase="pending")), None):
            lease = shop.claim(shop.greet)
            assert job.redrive_of
            shop.settle(shop.greet, lease, FailedFinally("broken again"))

    result = shop.app.bulk.redrive(kind="greet", by="ann", on_batch=fail)
    assert (result.changed, redrives(shop)) == (7, ids)


# ---------------------------------------------------------------- delete
def test_bulk_delete_removes_ended_jobs_and_keeps_their_history(shop: Shop, small: None) -> None:
    """The last entry says who deleted the job and why. Jobs that wait or run stay."""
    gone = [*failed(shop, 3), *succeeded(shop, 4)]
    kept = greetings(shop, 2)
    result = shop.app.bulk.delete(kind="greet", by="ann", reason="a test run")
    assert (result.matched, result.changed, result.skipped) == (7, 7, {})
    assert {job.id for job in shop.app.jobs()} == set(kept)
    assert {last(shop, id) for id in gone} == {("delete", "operator:ann", "a test run")}
    assert len(shop.app.history(gone[0])) == 4
    assert shop.app.bulk.delete(kind="greet", by="ann").matched == 0
    assert shop.app.verify().ok


def test_job_that_another_table_refers_to_is_not_deleted(shop: Shop, raw: Raw) -> None:
    """The error names the job; the others are deleted."""
    ids = failed(shop, 5)
    key = "uuid" if "uuid" in str(type(raw("SELECT id FROM {jobs}")[0][0])).lower() else "text"
    raw.script(
        f"CREATE TABLE orders_of_test (job {key} REFERENCES {raw.table('jobs')} (id));"
        f"INSERT INTO orders_of_test VALUES ('{ids[2]}')"
    )
    try:
        result = shop.app.bulk.delete(kind="greet", by="ann")
        assert (result.changed, result.failed, result.errors[0].job_id) == (4, 1, ids[2])
        assert [job.id for job in shop.app.jobs()] == [ids[2]]
        assert last(shop, ids[2])[0] == "fail"
    finally:
        raw.script("DROP TABLE orders_of_test")


def test_one_job_is_deleted(shop: Shop) -> None:
    """It is returned as it was. A job that has not ended is refused."""
    (id,) = failed(shop, 1)
    assert shop.app.delete(id, by="ann", reason="a test").state == "FAILED"
    assert last(shop, id) == ("delete", "operator:ann", "a test")
    (waiting,) = greetings(shop, 1)
    with pytest.raises(
        TransitionRefused, match=f"Job {waiting} is pending in PENDING. Only a job that has ended can be deleted"
    ):
        shop.app.delete(waiting, by="ann")
