"""The app's verbs, on both databases."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock import (
    App,
    Enqueued,
    InterlockError,
    Job,
    JobFailed,
    KeyReused,
    Kind,
    Lifecycle,
    NotFound,
    NotMigrated,
    PayloadError,
    Refused,
    Run,
    SyncRun,
    TransitionRefused,
)
from interlock.errors import UsageError
from interlock.move import decide
from interlock.outcome import Outcome, Returned
from interlock.records import Lease
from interlock.waits import Waits
from tests.kit import Place, Raw

IMAGE = Lifecycle("image", transitions=[
    ("queued", "claim", "running"), ("queued", "reject", "rejected"), ("queued", "cancel", "canceled"), ("running", "succeed", "completed"),
    ("running", "fail", "failed"), ("running", "lose", "queued"), ("failed", "retry", "queued"), ("failed", "bury", "dead_letter"),
])
TASK = Lifecycle("task", transitions=[
    ("pending", "claim", "running"), ("running", "succeed", "done"), ("running", "fail", "error"), ("running", "lose", "pending"),
])


class Shop:
    """An app with its kinds, and the hands of a worker."""

    def __init__(self, place: Place, transaction: Callable[[], AbstractContextManager[Any]] | None = None) -> None:
        self.app: App[Any] = App(place.url, schema=place.schema) if transaction is None else App(place.url, schema=place.schema, transaction=transaction)
        self.entered: list[tuple[str, str]] = []

        @self.app.job()
        async def greet(run: Run, name: str, times: int = 1) -> int:
            return len(name) * times

        @self.app.job(lifecycle=IMAGE)
        def paint(run: SyncRun, user: int) -> None: ...

        @self.app.job(lifecycle=TASK)
        def chore(run: SyncRun) -> None: ...

        @paint.admit
        def credit(tx: Any, user: int) -> None:
            tx.execute("insert into seen values (1)")
            if user == 13:
                raise ValueError("no credit left")

        @paint.on_enter("rejected")
        def keep(tx: Any, job: Job) -> None:
            tx.execute("insert into seen values (2)")
            self.entered.append((job.id, job.state))
            if job.payload["user"] == 99:
                raise RuntimeError("the hook is broken")

        self.greet, self.paint, self.chore = greet, paint, chore

    def claim(self, kind: Kind[..., Any, Any]) -> Lease:
        store = self.app.database.store()
        (lease,) = store.claim("ann", kind.ways(store.version_of(kind.declaration.lifecycle)), ["default"], 1)
        return lease

    def settle(self, kind: Kind[..., Any, Any], lease: Lease, outcome: Outcome) -> None:
        store = self.app.database.store()
        assert store.move([decide(kind.declaration.lifecycle, lease.job, lease, outcome, kind.policy, 0.5, actor="ann")]) == []


@pytest.fixture
def shop(place: Place) -> Iterator[Shop]:
    made = Shop(place)
    made.app.migrate()
    with made.app.transaction() as tx:
        tx.execute("create table seen (n int)")
    yield made
    with made.app.transaction() as tx:
        tx.execute("drop table seen")
    made.app.close()


def seen(shop: Shop) -> int:
    with shop.app.transaction() as tx:
        return int(tx.execute("select count(*) from seen").fetchone()[0])


# ---------------------------------------------------------------- enqueue
def test_a_job_comes_back_as_it_was_enqueued(shop: Shop) -> None:
    """Arguments by name, and every option in its place."""
    made = shop.greet.using(queue="slow", priority=5, ttl=60, tags={"user": "7"}, unique_key="u").enqueue("Ann", times=2)
    job = shop.app.get(made.id)
    assert (job.kind, job.state, job.phase, job.payload) == ("greet", "PENDING", "pending", {"name": "Ann", "times": 2})
    assert (job.queue, job.priority, job.tags, job.unique_key, job.tries) == ("slow", 5, {"user": "7"}, "u", 3)
    assert job.expires_at is not None
    assert (job.expires_at - job.created_at).total_seconds() == 60
    assert [entry.event for entry in shop.app.history(job.id)] == ["enqueue"]


def test_the_same_key_and_arguments_are_the_same_job(shop: Shop) -> None:
    """However the arguments are written; other arguments are an error, and nothing is stored."""
    keyed = shop.greet.using(idempotency_key="k")
    first, second = keyed.enqueue("Ann"), keyed.enqueue(times=1, name="Ann")
    assert (first.created, second.created, first.id) == (True, False, second.id)
    with pytest.raises(KeyReused):
        keyed.enqueue("Bob")
    assert len(shop.app.jobs()) == 1


def test_many_are_stored_together_or_not_at_all(shop: Shop) -> None:
    """One call that is refused takes the others with it."""
    made = shop.app.enqueue_many([shop.greet.call("Ann"), shop.paint.call(1)])
    assert [shop.app.get(each.id).kind for each in made] == ["greet", "paint"]
    with pytest.raises(Refused, match="no credit left"):
        shop.app.enqueue_many([shop.greet.call("Bob"), shop.paint.call(13)])
    assert len(shop.app.jobs()) == 2


def test_admit_refuses_with_its_reason_and_leaves_nothing(shop: Shop) -> None:
    """What it wrote itself is gone too."""
    with pytest.raises(Refused) as caught:
        shop.paint.enqueue(13)
    assert (caught.value.reason, type(caught.value.__cause__)) == ("no credit left", ValueError)
    assert (shop.app.jobs(), seen(shop)) == ([], 0)
    shop.paint.enqueue(1)
    assert seen(shop) == 1


def test_admit_is_asked_for_new_jobs_only(shop: Shop) -> None:
    """Protocol 40: a network retry after the last credit was spent must get its job."""
    keyed = shop.paint.using(idempotency_key="k")
    first, second = keyed.enqueue(1), keyed.enqueue(1)
    assert (first.id, second.created, seen(shop)) == (second.id, False, 1)


def test_admit_may_be_told_which_job_it_judges(shop: Shop) -> None:
    """Before anybody else knows the id, so that what is kept for a job may stand under it."""
    judged: list[str] = []

    @shop.chore.admit
    def note(tx: Any, job: Enqueued) -> None:
        tx.execute("insert into seen values (7)")
        judged.append(job.id)

    first, second = shop.app.enqueue_many([shop.chore.call(), shop.greet.call("Ann")])
    assert (judged, seen(shop)) == ([first.id], 1)
    assert second.id not in judged


def test_a_transaction_carries_job_and_data(shop: Shop) -> None:
    """Both, or neither."""
    with shop.app.transaction() as tx:
        tx.execute("insert into seen values (5)")
        kept = shop.greet.using(conn=tx).enqueue("Ann")

    def broken() -> None:
        with shop.app.transaction() as tx:
            tx.execute("insert into seen values (6)")
            shop.greet.using(conn=tx).enqueue("Bob")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert ([job.id for job in shop.app.jobs()], seen(shop)) == ([kept.id], 1)


def test_an_own_transaction_is_what_admit_and_hooks_get(shop: Shop, place: Place, raw: Raw) -> None:
    """With `transaction=` the handle is the caller's own."""
    handles: list[Any] = []

    @contextmanager
    def begin() -> Iterator[Any]:
        with raw.transaction() as handle:
            handles.append(handle)
            yield handle

    own = Shop(place, begin)
    id = own.paint.enqueue(1).id
    assert (len(handles), seen(shop)) == (1, 1)
    assert own.app.reject(id, by="ann", reason="no").state == "rejected"
    assert (len(handles), seen(shop)) == (2, 2)
    with pytest.raises(Refused):
        own.paint.enqueue(13)
    assert seen(shop) == 2
    own.app.close()


