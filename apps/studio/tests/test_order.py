"""An order: its parameters, its price and its idempotency key."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.studio.errors import Refusal
from apps.studio.order import MAX_SEED, PRICES, Order, Params

MINUTE = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
WISH = Order(7, "a cat at sea", 1, Params("1024x1024", 3))
ORDERS = st.builds(
    Order,
    st.integers(1, 99),
    st.text(max_size=8),
    st.just(1),
    st.builds(Params, st.sampled_from(list(PRICES)), st.none() | st.integers(0, MAX_SEED)),
)


def test_same_order_within_a_minute_has_one_key() -> None:
    keys = {WISH.key(MINUTE + timedelta(seconds=second)) for second in (0, 1, 30, 59.999)}
    assert len(keys) == 1


def test_minute_does_not_depend_on_the_time_zone() -> None:
    assert WISH.key(MINUTE) == WISH.key(MINUTE.astimezone(timezone(timedelta(hours=5, minutes=30))))


@pytest.mark.parametrize(
    "other",
    [
        replace(WISH, user_id=8),
        replace(WISH, prompt="a cat at sea."),
        replace(WISH, prompt="A cat at sea"),
        replace(WISH, params=Params("1536x1024", 3)),
        replace(WISH, params=Params("1024x1024", 4)),
        replace(WISH, params=Params("1024x1024", None)),
        replace(WISH, params=Params("1024x1024", 0)),
    ],
)
def test_each_part_of_an_order_changes_its_key(other: Order) -> None:
    assert other.key(MINUTE) != WISH.key(MINUTE)


def test_next_minute_has_another_key() -> None:
    moments = [
        MINUTE,
        MINUTE + timedelta(minutes=1),
        MINUTE - timedelta(microseconds=1),
        MINUTE + timedelta(days=1),
        MINUTE + timedelta(hours=1),
    ]
    assert len({WISH.key(moment) for moment in moments}) == len(moments)


def test_price_is_not_part_of_the_key() -> None:
    """Orders just before and just after a change of price are one order."""
    assert replace(WISH, cost=2).key(MINUTE) == WISH.key(MINUTE)


@given(ORDERS, ORDERS)
def test_different_orders_have_different_keys(one: Order, other: Order) -> None:
    assert (one.key(MINUTE) == other.key(MINUTE)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Order(1, "2 cats", 1), Order(12, " cats", 1)),
        (Order(1, '", {"seed": 1', 1), Order(1, "", 1, Params(seed=1))),
        (Order(1, "\\u0061", 1), Order(1, "a", 1)),
    ],
)
def test_prompt_cannot_imitate_another_part_of_the_key(one: Order, other: Order) -> None:
    assert one.key(MINUTE) != other.key(MINUTE)


def test_each_size_has_a_price_and_dimensions() -> None:
    for size, price in PRICES.items():
        params = Params(size)
        params.check()
        assert price > 0
        assert f"{params.width}x{params.height}" == size


@pytest.mark.parametrize("size", ["", "1024", "1024X1024", "1024x1024 ", "-1x-1", "99999x99999", "<b>" * 100])
def test_unsupported_size_is_refused_with_a_list_of_sizes(size: str) -> None:
    with pytest.raises(Refusal, match="1536x1024") as refused:
        Params(size).check()
    assert refused.value.code == "params_invalid"
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 10**4000])
def test_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(Refusal) as refused:
        Params(seed=seed).check()
    assert refused.value.code == "params_invalid"
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("seed", [None, 0, 1, MAX_SEED])
def test_seed_in_range_or_none_is_accepted(seed: int | None) -> None:
    Params(seed=seed).check()
