"""`unique_for` and `on_conflict`, in every way to enqueue."""

import asyncio
from typing import Any

import pytest

from tests.surface.test_app import Shop, shop

__all__ = ["shop"]


def debounced(shop: Shop, **more: Any) -> Any:
    return shop.greet.using(unique_key="u", unique_for=600, on_conflict="debounce", delay=60, **more)


def in_a_list(shop: Shop, name: str) -> Any:
    return shop.app.enqueue_many([debounced(shop).request(name)])[0]


def in_a_transaction(shop: Shop, name: str) -> Any:
    with shop.app.transaction() as tx:
        return debounced(shop, conn=tx).enqueue(name)


def in_the_open_transaction(shop: Shop, name: str) -> Any:
    with shop.app.transaction():
        return asyncio.run(debounced(shop).aenqueue(name))


def in_a_flow(shop: Shop, name: str) -> Any:
    with shop.app.flow("flow") as flow:
        return flow.add(debounced(shop).request(name))


WAYS = {
    "enqueue": lambda shop, name: debounced(shop).enqueue(name),
    "aenqueue": lambda shop, name: asyncio.run(debounced(shop).aenqueue(name)),
    "enqueue_many": in_a_list,
    "transaction": in_a_transaction,
    "open transaction": in_the_open_transaction,
    "flow": in_a_flow,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_enqueue_can_replace_the_payload(shop: Shop, way: str) -> None:
    """The handle is on the job that has the key, and says that it got the payload."""
    first = debounced(shop).enqueue("Ann")
    again = WAYS[way](shop, "Bob")
    assert (again.id, again.created, again.replaced) == (first.id, False, True)
    assert (first.created, first.replaced) == (True, False)
    assert shop.app.get(first.id).payload == {"name": "Bob", "times": 1}
    assert [entry.event for entry in shop.app.history(first.id)] == ["enqueue", "debounced"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_enqueue_can_take_a_key_for_a_time(shop: Shop, way: str) -> None:
    first = WAYS[way](shop, "Ann")
    assert first.created
    shop.app.cancel(first.id, by="ann")
    again = WAYS[way](shop, "Ann")
    assert again.created
    assert not shop.greet.using(unique_key="u").enqueue("Ann").created


def test_admit_is_not_called_for_a_replaced_payload(shop: Shop) -> None:
    """It has admitted the job, not its payload."""
    paint = shop.paint.using(unique_key="u", on_conflict="replace")
    first = paint.enqueue(1)
    assert paint.enqueue(13).replaced
    assert shop.app.get(first.id).payload == {"user": 13}