def test_a_kind_can_be_enqueued_by_name(shop: Shop) -> None:
    """Checked like any other call; an unknown name gets a sentence."""
    assert shop.app.get(shop.app.enqueue_named("greet", {"name": "Ann"}).id).payload == {"name": "Ann", "times": 1}
    with pytest.raises(PayloadError, match="name: Field required"):
        shop.app.enqueue_named("greet", {})
    with pytest.raises(NotFound, match="Nobody has declared a kind 'sing' here"):
        shop.app.enqueue_named("sing", {})


def test_a_producer_that_cannot_import_the_handler_enqueues_by_name(shop: Shop, place: Place) -> None:
    """As the kind was migrated: its lifecycle, queue and tries. One that judges its jobs by code is refused, with a sentence."""
    producer: App[Any] = App(place.url, schema=place.schema)
    job = producer.get(producer.enqueue_named("chore", {}).id)
    assert (job.kind, job.lifecycle, job.state, job.tries, job.queue) == ("chore", "task", "pending", 3, "default")
    with pytest.raises(UsageError, match="enqueue it where it is declared"):
        producer.enqueue_named("paint", {"user": 1})
    producer.close()


# ---------------------------------------------------------------- value
class Stepping:
    """Waits that take no time, and do something in each of them."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.now = 0.0
        self.then = then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds
        self.then()

    async def asleep(self, seconds: float, /) -> None:
        self.now += seconds
        await asyncio.to_thread(self.then)


def waiting(shop: Shop, waits: Waits) -> Kind[..., int, Any]:
    return Kind(shop.greet.declaration, shop.app.database.store, waits=waits)


def test_result_waits_for_the_value(shop: Shop) -> None:
    """It looks again until the job has ended, and gives the handler's own type."""
    id = shop.greet.enqueue("Ann").id
    left = ["look", "look", "work"]

    def step() -> None:
        if left and left.pop(0) == "work":
            shop.settle(shop.greet, shop.claim(shop.greet), Returned("3", boundary=False))

    assert waiting(shop, Stepping(step)).result(id, timeout=10) == 3
    assert asyncio.run(waiting(shop, Stepping(step)).aresult(id, timeout=0)) == 3


