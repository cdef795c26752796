"""What a worker and its children say to each other: JSON, each message with its length before it; nothing is ever pickled."""

import functools
import json
import struct
from dataclasses import asdict
from typing import Any, get_args

import pydantic

from .. import errors, outcome
from ..errors import InterlockError, JobFailed
from ..outcome import Outcome
from ..records import Lease, Receipt
from ..taxonomy import headline
from .grip import Grip

Message = dict[str, Any]
HEAD = struct.Struct(">I")
LONGEST = 1 << 28
"""Bytes. What claims to be longer was not written by one of us."""

_OUTCOMES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(outcome.Outcome)}
_ERRORS = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, InterlockError) and kind is not JobFailed}


def pack(message: Message) -> bytes:
    """A message as it travels."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEAD.pack(len(body)) + body


def unpack(body: bytes) -> Message:
    """A message without its length. `ValueError` if it is none."""
    message: object = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("a message is an object")  # noqa: TRY004 - it is no better than text that is no JSON
    return message  # pyright: ignore[reportUnknownVariableType] - of whatever JSON holds


# ---------------------------------------------------------------- what messages hold
@functools.cache
def _lease() -> pydantic.TypeAdapter[Lease]:
    return pydantic.TypeAdapter(Lease)


@functools.cache
def _receipts() -> pydantic.TypeAdapter[list[Receipt]]:
    return pydantic.TypeAdapter(list[Receipt])


def lease_told(grip: Grip) -> Any:
    """An execution, as a child needs to know it."""
    return _lease().dump_python(Lease(grip.job, grip.holder, grip.status, grip.owner, grip.seconds, result=grip.value), mode="json")


def lease_heard(told: Any) -> Lease:
    return _lease().validate_python(told)


def receipts_told(receipts: list[Receipt]) -> Any:
    return _receipts().dump_python(receipts, mode="json")


def receipts_heard(told: Any) -> list[Receipt]:
    return _receipts().validate_python(told)


def outcome_told(said: Outcome) -> Any:
    return [type(said).__name__, asdict(said)]


def outcome_heard(told: Any) -> Outcome:
    name, fields = told
    heard: Outcome = _OUTCOMES[name](**fields)
    return heard


def error_told(error: BaseException) -> Any:
    """An error of a verb. One that is not ours keeps its name in the sentence."""
    name = type(error).__name__
    return [name, str(error)] if _ERRORS.get(name) is type(error) else ["InterlockError", headline(error)]


def error_heard(told: Any) -> InterlockError:
    name, sentence = told
    return _ERRORS[name](sentence)
