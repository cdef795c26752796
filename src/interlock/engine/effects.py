"""Steps and effects: they reuse saved results of earlier attempts, and handle calls that may have happened.

Both are generators, which `drive` runs in a thread and `adrive` in an event loop. Each yields `Written` (a call of the
ledger, which may block) and `Called` (a call of the user's function).
"""

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_type_hints

import pydantic
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..core import driver
from ..core.error_policy import proves_not_applied
from ..core.payload import check_name, encode
from ..errors import PayloadError, UsageError
from ..jobs.user_code import protected
from ..store.types import Receipt
from .classify import EffectInDoubt
from .ledger import Ledger

OnDoubt = Literal["retry", "hold", "skip"] | Callable[[str], Awaitable[Any]]
DOUBTS = ("retry", "hold", "skip")


@dataclass(frozen=True, slots=True)
class Written:
    """A call of the ledger."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Called:
    """A call of the user's function or coroutine function."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Flow = Generator[Written | Called, Any, Any]


class AttemptReceipts:
    """The receipts of earlier attempts, read at the first use, and the names that this attempt has used."""

    def __init__(self, ledger: Ledger, root: str) -> None:
        self.ledger = ledger
        self._root = root
        self._used: set[str] = set()
        self._known: dict[str, Receipt] | None = None

    def key(self, name: str) -> str:
        return f"{self._root}:{name}"

    def open(
        self, kind: Literal["step", "effect"], name: str, args_hash: str, max_age: float | None = None
    ) -> Receipt | None:
        """Return the receipt of an earlier attempt, or None.

        Raises `UsageError` if the name is used twice, or with other arguments than in an earlier attempt.
        """
        self.ledger.check()
        check_name(f"The name of a {kind}", name)
        if name in self._used:
            raise UsageError(
                f"The name {name!r} is used twice in one attempt. Give each step and effect of a job its own name."
            )
        self._used.add(name)
        if self._known is None:
            self._known = {receipt.name: receipt for receipt in self.ledger.receipts()}
        found = self._known.get(name)
        if found is not None and found.kind != kind:
            raise UsageError(
                f"{name!r} was used as {found.kind} in an earlier attempt and is used as {kind} now. Use another name "
                "for one of them."
            )
        if found is not None and found.applied and found.args_hash != args_hash and not _too_old(found, max_age):
            raise _other_arguments(kind, name)
        return found


def _too_old(receipt: Receipt, max_age: float | None) -> bool:
    return max_age is not None and receipt.age > max_age


def _other_arguments(kind: str, name: str) -> UsageError:
    return UsageError(
        f"The {kind} {name!r} is called with other arguments than in an earlier attempt, so its saved result cannot "
        "be used. Pass the same arguments in every attempt, or use another name for another call."
    )


# ---------------------------------------------------------------- the flows
def step(receipts: AttemptReceipts, name: str, call: Called, max_age: float | None = None) -> Flow:
    """Return the saved value of the call, or make the call and save its value.

    A value older than `max_age` is not used.
    """
    shape, digest = Shape(call.fn), hash_of(call.args, call.kwargs)
    found = yield Written(lambda: receipts.open("step", name, digest, max_age))
    if found is not None and found.applied and not _too_old(found, max_age):
        return shape.load(found.value)
    value = yield call
    stored = shape.dump(value)
    yield Written(lambda: receipts.ledger.record_step(name, digest, stored))
    return shape.load(stored)


def effect(receipts: AttemptReceipts, name: str, on_doubt: OnDoubt, call: Called) -> Flow:
    """Make an external call and save a receipt, so that later attempts do not repeat the call.

    If an earlier attempt may have made the call, `on_doubt` decides what to do.
    """
    shape, digest, ledger = Shape(call.fn), hash_of(call.args, call.kwargs), receipts.ledger
    found: Receipt | None = yield Written(lambda: receipts.open("effect", name, digest))
    if found is not None and found.applied:
        return None if found.value is None else shape.load(found.value)
    if found is not None:
        _check_doubt(found, on_doubt, digest)
        if on_doubt == "skip":
            yield Written(lambda: ledger.begin_effect(name, digest))
            yield Written(lambda: ledger.record_effect(name, None, "skip"))
            return None
        if callable(on_doubt):
            looked_up = yield Called(on_doubt, (receipts.key(name),), {})
            if looked_up is not None:
                # Keep the hash of the earlier call, because that is the call that happened.
                asked = found.args_hash
                yield Written(lambda: ledger.begin_effect(name, asked))
                value = yield from _apply(ledger, shape, name, looked_up, "lookup")
                if asked != digest:
                    raise _other_arguments("effect", name)
                return value
    try:
        yield Written(lambda: ledger.begin_effect(name, digest))
    except asyncio.CancelledError:
        # The handler was stopped before the call, so the effect did not happen.
        yield Written(lambda: ledger.discard_effect(name))
        raise
    try:
        value = yield call
    except BaseException as error:
        if proves_not_applied(error):
            yield Written(lambda: ledger.discard_effect(name))
        raise
    return (yield from _apply(ledger, shape, name, value, "worker"))