def test_result_says_why_there_is_none(shop: Shop) -> None:
    """Not in time, never, or not of this kind."""
    id = shop.greet.enqueue("Ann").id
    waits = Stepping(lambda: None)
    with pytest.raises(TimeoutError, match="has not ended within 5 s"):
        waiting(shop, waits).result(id, timeout=5)
    assert waits.now == pytest.approx(5)
    with pytest.raises(TimeoutError):
        asyncio.run(waiting(shop, waits).aresult(id, timeout=5))
    shop.app.cancel(id, by="ann", reason="enough")
    with pytest.raises(JobFailed, match="ended as CANCELLED at attempt 1: enough") as caught:
        shop.greet.result(id)
    assert caught.value.job.state == "CANCELLED"
    with pytest.raises(NotFound, match="ask paint for its result"):
        shop.greet.result(shop.paint.enqueue(1).id)


# ---------------------------------------------------------------- operate
def test_cancel_ends_a_waiting_job(shop: Shop) -> None:
    """By an execution of the operator's own; a second cancel is the same one."""
    id = shop.greet.enqueue("Ann").id
    job = shop.app.cancel(id, by="ann", reason="enough\0")
    assert (job.state, job.phase, job.attempt) == ("CANCELLED", "failed", 1)
    assert shop.app.cancel(id, by="bob") == job
    (execution,) = shop.app.executions(id)
    assert (execution.status, execution.lease_owner, execution.ended_by, execution.error) == ("ABORTED", "operator:ann", "cancel", "enough\ufffd")


def test_cancel_asks_a_running_job(shop: Shop) -> None:
    """Its phase says that it still runs, and it may still succeed; then there is nothing left to cancel."""
    id = shop.greet.enqueue("Ann").id
    lease = shop.claim(shop.greet)
    job = shop.app.cancel(id, by="ann")
    assert (job.phase, job.cancel_requested_by) == ("running", "operator:ann")
    assert shop.app.cancel(id, by="bob").cancel_requested_by == "operator:ann"
    shop.settle(shop.greet, lease, Returned("3", boundary=False))
    with pytest.raises(TransitionRefused, match="has ended as SUCCEEDED"):
        shop.app.cancel(id, by="ann")


def test_cancel_is_refused_where_it_is_not_drawn_or_comes_too_late(shop: Shop) -> None:
    """With a sentence each, and nothing changed."""
    waiting_id = shop.chore.enqueue().id
    with pytest.raises(TransitionRefused, match="waits in pending, where the lifecycle task draws no `cancel`"):
        shop.app.cancel(waiting_id, by="ann")
    shop.claim(shop.chore)
    with pytest.raises(TransitionRefused, match="runs in running, and its lifecycle task draws no `cancel`"):
        shop.app.cancel(waiting_id, by="ann")
    id = shop.greet.enqueue("Ann").id
    shop.settle(shop.greet, shop.claim(shop.greet), Returned("3", boundary=True))
    with pytest.raises(TransitionRefused, match="past its commit"):
        shop.app.cancel(id, by="ann")
    assert shop.app.get(id).cancel_requested_at is None


def test_reject_turns_a_waiting_job_away_with_its_hook(shop: Shop) -> None:
    """The hook runs in the move's own transaction; if it raises, the move is not made."""
    id = shop.paint.enqueue(1).id
    assert shop.app.reject(id, by="ann", reason="unsafe").state == "rejected"
    assert ([each for each, _ in shop.entered], seen(shop)) == ([id], 2)
    broken = shop.paint.enqueue(99).id
    with pytest.raises(RuntimeError, match="the hook is broken"):
        shop.app.reject(broken, by="ann", reason="unsafe")
    assert (shop.app.get(broken).state, seen(shop)) == ("queued", 3)
    with pytest.raises(TransitionRefused, match="takes only a job that waits"):
        shop.app.reject(id, by="ann", reason="again")


