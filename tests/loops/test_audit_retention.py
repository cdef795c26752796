"""Audit retention: workers archive the history of jobs that were deleted long enough ago."""

from collections.abc import Sequence

import pytest

from interlock import App, AuditEntry
from interlock.core.outcome import Returned
from interlock.errors import UsageError
from interlock.maintenance.audit_retention import AuditRetention
from interlock.telemetry.events import WorkerError
from tests.loops.test_maintenance import DAY, Shop, shop

__all__ = ["shop"]


def ended(shop: Shop) -> str:
    """Return the id of a job that has just succeeded."""
    lease = shop.held(shop.mail)
    shop.move(lease, Returned("null", boundary=False))
    return lease.job.id


def test_history_of_deleted_jobs_is_archived_after_its_retention(shop: Shop) -> None:
    """Each entry is passed to the function once, and the history of a job that still exists stays."""
    out: list[AuditEntry] = []
    old = ended(shop)
    shop.advance(10 * DAY)
    kept = ended(shop)
    maintenance = shop.maintenance(
        retention={"succeeded": 7 * DAY}, audit_retention=AuditRetention(30 * DAY, out.extend)
    )
    maintenance.run_once()
    assert out == []
    history = shop.store.inspect.history(old)
    shop.advance(21 * DAY - 60)
    maintenance = shop.maintenance(audit_retention=AuditRetention(30 * DAY, out.extend))
    assert maintenance.run_once() == 1
    assert out == history
    assert shop.store.inspect.history(old) == []
    assert len(shop.store.inspect.history(kept)) == 3


def test_history_stays_while_the_archive_function_fails(shop: Shop) -> None:
    """The worker reports the error and tries again after a minute, not every second."""
    calls: list[float] = []

    def broken(entries: Sequence[AuditEntry]) -> None:
        calls.append(shop.sleeper.at)
        raise SystemExit("the bucket is gone")

    id = ended(shop)
    shop.advance(DAY)
    maintenance = shop.maintenance(retention={"succeeded": 1.0}, audit_retention=AuditRetention(1.0, broken))
    for _ in range(121):
        maintenance.run_once()
        shop.advance(1)
    assert len(calls) == 3
    assert len(shop.store.inspect.history(id)) == 3
    assert "the bucket is gone" in str(shop.told(WorkerError)[0].error)


def test_archive_function_cannot_use_the_app_outside_its_transaction(shop: Shop) -> None:
    """A call that needs its own transaction raises instead of waiting for the one that is open."""

    def archive(entries: Sequence[AuditEntry]) -> None:
        shop.app.cancel(entries[0].job_id, by="ann")

    ended(shop)
    shop.advance(DAY)
    maintenance = shop.maintenance(retention={"succeeded": 1.0}, audit_retention=AuditRetention(1.0, archive))
    maintenance.run_once()
    assert "UsageError" in str(shop.told(WorkerError)[0].error)


def test_age_for_audit_needs_an_archive_function(shop: Shop) -> None:
    """A function also needs an age: history is deleted only after it was stored elsewhere."""
    with pytest.raises(UsageError, match="archive="):
        App("sqlite://", retention={"audit": 1})
    with pytest.raises(UsageError, match="archive="):
        App("sqlite://", archive=print)
    plan = App(shop.place.url, schema=shop.place.schema, retention={"audit": 60}, archive=print).audit_retention
    assert plan == AuditRetention(60.0, print)
