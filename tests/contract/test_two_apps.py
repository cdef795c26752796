"""Two apps on one database: each moves only jobs of its own kinds."""

import pytest

from interlock.core.outcome import FailedFinally, Lost, Returned
from interlock.operate.verify import verify
from interlock.store.contract import Store
from interlock.store.types import KindFacts
from tests.contract.kit import LIFECYCLES, check, claim, claim_rules, claimed, decided, hooks_of, make, stored, taken
from tests.kit import Place

COURIER = ([LIFECYCLES["delivery"]], [KindFacts("deliver", "delivery")])
STUDIO = ([LIFECYCLES["image"]], [KindFacts("paint", "image", ("dead_letter",))])
Apps = tuple[Store, Store]


@pytest.fixture(params=["courier first", "studio first"])
def apps(request: pytest.FixtureRequest, place: Place) -> Apps:
    """A courier and a studio, each with its own store, that migrated in either order."""
    courier, studio = place.open(), place.open()
    for store, declared in (
        ((courier, COURIER), (studio, STUDIO))
        if request.param == "courier first"
        else ((studio, STUDIO), (courier, COURIER))
    ):
        store.registry.migrate(*declared)
    place.freeze()
    return courier, studio


def test_migration_keeps_the_transitions_of_other_apps(apps: Apps) -> None:
    """Protocol 14: the database accepts the transitions of all apps, in whatever order they were registered."""
    courier, studio = apps
    for store, kind in ((courier, "deliver"), (studio, "paint")):
        lease = claimed(store, kind)
        assert store.transitions.move([decided(lease, FailedFinally("broken"))]) == []
        check(store, lease.job.id)
    assert courier.inspect.counts() == {"delivery": {"FAILED": 1}, "image": {"dead_letter": 1}}
    assert verify(courier).ok


def test_each_app_claims_only_its_kinds(apps: Apps) -> None:
    """Protocol 4: they share a queue, and neither gets the other's jobs."""
    courier, studio = apps
    courier.queue.enqueue([make("deliver"), make("deliver")])
    studio.queue.enqueue([make("paint")])
    assert [lease.job.kind for lease in claim(courier, "deliver")] == ["deliver", "deliver"]
    assert [lease.job.kind for lease in claim(studio, "paint")] == ["paint"]


def test_each_app_adopts_only_its_kinds(apps: Apps, place: Place) -> None:
    """If a courier's maintenance buried a studio job, its hook would not run and credits would be lost."""
    courier, studio = apps
    claimed(courier, "deliver")
    lease = claimed(studio, "paint")
    place.clock.advance(31)
    assert [each.job.kind for each in courier.leases.adopt("k", ["deliver"], 30.0, 9)] == ["deliver"]
    assert studio.inspect.executions(lease.job.id)[0].holder == 1


def test_each_app_expires_only_its_kinds(apps: Apps, place: Place) -> None:
    """The other app's jobs are not even read."""
    courier, studio = apps
    mine = stored(courier, "deliver", ttl=1.0)
    stored(studio, "paint", ttl=1.0)
    place.clock.advance(2)
    assert [job.id for job in courier.inspect.expired(["deliver"], 9)] == [mine.id]
    assert courier.transitions.take([taken(mine, "expire")]) == []


def test_each_app_knows_the_hooks_of_the_other(apps: Apps) -> None:
    """The database stores which states only the other app's code may move a job into."""
    courier, studio = apps
    assert hooks_of(courier, "paint") == {"dead_letter"}
    assert hooks_of(studio, "deliver") == frozenset()


def test_second_migration_of_one_app_does_not_affect_the_other(apps: Apps, place: Place) -> None:
    """Neither its running jobs nor its registrations."""
    courier, studio = apps
    lease = claimed(studio, "paint")
    courier.registry.migrate(*COURIER)
    assert hooks_of(studio, "paint") == {"dead_letter"}
    assert studio.transitions.move([decided(lease, Returned("1", boundary=False))]) == []
    assert courier.registry.lifecycle("image", 1) == LIFECYCLES["image"]


def test_lifecycle_of_another_app_is_read_from_the_database(apps: Apps) -> None:
    """Showing or verifying a job needs no code of its app."""
    courier, studio = apps
    lease = claimed(studio, "paint")
    studio.transitions.move([decided(lease, Lost())])
    job = courier.inspect.get(lease.job.id)
    assert courier.registry.lifecycle(job.lifecycle, job.lifecycle_version).waiting >= {job.state}
    assert [rule.kind for rule in claim_rules("paint")] == ["paint", "paint"]
