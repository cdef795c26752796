"""migrate and the registry: the lifecycles, kinds and hooks that the database knows."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from interlock.core.lifecycle import Lifecycle
from interlock.core.limits import Limit
from interlock.errors import InterlockError, NotFound, NotMigrated
from interlock.store.contract import Store
from interlock.store.flow_types import DeclaredLimit
from interlock.store.types import KindFacts
from tests.conftest import Places
from tests.contract.kit import FACTS, LIFECYCLES, claim_rules, claimed, finish, hooks_of, limit, make
from tests.kit import Place, Raw

ALL = list(LIFECYCLES.values())
SHORT = Lifecycle(
    "short",
    transitions=[("NEW", "claim", "BUSY"), ("BUSY", "succeed", "OK"), ("BUSY", "fail", "BAD"), ("BUSY", "lose", "NEW")],
)
LONGER = Lifecycle(
    "short", transitions=[*((a.source, a.event, a.target) for a in SHORT.arrows), ("NEW", "cancel", "GONE")]
)


@pytest.fixture
def places(empty_places: Places) -> Places:
    """Databases in which nothing is migrated."""
    return empty_places


def test_first_version_of_a_lifecycle_is_1(place: Place) -> None:
    """The result of the migration names the version."""
    assert dict(place.open().registry.migrate(ALL, FACTS).versions) == dict.fromkeys(LIFECYCLES, 1)


def test_second_migration_changes_nothing(store: Store, raw: Raw) -> None:
    """A migration with the same declarations changes nothing in the database."""
    before = raw.dump()
    assert dict(store.registry.migrate(ALL, FACTS).versions) == dict.fromkeys(LIFECYCLES, 1)
    assert raw.dump() == before


def test_migration_does_not_affect_the_clock_or_running_jobs(store: Store, other: Store) -> None:
    """A migration during a running job does not affect it."""
    lease = claimed(store)
    other.registry.migrate([*ALL, SHORT], FACTS)
    assert store.inspect.now() == other.inspect.now()
    assert finish(store, lease).job.state == "SUCCEEDED"


def test_changed_lifecycle_gets_the_next_version(store: Store) -> None:
    """A lifecycle with the same transitions keeps its version, also after later changes; a changed one gets the next
    version.
    """
    assert store.registry.migrate([SHORT], []).versions["short"] == 1
    assert store.registry.migrate([LONGER], []).versions["short"] == 2
    assert store.registry.migrate([SHORT], []).versions["short"] == 1
    assert (store.registry.version_of(SHORT), store.registry.version_of(LONGER)) == (1, 2)


def test_order_of_transitions_does_not_change_the_version(store: Store, raw: Raw) -> None:
    """The same transitions in another order are the same version."""
    store.registry.migrate([SHORT], [])
    before = raw.dump()
    turned = Lifecycle(
        "short", transitions=[(a.source, a.event, a.target) for a in reversed(SHORT.arrows)], initial="NEW"
    )
    assert store.registry.migrate([turned], []).versions["short"] == 1
    assert raw.dump() == before


def test_registered_lifecycle_is_read_back(store: Store, other: Store) -> None:
    """A lifecycle that only another app's code knows is read from the database, equal to the registered one."""
    store.registry.migrate([SHORT], [])
    store.registry.migrate([LONGER], [])
    assert (other.registry.lifecycle("short", 1), other.registry.lifecycle("short", 2)) == (SHORT, LONGER)


def test_unknown_lifecycle_is_not_found(store: Store) -> None:
    """For an unknown name and for an unknown version."""
    for name, version in (("short", 1), ("standard", 2)):
        with pytest.raises(NotFound, match=name):
            store.registry.lifecycle(name, version)


def test_error_for_an_unregistered_lifecycle_names_the_command(store: Store) -> None:
    """The error says which command to run."""
    with pytest.raises(NotMigrated, match="interlock migrate"):
        store.registry.version_of(SHORT)
    store.registry.migrate([SHORT], [])
    with pytest.raises(NotMigrated, match="interlock migrate"):
        store.registry.version_of(LONGER)


