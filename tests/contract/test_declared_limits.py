"""Limits that the code declares: what a migration stores, changes and removes."""

import pytest

from interlock.core.limits import Limit, Scope
from interlock.store.contract import Store
from interlock.store.flow_types import DeclaredLimit
from interlock.store.types import KindFacts
from tests.contract.kit import CONTENTS, LIFECYCLES, claim, finish, limit, make, many, pause
from tests.kit import Raw


def declare(store: Store, *limits: tuple[Scope, str, Limit]) -> None:
    declared = [DeclaredLimit(*each) for each in limits]
    store.registry.migrate(CONTENTS.lifecycles, CONTENTS.kinds, declared)


def seen(store: Store) -> dict[tuple[str, str], Limit]:
    return {(each.scope, each.name): each.limit for each in store.limits.all()}


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("after", [Limit(5), Limit(), None])
def test_deploy_that_raises_or_removes_a_limit_starts_waiting_jobs(
    store: Store, before: int, after: Limit | None
) -> None:
    """The jobs of full concurrency keys had no check that a claim would look at."""
    declare(store, ("key", "mail", Limit(before)))
    store.queue.enqueue(many(4, concurrency_key="a"))
    leases = claim(store)
    assert (len(leases), claim(store)) == (before, [])
    declare(store, *(() if after is None else [("key", "mail", after)]))  # type: ignore[list-item]
    assert len(claim(store)) == 4 - before


def test_limit_that_a_kind_no_longer_declares_is_removed(store: Store) -> None:
    """The row of the keys stays without a limit, because jobs with keys may exist; a queue may be another app's."""
    declare(
        store,
        ("kind", "mail", Limit(2)),
        ("key", "mail", Limit(1, "1/s")),
        ("kind", "chore", Limit(4)),
        ("queue", "default", Limit(9)),
    )
    declare(store, ("kind", "chore", Limit(4)))
    assert seen(store) == {("key", "mail"): Limit(), ("kind", "chore"): Limit(4), ("queue", "default"): Limit(9)}
    store.queue.enqueue(many(3, concurrency_key="a"))
    assert len(claim(store)) == 3
    declare(store, ("queue", "default", Limit()))
    assert seen(store) == {("key", "mail"): Limit()}


def test_limit_of_another_apps_kind_stays(store: Store) -> None:
    declare(store, ("kind", "mail", Limit(2)), ("key", "mail", Limit(1)))
    store.registry.migrate([LIFECYCLES["task"]], [KindFacts("chore", "task")])
    assert seen(store) == {("key", "mail"): Limit(1), ("kind", "mail"): Limit(2)}


def test_changes_at_run_time_and_pauses_outlive_the_declaration(store: Store) -> None:
    declare(store, ("kind", "mail", Limit(2)), ("key", "mail", Limit(1)))
    limit(store, "kind", "mail", max_running=7)
    pause(store, "kind", "mail")
    declare(store)
    assert seen(store)["kind", "mail"] == Limit(7)
    assert store.limits.reset("kind", "mail", by="olga", reason=None)
    (row,) = [each for each in store.limits.all() if each.scope == "kind"]
    assert (row.limit, row.declared, row.paused_by) == (Limit(), None, "operator:olga")


def test_migration_without_a_change_writes_and_announces_nothing(store: Store, raw: Raw) -> None:
    limits: list[tuple[Scope, str, Limit]] = [
        ("kind", "mail", Limit(2)),
        ("key", "mail", Limit(1)),
        ("kind", "chore", Limit()),
        ("queue", "wide", Limit()),
    ]
    declare(store, *limits)
    store.queue.enqueue([make(concurrency_key="a"), make(concurrency_key="a")])
    finish(store, *claim(store))
    before = raw("SELECT count(*) FROM {key_checks}")
    declare(store, *limits)
    assert raw("SELECT count(*) FROM {key_checks}") == before
