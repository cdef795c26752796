"""The app's verbs for operators and for asyncio, and how it opens and closes."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from interlock import (
    App,
    InterlockError,
    Lifecycle,
    NotFound,
    NotMigrated,
    TransitionRefused,
)
from interlock.core.outcome import Returned
from tests.conftest import Places
from tests.kit import Place, Raw
from tests.surface.test_app import Shop, seen, shop

__all__ = ["shop"]


@pytest.fixture
def places(empty_places: Places) -> Places:
    """Databases in which nothing is migrated."""
    return empty_places


# ---------------------------------------------------------------- operate
def test_cancel_ends_a_waiting_job(shop: Shop) -> None:
    """The operator's cancel is an execution; a second cancel changes nothing."""
    id = shop.greet.enqueue("Ann").id
    job = shop.app.cancel(id, by="ann", reason="enough\0")
    assert (job.state, job.phase, job.attempt) == ("CANCELLED", "failed", 1)
    assert shop.app.cancel(id, by="bob") == job
    (execution,) = shop.app.executions(id)
    assert (execution.status, execution.lease_owner, execution.ended_by, execution.error) == (
        "ABORTED",
        "operator:ann",
        "cancel",
        "enough\ufffd",
    )


def test_cancel_of_a_running_job_is_a_request(shop: Shop) -> None:
    """The phase says that the job still runs, and it may still succeed; then it cannot be cancelled."""
    id = shop.greet.enqueue("Ann").id
    lease = shop.claim(shop.greet)
    job = shop.app.cancel(id, by="ann")
    assert (job.phase, job.cancel_requested_by) == ("running", "operator:ann")
    assert shop.app.cancel(id, by="bob").cancel_requested_by == "operator:ann"
    shop.settle(shop.greet, lease, Returned("3", boundary=False))
    with pytest.raises(TransitionRefused, match="has already ended in SUCCEEDED"):
        shop.app.cancel(id, by="ann")


def test_cancel_is_refused_if_it_is_not_allowed_or_too_late(shop: Shop) -> None:
    """Each refusal has its own message, and nothing changes."""
    waiting_id = shop.chore.enqueue().id
    with pytest.raises(TransitionRefused, match="`cancel` is not allowed from pending by the lifecycle task"):
        shop.app.cancel(waiting_id, by="ann")
    shop.claim(shop.chore)
    with pytest.raises(TransitionRefused, match="is running in running, and its lifecycle task has no `cancel`"):
        shop.app.cancel(waiting_id, by="ann")
    id = shop.greet.enqueue("Ann").id
    shop.settle(shop.greet, shop.claim(shop.greet), Returned("3", boundary=True))
    with pytest.raises(TransitionRefused, match="passed its commit"):
        shop.app.cancel(id, by="ann")
    assert shop.app.get(id).cancel_requested_at is None


def test_reject_ends_a_waiting_job_and_runs_its_hook(shop: Shop) -> None:
    """The hook runs in the transaction of the move; if it raises, nothing is stored."""
    id = shop.paint.enqueue(1).id
    assert shop.app.reject(id, by="ann", reason="unsafe").state == "rejected"
    assert ([each for each, _ in shop.entered], seen(shop)) == ([id], 2)
    broken = shop.paint.enqueue(99).id
    with pytest.raises(RuntimeError, match="the hook is broken"):
        shop.app.reject(broken, by="ann", reason="unsafe")
    assert (shop.app.get(broken).state, seen(shop)) == ("queued", 3)
    with pytest.raises(TransitionRefused, match="needs a job that waits"):
        shop.app.reject(id, by="ann", reason="again")


def test_process_without_the_hook_cannot_make_the_transition(shop: Shop, place: Place) -> None:
    """Protocol 4: otherwise the hook would not run and the job's credits would be lost. Transitions without a hook are
    allowed.
    """
    stranger = App(place.url, schema=place.schema)
    id = shop.paint.enqueue(1).id
    with pytest.raises(TransitionRefused, match="has a hook on rejected, which must run"):
        stranger.reject(id, by="ann", reason="no")
    assert shop.app.get(id).state == "queued"
    assert stranger.cancel(id, by="ann").state == "canceled"
    stranger.close()