def test_every_verb_refuses_an_empty_database(place: Place) -> None:
    """Before the first migration, verbs name the command to run instead of failing on a missing table."""
    store = place.open()
    assert store.registry.is_empty()
    verbs = [
        lambda: store.queue.enqueue([make()]),
        lambda: store.queue.claim("ann", claim_rules("mail"), ["default"], 1),
        lambda: store.leases.adopt("ann", ["mail"], 30.0, 1),
        lambda: store.inspect.get(make().id),
        store.inspect.counts,
        lambda: store.registry.version_of(SHORT),
    ]
    for verb in verbs:
        with pytest.raises(NotMigrated, match="interlock migrate"):
            verb()
    assert store.registry.is_empty()
    store.registry.migrate(ALL, FACTS)
    assert not store.registry.is_empty()


def test_database_newer_than_the_code_is_refused(store: Store, other: Store, raw: Raw) -> None:
    """Old code does not change a newer schema."""
    raw("UPDATE {schema_version} SET version = version + 1")
    before = raw.dump()
    for verb in (lambda: other.registry.migrate([SHORT], []), lambda: other.queue.enqueue([make()])):
        with pytest.raises(InterlockError, match="newer"):
            verb()
    assert raw.dump() == before


def test_database_from_before_the_first_release_is_refused(store: Store, other: Store, raw: Raw) -> None:
    """Its columns have other names. No verb touches it, and the error says what to do."""
    raw("UPDATE {schema_version} SET version = 2")
    before = raw.dump()
    for verb in (lambda: other.registry.migrate([SHORT], []), lambda: other.queue.enqueue([make()])):
        with pytest.raises(InterlockError, match=r"from before the first release.*use a new database"):
            verb()
    assert raw.dump() == before


def test_printed_migration_makes_a_working_database(place: Place) -> None:
    """The printed SQL, run by hand, makes the same database as `migrate`."""
    place.raw.script(place.open().registry.migration_sql(ALL, FACTS))
    place.freeze()
    store = place.open()
    assert store.registry.version_of(LIFECYCLES["image"]) == 1
    assert finish(store, claimed(store)).job.state == "SUCCEEDED"
    before = place.raw.dump()
    store.registry.migrate(ALL, FACTS)
    assert place.raw.dump() == before


def test_hooks_are_those_of_the_last_migration(store: Store, other: Store) -> None:
    """Processes without the code know which states have hooks."""
    store.registry.migrate(ALL, [KindFacts("paint", "image", ("dead_letter", "completed"))])
    assert hooks_of(other, "paint") == {"dead_letter", "completed"}
    store.registry.migrate(ALL, [KindFacts("paint", "image", ("completed",))])
    assert hooks_of(other, "paint") == {"completed"}
    assert hooks_of(other, "mail") == frozenset()


def test_migration_keeps_a_limit_that_an_operator_changed(store: Store) -> None:
    """Until it is reset to what the code declares."""
    declared = DeclaredLimit("kind", "mail", Limit(3, "10/s"))
    store.registry.migrate(ALL, FACTS, [declared])
    assert [(each.limit, each.declared) for each in store.limits.all()] == [(Limit(3, "10/s", 10),) * 2]
    limit(store, "kind", "mail", max_running=7)
    store.registry.migrate(ALL, FACTS, [replace(declared, limit=Limit(4))])
    (seen,) = store.limits.all()
    assert (seen.limit, seen.declared, seen.changed_by) == (Limit(7, "10/s", 10), Limit(4), "operator:olga")
    assert store.limits.reset("kind", "mail", by="operator:olga", reason=None)
    assert [each.limit for each in store.limits.all()] == [Limit(4)]
    store.registry.migrate(ALL, FACTS, [replace(declared, limit=Limit())])
    assert store.limits.all() == []


def test_concurrent_migrations_succeed(place: Place) -> None:
    """Eight processes that deploy together succeed, and agree on the versions."""
    stores = [place.open(real_time=True) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda store: store.registry.migrate([*ALL, SHORT], FACTS), stores))
    assert {tuple(sorted(answer.versions.items())) for answer in answers} == {
        tuple(sorted(dict.fromkeys([*LIFECYCLES, "short"], 1).items()))
    }
    assert place.raw("SELECT count(*) FROM {lifecycles}") == [(7,)]
