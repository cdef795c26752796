"""What a handler's return annotation says about work that it hands over: the type of its value, and whether it asks."""

import types
from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin

from .question import Question
from .results import External

_UNIONS = (Union, types.UnionType)


def value_type(returned: Any) -> Any:
    """Return the type of the job's value: R for a handler that returns an R, an `External[R]` or a `Question[R]`."""
    values = [_value(member) for member in _members(returned)]
    return values[0] if len(values) == 1 else Union[tuple(values)]  # noqa: UP007 - its members are known at run time only


def may_ask(returned: Any) -> bool:
    """Whether a handler with this annotation may return a question."""
    return any(_outer(member) is Question for member in _members(returned))


def _members(returned: Any) -> Sequence[Any]:
    return get_args(returned) if get_origin(returned) in _UNIONS else (returned,)


def _value(member: Any) -> Any:
    return next(iter(get_args(member)), Any) if _outer(member) in (External, Question) else member


def _outer(member: Any) -> Any:
    return get_origin(member) or member
