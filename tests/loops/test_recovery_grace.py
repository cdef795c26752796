"""Recovery grace: after an outage, live workers can renew before leases are recovered. Hooks run in a recovery too."""

from collections.abc import Sequence

import pytest

from interlock.core.outcome import Returned
from interlock.store import OpenStore
from interlock.store.types import Heartbeat, MaintenanceDue
from interlock.telemetry.events import HookFailed
from tests.kit import Place
from tests.loops.test_maintenance import Shop, shop

__all__ = ["shop"]


# ---------------------------------------------------------------- hooks
def test_rule_27_hook_runs_in_a_transition_made_by_maintenance(shop: Shop) -> None:
    """The last loss makes two transitions, and the hook gets the job in its new state."""
    lease = shop.held(shop.paint)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    assert shop.job(lease).state == "dead_letter"
    assert shop.entered == [(lease.job.id, "dead_letter")]


def test_rule_27_failing_hook_is_retried_and_stops_no_other_job(shop: Shop) -> None:
    """The transition is not stored until the hook succeeds. The pauses grow, and maintenance continues meanwhile."""
    shop.broken = True
    lease, other = shop.held(shop.paint), shop.held(shop.mail)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    assert (shop.job(lease).state, shop.job(other).state) == ("running", "PENDING")
    tried = [1]
    for _ in range(11):
        shop.advance(1)
        shop.maintenance().run_once()
        tried.append(len(shop.entered))
    assert tried == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    shop.broken = False
    shop.advance(1)
    assert shop.maintenance().run_once() == 1
    assert (shop.job(lease).state, shop.job(lease).lease_losses) == ("dead_letter", 1)
    assert len(shop.told(HookFailed)) == 2
    assert [entry.event for entry in shop.store.inspect.history(lease.job.id) if entry.n].count("hook_failed") == 1


# ---------------------------------------------------------------- live workers renew first
def test_rule_03_after_an_outage_no_lease_is_recovered_for_one_heartbeat(shop: Shop) -> None:
    """A worker that renews meanwhile keeps its lease. The lease of a dead worker is recovered."""
    alive, dead = shop.held(shop.mail), shop.held(shop.mail, by="bob")
    maintenance = shop.maintenance()
    maintenance.run_once()
    shop.advance(60)
    maintenance.note_unreachable()
    assert (maintenance.run_once(), maintenance.recover()) == (0, 0)
    shop.advance(2.5)
    assert maintenance.run_once() == 0
    assert shop.store.leases.renew([Heartbeat(alive.fence, 30.0)]).renewed == [alive.fence]
    for _ in range(3):
        shop.advance(2.5)
        maintenance.run_once()
    assert (shop.job(alive).phase, shop.job(dead).phase) == ("running", "pending")
    shop.move(alive, Returned("null", boundary=False))


def test_rule_03_other_maintenance_continues_during_the_grace(shop: Shop) -> None:
    """Only expired leases have to wait."""
    waiting = shop.mail.using(ttl=5).enqueue().id
    shop.advance(6)
    maintenance = shop.maintenance()
    maintenance.note_unreachable()
    assert maintenance.run_once() == 1
    assert shop.store.inspect.get(waiting).state == "EXPIRED"


def test_rule_03_frozen_maintenance_waits_for_one_heartbeat(shop: Shop) -> None:
    """It cannot know whether it was frozen or the database was."""
    lease = shop.held(shop.mail)
    maintenance = shop.maintenance()
    maintenance.run_once()
    shop.advance(31)
    assert maintenance.run_once() == 0
    shop.advance(9)
    assert maintenance.run_once() == 0
    shop.advance(1)
    assert maintenance.run_once() == 1
    assert shop.job(lease).phase == "pending"


def test_rule_03_frozen_database_is_noticed_before_leases_are_recovered(shop: Shop) -> None:
    """The database answers half a minute late."""
    shop.held(shop.mail)

    ask = shop.store.inspect.maintenance_due

    def slowly(kinds: Sequence[str]) -> MaintenanceDue:
        shop.store.inspect.maintenance_due = ask  # type: ignore[method-assign]
        shop.advance(31)
        return ask(kinds)

    shop.store.inspect.maintenance_due = slowly  # type: ignore[method-assign]
    maintenance = shop.maintenance()
    assert maintenance.run_once() == 0
    shop.advance(10)
    assert maintenance.run_once() == 1


def test_maintenance_that_is_always_late_still_recovers(shop: Shop) -> None:
    """On an overloaded machine, every second round recovers leases."""
    maintenance = shop.maintenance()
    maintenance.run_once()
    found = []
    for _ in range(4):
        shop.held(shop.mail)
        shop.advance(31)
        found.append(maintenance.run_once())
    assert found == [0, 2, 0, 2]


def test_rule_03_no_lease_is_recovered_within_one_heartbeat_of_the_server_start(shop: Shop) -> None:
    """Its clients are still reconnecting."""
    shop.held(shop.mail)
    shop.advance(31)
    shop.up = 4.0
    maintenance = shop.maintenance()
    found = []
    for _ in range(4):
        found.append(maintenance.run_once())
        shop.advance(2)
        shop.up += 2
    assert found == [0, 0, 0, 1]


@pytest.mark.parametrize("up", [-3600.0, float("-inf"), float("nan")])
def test_recovery_does_not_wait_for_a_server_that_started_in_the_future(shop: Shop, up: float) -> None:
    """The server's clock was set back to before its start, so its uptime is meaningless."""
    shop.held(shop.mail)
    shop.advance(31)
    shop.up = up
    assert shop.maintenance().run_once() == 1


def test_worker_that_cannot_reach_the_database_recovers_no_lease(shop: Shop) -> None:
    """If its own renewals fail, those of other workers may fail too."""
    shop.held(shop.mail)
    shop.advance(31)
    context = shop.context()
    maintenance = shop.maintenance(context=context)
    context.database_down.set()
    assert maintenance.run_once() == 0
    context.database_down.clear()
    shop.advance(2)
    assert maintenance.run_once() == 0


def test_store_returns_the_uptime_of_its_server(store: OpenStore, place: Place) -> None:
    """The uptime is in real seconds, independent of the clock of leases. SQLite has no server and returns None."""
    up = store.inspect.uptime()
    if place.url.startswith("sqlite"):
        assert up is None
    else:
        assert up is not None
        assert 0 < up <= (store.inspect.uptime() or 0) < up + 3600
