"""The messages between a worker and its children: JSON with a length prefix. Nothing is pickled."""

import functools
import json
import socket
import struct
from dataclasses import asdict
from typing import Any, get_args

import pydantic

from ... import errors
from ...core import outcome
from ...core.error_policy import headline
from ...core.outcome import Outcome
from ...engine.held_execution import HeldExecution
from ...errors import InterlockError, JobFailed
from ...store.types import Lease, Receipt

Message = dict[str, Any]
HEAD = struct.Struct(">I")
PART = 1 << 20
"""The most bytes to read at once."""
LONGEST = 1 << 28
"""The longest message, in bytes. A larger length means that the data is not a message."""

_OUTCOMES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(outcome.Outcome)}
_ERRORS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, InterlockError) and kind is not JobFailed
}


def pack(message: Message) -> bytes:
    """Encode a message with its length prefix."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEAD.pack(len(body)) + body


def unpack(body: bytes) -> Message:
    """Decode a message without its length prefix. Raises `ValueError` if it is not a message."""
    message: object = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("the message is not a JSON object")  # noqa: TRY004 - the caller handles it like bad JSON
    return message  # pyright: ignore[reportUnknownVariableType] - any JSON object


def read_message(pipe: socket.socket) -> Message:
    """Wait for the next message. Raises `EOFError` if the other process has ended."""
    (size,) = HEAD.unpack(_read_exactly(pipe, HEAD.size))
    return unpack(_read_exactly(pipe, size))


def _read_exactly(pipe: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        try:
            part = pipe.recv(min(size - len(found), PART))
        except OSError as error:
            raise EOFError from error
        if not part:
            raise EOFError
        found += part
    return bytes(found)


# ---------------------------------------------------------------- the values in messages
@functools.cache
def _lease() -> pydantic.TypeAdapter[Lease]:
    return pydantic.TypeAdapter(Lease)


@functools.cache
def _receipts() -> pydantic.TypeAdapter[list[Receipt]]:
    return pydantic.TypeAdapter(list[Receipt])


def encode_lease(execution: HeldExecution) -> Any:
    """Encode an execution as the lease that a child needs."""
    return _lease().dump_python(
        Lease(
            execution.job,
            execution.holder,
            execution.status,
            execution.owner,
            execution.seconds,
            result=execution.value,
        ),
        mode="json",
    )


def decode_lease(encoded: Any) -> Lease:
    return _lease().validate_python(encoded)


def encode_receipts(receipts: list[Receipt]) -> Any:
    return _receipts().dump_python(receipts, mode="json")


def decode_receipts(encoded: Any) -> list[Receipt]:
    return _receipts().validate_python(encoded)


def encode_outcome(given: Outcome) -> Any:
    return [type(given).__name__, asdict(given)]


def decode_outcome(encoded: Any) -> Outcome:
    name, fields = encoded
    outcome: Outcome = _OUTCOMES[name](**fields)
    return outcome


def encode_error(error: BaseException) -> Any:
    """Encode an error. One that is not an Interlock error becomes an `InterlockError` with its name in the message."""
    name = type(error).__name__
    return [name, str(error)] if _ERRORS.get(name) is type(error) else ["InterlockError", headline(error)]


def decode_error(encoded: Any) -> InterlockError:
    name, sentence = encoded
    return _ERRORS[name](sentence)
