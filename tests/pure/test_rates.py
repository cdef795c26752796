"""Rates: as text and back."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.core.limits import Limit, Rate
from interlock.errors import UsageError

NUMBERS = st.one_of(
    st.integers(1, 1_000_000).map(str),
    st.decimals("0.001", "999999.9", allow_nan=False, places=3).map(str),
    st.floats(1e-3, 1e6).map(lambda number: f"{number:.17f}"),
)


@given(NUMBERS, st.one_of(st.just(""), NUMBERS), st.sampled_from("smhd"))
@example("1000000", "", "h")
@example("123456.7", "", "h")
@example("0.00001", "", "s")
@example("1", "1234567", "s")
def test_rate_is_read_back_from_its_text(count: str, every: str, unit: str) -> None:
    try:
        rate = Rate.parse(f"{count}/{every}{unit}")
    except UsageError:
        return
    assert Rate.parse(str(rate)) == rate
    limit = Limit(rate=f"{count}/{every}{unit}")
    assert limit.bucket == (rate, rate.default_burst)
    assert Limit(rate=limit.rate) == limit


@pytest.mark.parametrize(
    ("text", "shown"),
    [("1000000/h", "1000000/h"), ("123456.7/h", "123456.7/h"), ("0.00001/s", "0.00001/s"), ("90/90m", "90/90m")],
)
def test_rate_keeps_its_digits(text: str, shown: str) -> None:
    assert str(Rate.parse(text)) == shown


@pytest.mark.parametrize("text", ["1000001/s", "1/0.0001s", "1/400d", "0.5/366d", "1e3/s", "-1/s", "1/s/s", ""])
def test_rate_outside_of_the_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give a number and a time"):
        Rate.parse(text)