def _check_doubt(found: Receipt, on_doubt: OnDoubt, digest: str) -> None:
    """Raise `EffectInDoubt` to hold the job, or `UsageError` if the arguments differ from those of the earlier call."""
    other = found.args_hash != digest
    if on_doubt == "hold":
        changed = "; this attempt calls it with other arguments" if other else ""
        raise EffectInDoubt(
            f"It is unknown whether {found.name!r} happened in attempt {found.attempt}{changed}. Check the external "
            'system, then release the job with effect="happened" or effect="did_not"'
        )
    if other and not callable(on_doubt):
        raise UsageError(
            f"The effect {found.name!r} may have happened in attempt {found.attempt}, and this attempt calls it with "
            "other arguments, so it was not called again. Pass the same arguments in every attempt, or use another "
            "name for another call."
        )


def _apply(ledger: Ledger, shape: "Shape", name: str, value: Any, decided_by: str) -> Flow:
    try:
        stored = shape.dump(value)
    except PayloadError:
        # The call happened, so its receipt is stored even though its value cannot be.
        yield Written(lambda: ledger.record_effect(name, None, decided_by))
        raise
    yield Written(lambda: ledger.record_effect(name, stored, decided_by))
    return shape.load(stored)


# ---------------------------------------------------------------- driving
def drive(flow: Flow) -> Any:
    """Run a flow in this thread."""

    def do(asked: Written | Called) -> Any:
        if isinstance(asked, Written):
            return asked.work()
        value = asked.fn(*asked.args, **asked.kwargs)
        if inspect.isawaitable(value):
            _refuse_coroutine(asked.fn, value)
        return value

    return driver.drive(flow, do)


InThread = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
"""Runs a function that may block in a thread."""


async def adrive(flow: Flow, in_thread: InThread, write: InThread) -> Any:
    """Run a flow in an event loop.

    Functions that may block run through `in_thread`, calls of the ledger through `write`.
    """

    async def do(asked: Written | Called) -> Any:
        if isinstance(asked, Written):
            return await _finish_write(write(asked.work))
        call = functools.partial(asked.fn, *asked.args, **asked.kwargs)
        value = call() if inspect.iscoroutinefunction(asked.fn) else await in_thread(call)
        return await value if inspect.isawaitable(value) else value

    return await driver.adrive(flow, do)


async def _finish_write(write: Coroutine[Any, Any, Any]) -> Any:
    """Wait until a write is done, even if the handler is cancelled meanwhile."""
    task = protected(write)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # mark it as retrieved, because only the cancellation is raised
        raise


def _refuse_coroutine(fn: Callable[..., Any], value: Any) -> NoReturn:
    if inspect.iscoroutine(value):
        value.close()
    raise UsageError(
        f"{_name(fn)} is async and its handler is not. Write the handler with async def, or call a sync function."
    )


# ---------------------------------------------------------------- values and arguments
class Shape:
    """Converts a function's return value to JSON and back, by its return annotation or as plain JSON without one."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._name = _name(fn)
        self._adapter = _adapter(fn, self._name)

    def dump(self, value: Any) -> str:
        try:
            return encode(self._adapter.dump_python(value, mode="json", warnings=False), what=f"value of {self._name}")
        except PydanticSerializationError as error:
            raise PayloadError(
                f"The value of {self._name} cannot be saved: {error}. Annotate it with a return type that pydantic "
                "supports."
            ) from None

    def load(self, stored: str | None) -> Any:
        try:
            return self._adapter.validate_json("null" if stored is None else stored)
        except pydantic.ValidationError as error:
            raise PayloadError(
                f"The saved value of {self._name} does not fit its return annotation: {error.error_count()} errors."
            ) from None


def _adapter(fn: Callable[..., Any], name: str) -> pydantic.TypeAdapter[Any]:
    inner = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    try:
        hints = get_type_hints(inner, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    try:
        return pydantic.TypeAdapter(hints.get("return", Any))
    except pydantic.PydanticSchemaGenerationError:
        raise UsageError(
            f"{name} returns {hints['return']!r}, which cannot be saved as JSON. Return a type that pydantic supports."
        ) from None


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def hash_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return a hash of arguments that is the same in every process. Objects that are not JSON are hashed by type."""
    plain = to_jsonable_python(
        [args, dict(sorted(kwargs.items()))], fallback=lambda value: type(value).__qualname__, serialize_unknown=True
    )
    return hashlib.sha256(encode(plain, what="arguments", limit=1 << 30).encode()).hexdigest()[:32]
