"""The app's verbs, on both databases."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from interlock import (
    App,
    Enqueued,
    Job,
    JobFailed,
    KeyReused,
    Kind,
    Lifecycle,
    NotFound,
    PayloadError,
    Refused,
    Run,
    SyncRun,
)
from interlock.core.decide import decide
from interlock.core.outcome import Outcome, Returned
from interlock.core.sleeper import Sleeper
from interlock.errors import UsageError
from interlock.store.types import Lease
from tests.kit import Place, Raw

IMAGE = Lifecycle(
    "image",
    transitions=[
        ("queued", "claim", "running"),
        ("queued", "reject", "rejected"),
        ("queued", "cancel", "canceled"),
        ("running", "succeed", "completed"),
        ("running", "fail", "failed"),
        ("running", "lose", "queued"),
        ("failed", "retry", "queued"),
        ("failed", "bury", "dead_letter"),
    ],
)
TASK = Lifecycle(
    "task",
    transitions=[
        ("pending", "claim", "running"),
        ("running", "succeed", "done"),
        ("running", "fail", "error"),
        ("running", "lose", "pending"),
    ],
)


class Shop:
    """An app with its kinds, and methods that act as a worker."""

    def __init__(self, place: Place, transaction: Callable[[], AbstractContextManager[Any]] | None = None) -> None:
        self.app: App[Any] = (
            App(place.url, schema=place.schema)
            if transaction is None
            else App(place.url, schema=place.schema, transaction=transaction)
        )
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
        (lease,) = store.queue.claim(
            "ann", kind.spec.claim_rules(store.registry.version_of(kind.spec.lifecycle)), ["default"], 1
        )
        return lease

    def settle(self, kind: Kind[..., Any, Any], lease: Lease, outcome: Outcome) -> None:
        store = self.app.database.store()
        assert (
            store.transitions.move(
                [decide(kind.spec.lifecycle, lease.job, lease, outcome, kind.spec.policy, 0.5, actor="ann")]
            )
            == []
        )


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
def test_enqueued_job_is_read_back(shop: Shop) -> None:
    """Arguments are stored by name, and every option is stored."""
    made = shop.greet.using(queue="slow", priority=5, ttl=60, tags={"user": "7"}, unique_key="u").enqueue(
        "Ann", times=2
    )
    job = shop.app.get(made.id)
    assert (job.kind, job.state, job.phase, job.payload) == ("greet", "PENDING", "pending", {"name": "Ann", "times": 2})
    assert (job.queue, job.priority, job.tags, job.unique_key, job.tries) == ("slow", 5, {"user": "7"}, "u", 3)
    assert job.expires_at is not None
    assert (job.expires_at - job.created_at).total_seconds() == 60
    assert [entry.event for entry in shop.app.history(job.id)] == ["enqueue"]


def test_same_key_and_arguments_return_the_same_job(shop: Shop) -> None:
    """In whatever way the arguments are written; other arguments are an error, and nothing is stored."""
    keyed = shop.greet.using(idempotency_key="k")
    first, second = keyed.enqueue("Ann"), keyed.enqueue(times=1, name="Ann")
    assert (first.created, second.created, first.id) == (True, False, second.id)
    with pytest.raises(KeyReused):
        keyed.enqueue("Bob")
    assert len(shop.app.jobs()) == 1


def test_enqueue_many_gives_each_job_the_options_of_its_own_request(shop: Shop) -> None:
    """Requests of one kind may differ in their options, and requests of two kinds may share them."""
    urgent = shop.greet.using(priority=7, idempotency_key="a").request("Ann")
    shared = replace(shop.paint.request(1), options=urgent.options)
    requests = [urgent, shop.greet.using(queue="slow").request("Bob"), shop.greet.request("Cy"), urgent, shared]
    handles = shop.app.enqueue_many(requests)
    found = [
        (job.kind, job.payload.get("name"), job.priority, job.queue, job.idempotency_key)
        for job in (handle.job() for handle in handles)
    ]
    assert found == [
        ("greet", "Ann", 7, "default", "a"),
        ("greet", "Bob", 0, "slow", None),
        ("greet", "Cy", 0, "default", None),
        ("greet", "Ann", 7, "default", "a"),
        ("paint", None, 7, "default", "a"),
    ]
    assert [handle.created for handle in handles] == [True, True, True, False, True]


def test_enqueue_many_stores_all_jobs_or_none(shop: Shop) -> None:
    """If one request is refused, none is stored."""
    made = shop.app.enqueue_many([shop.greet.request("Ann"), shop.paint.request(1)])
    assert [shop.app.get(each.id).kind for each in made] == ["greet", "paint"]
    with pytest.raises(Refused, match="no credit left"):
        shop.app.enqueue_many([shop.greet.request("Bob"), shop.paint.request(13)])
    assert len(shop.app.jobs()) == 2


def test_admit_refuses_with_its_reason_and_stores_nothing(shop: Shop) -> None:
    """The writes of `admit` are rolled back, too."""
    with pytest.raises(Refused) as caught:
        shop.paint.enqueue(13)
    assert (caught.value.reason, type(caught.value.__cause__)) == ("no credit left", ValueError)
    assert (shop.app.jobs(), seen(shop)) == ([], 0)
    shop.paint.enqueue(1)
    assert seen(shop) == 1


def test_admit_is_called_only_for_new_jobs(shop: Shop) -> None:
    """Protocol 40: a repeated request after the last credit was spent must return its job."""
    keyed = shop.paint.using(idempotency_key="k")
    first, second = keyed.enqueue(1), keyed.enqueue(1)
    assert (first.id, second.created, seen(shop)) == (second.id, False, 1)


def test_admit_can_receive_the_id_of_its_job(shop: Shop) -> None:
    """The id is known before the job is stored, so that data can be stored under it."""
    judged: list[str] = []

    @shop.chore.admit
    def note(tx: Any, job: Enqueued) -> None:
        tx.execute("insert into seen values (7)")
        judged.append(job.id)

    first, second = shop.app.enqueue_many([shop.chore.request(), shop.greet.request("Ann")])
    assert (judged, seen(shop)) == ([first.id], 1)
    assert second.id not in judged


def test_job_and_data_are_stored_in_one_transaction(shop: Shop) -> None:
    """Either both are stored or neither."""
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


def test_admit_and_hooks_get_the_apps_own_transaction(shop: Shop, place: Place, raw: Raw) -> None:
    """With `transaction=`, the handle is the caller's own."""
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