# ---------------------------------------------------------------- asyncio
def test_every_verb_has_an_async_twin(shop: Shop) -> None:
    """It returns the same and runs in a thread."""

    async def twins() -> None:
        made = await shop.greet.aenqueue("Ann")
        named = await shop.app.aenqueue_named("greet", {"name": "Bob"})
        several = await shop.app.aenqueue_many([shop.greet.request("Cat"), shop.greet.request("Dan")])
        assert await shop.app.aget(made.id) == shop.app.get(made.id)
        assert {job.id for job in await shop.app.ajobs(kind="greet")} == {
            made.id,
            named.id,
            *(each.id for each in several),
        }
        assert (await shop.app.acancel(made.id, by="ann")).state == "CANCELLED"
        assert len(await shop.app.aexecutions(made.id)) == 1
        assert len(await shop.app.ahistory(made.id)) == 2
        assert (await shop.app.averify()).ok
        await shop.app.amigrate()
        await shop.app.aclose()
        assert (await shop.app.areject((await shop.paint.aenqueue(1)).id, by="ann", reason="no")).state == "rejected"

    asyncio.run(twins())


def test_caller_connection_is_used_in_its_own_thread(shop: Shop, raw: Raw) -> None:
    """Also from asyncio: no other thread may use it."""

    async def borrow() -> list[str]:
        with raw.transaction() as conn:
            made = await shop.greet.using(conn=conn).aenqueue("Ann")
            several = await shop.app.aenqueue_many([shop.greet.request("Bob")], conn=conn)
        return [made.id, several[0].id]

    made = asyncio.run(borrow())
    assert {job.id for job in shop.app.jobs()} == set(made)


# ---------------------------------------------------------------- opening and closing
def test_only_a_new_sqlite_file_is_migrated_automatically(place: Place) -> None:
    """Any other database needs `migrate`, and the error says so."""
    shop = Shop(place)
    if place.url.startswith("sqlite"):
        assert shop.greet.enqueue("Ann").created
    else:
        with pytest.raises(NotMigrated, match="interlock migrate -A module:app"):
            shop.greet.enqueue("Ann")
    shop.app.close()


def test_unregistered_lifecycle_needs_migrate(shop: Shop) -> None:
    """Its kind was declared after the last migration."""
    late = Lifecycle(
        "late", transitions=[("a", "claim", "b"), ("b", "succeed", "c"), ("b", "fail", "d"), ("b", "lose", "a")]
    )
    kind = shop.app.job(kind="late", lifecycle=late)(shop.greet.spec.signature.fn)
    with pytest.raises(NotMigrated, match="interlock migrate -A module:app"):
        kind.enqueue("Ann")
    shop.app.migrate()
    assert shop.app.get(kind.enqueue("Ann").id).state == "a"


def test_bound_to_switches_the_app_to_another_database(shop: Shop, tmp_path: Path) -> None:
    """Until the block ends."""
    home = shop.greet.enqueue("Ann").id
    with shop.app.bound_to(f"sqlite:///{tmp_path / 'elsewhere.db'}") as bound:
        assert bound is shop.app
        away = shop.greet.enqueue("Bob").id
        assert [job.id for job in bound.jobs()] == [away]
    assert [job.id for job in shop.app.jobs()] == [home]


def test_closed_app_can_be_used_again(shop: Shop) -> None:
    """The next verb opens it."""
    id = shop.greet.enqueue("Ann").id
    shop.app.close()
    shop.app.close()
    assert shop.app.get(id).id == id


def test_concurrent_threads_open_one_store(shop: Shop) -> None:
    """The first verbs of all threads run at once."""
    shop.app.close()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(shop.app.database.store())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_opens_its_own_store(shop: Shop) -> None:
    """The parent's connections keep working."""
    job_id = shop.greet.enqueue("Ann").id
    child = os.fork()
    if child == 0:
        try:
            shop.greet.enqueue("Bob")
            os._exit(0 if shop.app.get(job_id).id == job_id else 1)
        except BaseException:  # noqa: BLE001 - a child of a test must never come back as a second pytest
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert len(shop.app.jobs()) == 2


def test_unknown_job_is_not_found(shop: Shop) -> None:
    """For ids of any form."""
    for id in ("nothing", "", "01a1e104-6dc6-71be-8320-b9954750f277"):
        with pytest.raises(NotFound):
            shop.app.get(id)
        with pytest.raises(InterlockError):
            shop.app.cancel(id, by="ann")
