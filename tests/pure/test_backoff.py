"""Delays grow, stay under their cap, and never overflow."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.backoff import Backoff
from interlock.errors import UsageError

durations = st.floats(0, 1e9, allow_nan=False)


@given(durations, st.floats(1, 1e6), durations, st.integers(-5, 10**9), st.floats(0, 1, exclude_max=True))
def test_delay_is_between_zero_and_the_cap(
    first: float, factor: float, cap: float, failures: int, random: float
) -> None:
    backoff = Backoff(first, factor=factor, cap=cap)
    assert 0 <= backoff.delay(failures, random) <= backoff.ceiling(failures) <= cap
    assert backoff.ceiling(failures) <= backoff.ceiling(failures + 1)


def test_ceiling_starts_at_the_first_delay_and_doubles() -> None:
    assert [Backoff(jitter=False).delay(failures, 0.3) for failures in (1, 2, 3, 10, 11, 10**6)] == [
        1,
        2,
        4,
        512,
        900,
        900,
    ]


def test_jitter_spreads_the_delay_from_zero_to_the_ceiling() -> None:
    assert [Backoff().delay(3, random) for random in (0.0, 0.25, 0.5)] == [0.0, 1.0, 2.0]


def test_durations_may_be_timedeltas() -> None:
    assert Backoff(timedelta(seconds=2), cap=timedelta(minutes=1)) == Backoff(2.0, cap=60)


@pytest.mark.parametrize("options", [{"first": -1}, {"cap": float("nan")}, {"factor": 0.5}, {"factor": float("inf")}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Backoff(**options)
