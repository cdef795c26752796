"""After an outage, living workers renew before anything is recovered; hooks run in a recovery too."""

import pytest

from interlock.core.outcome import Returned
from interlock.store import OpenStore
from interlock.store.types import Heartbeat
from interlock.telemetry.events import HookFailed
from tests.kit import Place
from tests.loops.test_maintenance import Shop, shop

__all__ = ["shop"]


# ---------------------------------------------------------------- hooks
def test_rule_27_the_hook_runs_with_the_move_that_a_maintenance_makes(shop: Shop) -> None:
    """Both arrows of the last loss are walked, and the state's function sees the job there."""
    lease = shop.held(shop.paint)
    shop.advance(31)
    assert shop.maintenance().run_once() == 1
    assert shop.job(lease).state == "dead_letter"
    assert shop.entered == [(lease.job.id, "dead_letter")]


def test_rule_27_a_hook_that_raises_is_tried_again_ever_later_and_stops_no_other(shop: Shop) -> None:
    """The move is not made meanwhile, and the maintenance waits for nobody."""
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


# ---------------------------------------------------------------- the living renew first
def test_rule_03_after_an_absence_nothing_is_swept_for_one_beat(shop: Shop) -> None:
    """Who renews meanwhile keeps the lease; who does not is dead."""
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
    """Only other holders' leases need time."""
    waiting = shop.mail.using(ttl=5).enqueue().id
    shop.advance(6)
    maintenance = shop.maintenance()
    maintenance.note_unreachable()
    assert maintenance.run_once() == 1
    assert shop.store.inspect.get(waiting).state == "EXPIRED"


def test_rule_03_a_maintenance_that_stood_still_lets_a_beat_pass(shop: Shop) -> None:
    """It was frozen, or the database was: it cannot know which."""
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


def test_rule_03_a_database_that_stood_still_is_noticed_before_it_is_told_to_take(shop: Shop) -> None:
    """The answer came, but half a minute late."""
    shop.held(shop.mail)

    def slowly() -> float | None:
        shop.store.inspect.uptime = lambda: None  # type: ignore[method-assign]
        shop.advance(31)
        return None

    shop.store.inspect.uptime = slowly  # type: ignore[method-assign]
    maintenance = shop.maintenance()
    assert maintenance.run_once() == 0
    shop.advance(10)
    assert maintenance.run_once() == 1


def test_a_maintenance_that_is_always_late_recovers_all_the_same(shop: Shop) -> None:
    """On a machine without breath every second look is a sweep."""
    maintenance = shop.maintenance()
    maintenance.run_once()
    found = []
    for _ in range(4):
        shop.held(shop.mail)
        shop.advance(31)
        found.append(maintenance.run_once())
    assert found == [0, 2, 0, 2]


def test_rule_03_within_one_beat_of_the_servers_start_nothing_is_swept(shop: Shop) -> None:
    """Its clients are only just coming back."""
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
def test_server_that_started_in_the_future_is_swept_at_once(shop: Shop, up: float) -> None:
    """Its clock was set back behind its own start, so its uptime says nothing, and recovery does not wait for it."""
    shop.held(shop.mail)
    shop.advance(31)
    shop.up = up
    assert shop.maintenance().run_once() == 1


def test_a_worker_that_misses_the_database_does_not_sweep(shop: Shop) -> None:
    """Where our own renewals do not get through, neither do others'."""
    shop.held(shop.mail)
    shop.advance(31)
    context = shop.context()
    maintenance = shop.maintenance(context=context)
    context.database_down.set()
    assert maintenance.run_once() == 0
    context.database_down.clear()
    shop.advance(2)
    assert maintenance.run_once() == 0


def test_the_store_says_how_long_its_server_is_up(store: OpenStore, place: Place) -> None:
    """In real seconds, whatever the clock of leases says. A file has no server."""
    up = store.inspect.uptime()
    if place.url.startswith("sqlite"):
        assert up is None
    else:
        assert up is not None
        assert 0 < up <= (store.inspect.uptime() or 0) < up + 3600
