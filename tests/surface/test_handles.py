"""The handle that an enqueue returns: read the job, wait for its end or its result, cancel it."""

import asyncio
from typing import Any

import pytest

from interlock import App, Fail, JobFailed, JobHandle, Tx, UsageError
from tests.kit import Place


class Shop:
    """An app with a kind that adds and a kind that fails."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)

        @self.app.job
        def add(a: int, b: int) -> int:
            return a + b

        @self.app.job
        async def broken() -> None:
            raise Fail("out of paper")

        self.add, self.broken = add, broken
        self.app.migrate()


@pytest.fixture
def shop(place: Place) -> Any:
    shop = Shop(place)
    yield shop
    shop.app.close()


def test_handle_reads_the_job_and_its_result(shop: Shop) -> None:
    handle = shop.add.enqueue(1, 2)
    assert handle.created
    assert (handle.job().id, handle.job().phase) == (handle.id, "pending")
    shop.app.run_until_idle()
    assert handle.result(timeout=0) == 3
    assert handle.wait(timeout=0).phase == "succeeded"


def test_second_enqueue_with_the_same_key_finds_the_job(shop: Shop) -> None:
    first, second = (shop.add.using(idempotency_key="order-1").enqueue(1, 2) for _ in range(2))
    assert (first.created, second.created, first.id == second.id) == (True, False, True)


def test_wait_returns_a_failed_job(shop: Shop) -> None:
    """`result` raises instead."""
    handle = shop.broken.enqueue()
    shop.app.run_until_idle()
    assert handle.wait(timeout=0).state == "FAILED"
    with pytest.raises(JobFailed, match="out of paper"):
        handle.result(timeout=0)


def test_waiting_times_out_and_the_job_continues(shop: Shop) -> None:
    handle = shop.add.enqueue(1, 2)
    for wait in (handle.result, handle.wait):
        with pytest.raises(TimeoutError, match=r"has not ended within 0 s\. It continues"):
            wait(timeout=0)
    assert handle.job().phase == "pending"


def test_handle_cancels_the_job(shop: Shop) -> None:
    handle = shop.add.enqueue(1, 2)
    assert handle.cancel(by="ann", reason="typo").state == "CANCELLED"
    assert shop.app.history(handle.id)[-1].actor == "operator:ann"


def test_async_twins_do_the_same(shop: Shop) -> None:
    async def scene() -> None:
        handle = await shop.add.aenqueue(1, 2)
        assert (await handle.ajob()).phase == "pending"
        await shop.app.arun_until_idle()
        assert await handle.aresult(timeout=0) == 3
        assert (await handle.await_end(timeout=0)).phase == "succeeded"
        other = await shop.add.aenqueue(3, 4)
        assert (await other.acancel(by="ann")).state == "CANCELLED"

    asyncio.run(scene())


def test_every_enqueue_returns_a_handle(shop: Shop) -> None:
    """Also by name and by redrive; the result has the type that its kind declares."""
    many = shop.app.enqueue_many([shop.add.request(1, 2), shop.add.request(3, 4)])
    named = shop.app.enqueue_named("add", {"a": 5, "b": 6})
    failed = shop.broken.enqueue()
    shop.app.run_until_idle()
    assert [handle.result(timeout=0) for handle in many] == [3, 7]
    assert named.result(timeout=0) == 11
    again: JobHandle[object] = shop.app.redrive(failed.id, by="ann")
    assert (again.created, again.job().redrive_of) == (True, failed.id)


def test_result_of_another_programs_kind_is_plain_json(shop: Shop, place: Place) -> None:
    producer: App[Tx] = App(place.url, schema=place.schema)
    handle = producer.enqueue_named("add", {"a": 1, "b": 2})
    shop.app.run_until_idle()
    assert handle.result(timeout=0) == 3
    producer.close()


def test_handle_does_not_wait_inside_a_transaction(shop: Shop) -> None:
    """No worker sees the job before the commit. Reading it is allowed."""
    with shop.app.transaction():
        handle = shop.add.enqueue(1, 2)
        assert handle.job().phase == "pending"
        for wait in (handle.result, handle.wait):
            with pytest.raises(UsageError, match=r"add\.\w+ cannot run inside a transaction"):
                wait(timeout=0)
        with pytest.raises(UsageError, match=r"app.cancel cannot run inside a transaction"):
            handle.cancel(by="ann")