def test_kind_can_be_enqueued_by_name(shop: Shop) -> None:
    """The payload is checked as in any other call; an unknown name is an error."""
    assert shop.app.get(shop.app.enqueue_named("greet", {"name": "Ann"}).id).payload == {"name": "Ann", "times": 1}
    with pytest.raises(PayloadError, match="name: Field required"):
        shop.app.enqueue_named("greet", {})
    with pytest.raises(NotFound, match="This database knows no kind 'sing'"):
        shop.app.enqueue_named("sing", {})


def test_producer_without_the_handler_enqueues_by_name(shop: Shop, place: Place) -> None:
    """With the lifecycle, queue and tries that were migrated.

    A kind with an `admit` function is refused, since the producer does not have it.
    """
    producer: App[Any] = App(place.url, schema=place.schema)
    job = producer.get(producer.enqueue_named("chore", {}).id)
    assert (job.kind, job.lifecycle, job.state, job.tries, job.queue) == ("chore", "task", "pending", 3, "default")
    with pytest.raises(UsageError, match="enqueue the job in the program that declares it"):
        producer.enqueue_named("paint", {"user": 1})
    producer.close()


# ---------------------------------------------------------------- results
class Stepping:
    """A sleeper that takes no time and calls a function in each wait."""

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


def waiting(shop: Shop, sleeper: Sleeper) -> Kind[..., int, Any]:
    return Kind(shop.greet.spec, replace(shop.app._backend, sleeper=sleeper))


def test_result_waits_for_the_end_of_the_job(shop: Shop) -> None:
    """It polls until the job has ended, and returns the handler's own type."""
    id = shop.greet.enqueue("Ann").id
    left = ["look", "look", "work"]

    def step() -> None:
        if left and left.pop(0) == "work":
            shop.settle(shop.greet, shop.claim(shop.greet), Returned("3", boundary=False))

    assert waiting(shop, Stepping(step)).result(id, timeout=10) == 3
    assert asyncio.run(waiting(shop, Stepping(step)).aresult(id, timeout=0)) == 3


def test_error_of_result_says_why_there_is_none(shop: Shop) -> None:
    """The job has not ended in time, has failed, or is of another kind."""
    id = shop.greet.enqueue("Ann").id
    sleeper = Stepping(lambda: None)
    with pytest.raises(TimeoutError, match="has not ended within 5 s"):
        waiting(shop, sleeper).result(id, timeout=5)
    assert sleeper.now == pytest.approx(5)
    with pytest.raises(TimeoutError):
        asyncio.run(waiting(shop, sleeper).aresult(id, timeout=5))
    shop.app.cancel(id, by="ann", reason="enough")
    with pytest.raises(JobFailed, match="ended as CANCELLED at attempt 1: enough") as caught:
        shop.greet.result(id)
    assert caught.value.job.state == "CANCELLED"
    with pytest.raises(NotFound, match="use paint to read its result"):
        shop.greet.result(shop.paint.enqueue(1).id)
