"""Partitions of the audit on PostgreSQL: workers create months ahead, and drop them after their archive."""

from interlock import AuditEntry
from interlock.core.outcome import Returned
from interlock.maintenance.audit_retention import AuditRetention
from tests.contract.partition_kit import APRIL, FEBRUARY, JANUARY, MARCH, months, place
from tests.loops.test_maintenance import DAY, Shop, shop

__all__ = ["place", "shop"]


def test_worker_creates_coming_months_and_drops_archived_ones(shop: Shop) -> None:
    """A month is dropped when it ended longer ago than the `audit` retention; each entry is archived once."""
    out: list[AuditEntry] = []
    raw = shop.place.raw
    assert shop.store.retention.partition_audit()
    lease = shop.held(shop.mail)
    shop.move(lease, Returned("null", boundary=False))
    history = shop.store.inspect.history(lease.job.id)
    maintenance = shop.maintenance(
        retention={"succeeded": 7 * DAY}, audit_retention=AuditRetention(30 * DAY, out.extend)
    )
    maintenance.run_once()
    assert (out, months(raw)) == ([], [JANUARY, FEBRUARY, MARCH])
    _live_through(shop, maintenance.run_once, days=59)
    assert (out, months(raw)[:2]) == (history, [JANUARY, FEBRUARY])
    _live_through(shop, maintenance.run_once, days=3)
    assert (out, months(raw)) == (history, [FEBRUARY, MARCH, APRIL, "audit_2026_05"])


def _live_through(shop: Shop, run: object, *, days: int) -> None:
    assert callable(run)
    for _ in range(days):
        shop.advance(DAY)
        run()