def test_a_process_without_the_hook_may_not_make_its_move(shop: Shop, place: Place) -> None:
    """Protocol 4: else the credits of the job would leak. A move without a hook it may make."""
    stranger = App(place.url, schema=place.schema)
    id = shop.paint.enqueue(1).id
    with pytest.raises(TransitionRefused, match="which this process does not have"):
        stranger.reject(id, by="ann", reason="no")
    assert shop.app.get(id).state == "queued"
    assert stranger.cancel(id, by="ann").state == "canceled"
    stranger.close()


# ---------------------------------------------------------------- asyncio
def test_every_verb_has_its_twin(shop: Shop) -> None:
    """The same answers, over one thread hop."""

    async def twins() -> None:
        made = await shop.greet.aenqueue("Ann")
        named = await shop.app.aenqueue_named("greet", {"name": "Bob"})
        several = await shop.app.aenqueue_many([shop.greet.call("Cat"), shop.greet.call("Dan")])
        assert await shop.app.aget(made.id) == shop.app.get(made.id)
        assert {job.id for job in await shop.app.ajobs(kind="greet")} == {made.id, named.id, *(each.id for each in several)}
        assert (await shop.app.acancel(made.id, by="ann")).state == "CANCELLED"
        assert len(await shop.app.aexecutions(made.id)) == 1
        assert len(await shop.app.ahistory(made.id)) == 2
        assert (await shop.app.averify()).ok
        await shop.app.amigrate()
        await shop.app.aclose()
        assert (await shop.app.areject((await shop.paint.aenqueue(1)).id, by="ann", reason="no")).state == "rejected"

    asyncio.run(twins())


def test_a_borrowed_connection_is_used_in_its_own_thread(shop: Shop, raw: Raw) -> None:
    """Also from asyncio: another thread may not touch it."""

    async def borrow() -> list[str]:
        with raw.transaction() as conn:
            made = await shop.greet.using(conn=conn).aenqueue("Ann")
            several = await shop.app.aenqueue_many([shop.greet.call("Bob")], conn=conn)
        return [made.id, several[0].id]

    made = asyncio.run(borrow())
    assert {job.id for job in shop.app.jobs()} == set(made)


# ---------------------------------------------------------------- its own life
def test_only_a_new_sqlite_file_is_migrated_by_itself(place: Place) -> None:
    """Any other database waits for `migrate`, and says so."""
    shop = Shop(place)
    if place.url.startswith("sqlite"):
        assert shop.greet.enqueue("Ann").created
    else:
        with pytest.raises(NotMigrated, match="interlock migrate -A module:app"):
            shop.greet.enqueue("Ann")
    shop.app.close()


def test_a_lifecycle_that_is_not_registered_waits_for_migrate(shop: Shop) -> None:
    """Its kind was declared after the last migration."""
    late = Lifecycle("late", transitions=[("a", "claim", "b"), ("b", "succeed", "c"), ("b", "fail", "d"), ("b", "lose", "a")])
    kind = shop.app.job(kind="late", lifecycle=late)(shop.greet.declaration.signature.fn)
    with pytest.raises(NotMigrated, match="interlock migrate -A module:app"):
        kind.enqueue("Ann")
    shop.app.migrate()
    assert shop.app.get(kind.enqueue("Ann").id).state == "a"


def test_bound_to_points_the_app_and_its_kinds_elsewhere(shop: Shop, tmp_path: Path) -> None:
    """Until the block ends; then everything is as it was."""
    home = shop.greet.enqueue("Ann").id
    with shop.app.bound_to(f"sqlite:///{tmp_path / 'elsewhere.db'}") as bound:
        assert bound is shop.app
        away = shop.greet.enqueue("Bob").id
        assert [job.id for job in bound.jobs()] == [away]
    assert [job.id for job in shop.app.jobs()] == [home]


def test_a_closed_app_opens_again(shop: Shop) -> None:
    """At its next verb."""
    id = shop.greet.enqueue("Ann").id
    shop.app.close()
    shop.app.close()
    assert shop.app.get(id).id == id


def test_many_threads_open_one_store(shop: Shop) -> None:
    """The first verbs of many threads race, and all get the same."""
    shop.app.close()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(shop.app.database.store())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_opens_its_own_store(shop: Shop) -> None:
    """And its parent's connections are as good as before."""
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


def test_a_job_that_is_not_there_is_not_found(shop: Shop) -> None:
    """An id of any shape: the sentence is the same."""
    for id in ("nothing", "", "01a1e104-6dc6-71be-8320-b9954750f277"):
        with pytest.raises(NotFound):
            shop.app.get(id)
        with pytest.raises(InterlockError):
            shop.app.cancel(id, by="ann")
