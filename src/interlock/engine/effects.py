"""Steps and outside calls: what is remembered, what is asked for, and what to do in doubt. Written once, as flows that say what to do next.

A flow yields `Written` (something for the ledger, which may block) and `Called` (the user's own function), and is driven by `drive` in a thread or by
`adrive` in an event loop.
"""

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol, Self, get_type_hints

import pydantic
from pydantic_core import PydanticSerializationError, to_jsonable_python

from .errors import PayloadError, UsageError
from .payload import check_name, encode
from .records import Receipt
from .taxonomy import surely_not_applied
from .user_code import protected

OnDoubt = Literal["retry", "hold", "skip"] | Callable[[str], Awaitable[Any]]
DOUBTS = ("retry", "hold", "skip")
BEFORE_OR_AFTER = "it is stored at once, even if the transaction rolls back, so call it before or after the block"


class Ledger(Protocol):
    """Where an execution writes: its store under its fence, or a pipe to that. Each verb raises `LeaseLost` where the fence no longer holds."""

    def check(self) -> None:
        """Raises `LeaseLost` or `Cancelled` where the handler has to stop."""
        ...

    def outside(self, verb: str) -> None:
        """Raise `UsageError` if the handler has an open transaction, since the ledger would wait for its end."""
        ...

    def advance(self, stage: str) -> None: ...

    def receipts(self) -> list[Receipt]: ...

    def remember(self, name: str, args_hash: str, value: str) -> None: ...

    def ask(self, name: str, args_hash: str) -> None: ...

    def apply(self, name: str, value: str | None, decided_by: str) -> None: ...

    def unask(self, name: str) -> None: ...


class Doubtful(Exception):
    """An outside call may have happened, and an operator is to decide: the job is held."""


class aged(str):  # noqa: N801, SLOT000 - used as a word: run.step(aged("link", 300), …)
    """A step's name whose value is taken afresh once it is older than `max_age` seconds."""

    max_age: float

    def __new__(cls, name: str, max_age: float) -> Self:
        made = super().__new__(cls, name)
        made.max_age = max_age
        return made


@dataclass(frozen=True, slots=True)
class Written:
    """To be done at the ledger."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Called:
    """To be called as its user wrote it: a function, or a coroutine function."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Flow = Generator[Written | Called, Any, Any]


class Book:
    """The receipts of one attempt: those of earlier attempts, read at the first use, and the names that this one has used."""

    def __init__(self, ledger: Ledger, root: str) -> None:
        self.ledger = ledger
        self._root = root
        self._used: set[str] = set()
        self._known: dict[str, Receipt] | None = None

    def key(self, name: str) -> str:
        return f"{self._root}:{name}"

    def open(self, kind: Literal["step", "effect"], name: str, args_hash: str) -> Receipt | None:
        """What an earlier attempt left under this name. `UsageError` for a name used twice, or with other arguments than before."""
        self.ledger.check()
        check_name(f"The name of a {kind}", name)
        if name in self._used:
            raise UsageError(f"The name {name!r} is used twice in one attempt: give each step and each effect of a job a name of its own.")
        self._used.add(name)
        if self._known is None:
            self._known = {receipt.name: receipt for receipt in self.ledger.receipts()}
        found = self._known.get(name)
        if found is not None and found.kind != kind:
            raise UsageError(f"{name!r} was kept as {found.kind} by an earlier attempt and is used as {kind} now: give one of them another name.")
        if found is not None and found.args_hash != args_hash and not _too_old(name, found):
            raise UsageError(
                f"The {kind} {name!r} is called with other arguments than in an earlier attempt, so its receipt does not speak of this call: "
                "pass what stays the same, or use another name for another call.")
        return found


def _too_old(name: str, receipt: Receipt) -> bool:
    return isinstance(name, aged) and receipt.age > name.max_age


# ---------------------------------------------------------------- the flows
def step(book: Book, name: str, call: Called) -> Flow:
    """The value that an earlier attempt got from the call, or that of making it now, remembered. Both are the same: the value as it is stored."""
    shape, digest = Shape(call.fn), hash_of(call.args, call.kwargs)
    found = yield Written(lambda: book.open("step", name, digest))
    if found is not None and found.applied and not _too_old(name, found):
        return shape.load(found.value)
    value = yield call
    stored = shape.dump(value)
    yield Written(lambda: book.ledger.remember(str(name), digest, stored))
    return shape.load(stored)


def effect(book: Book, name: str, on_doubt: OnDoubt, call: Called) -> Flow:
    """An outside call with a receipt: applied once, and in doubt what `on_doubt` says."""
    shape, digest, ledger = Shape(call.fn), hash_of(call.args, call.kwargs), book.ledger
    found: Receipt | None = yield Written(lambda: book.open("effect", name, digest))
    if found is not None and found.applied:
        return None if found.value is None else shape.load(found.value)
    if found is not None:
        if on_doubt == "hold":
            raise Doubtful(
                f'nobody knows whether {name!r} happened at attempt {found.attempt}: find out, then release the job with effect="happened" or effect="did_not"')
        if on_doubt == "skip":
            yield Written(lambda: ledger.ask(name, digest))
            yield Written(lambda: ledger.apply(name, None, "skip"))
            return None
        if callable(on_doubt):
            truth = yield Called(on_doubt, (book.key(name),), {})
            if truth is not None:
                yield Written(lambda: ledger.ask(name, digest))
                return (yield from _apply(ledger, shape, name, truth, "lookup"))
    try:
        yield Written(lambda: ledger.ask(name, digest))
    except asyncio.CancelledError:
        # Asked for, and stopped before the call: there is nothing to doubt.
        yield Written(lambda: ledger.unask(name))
        raise
    try:
        value = yield call
    except BaseException as error:
        if surely_not_applied(error):
            yield Written(lambda: ledger.unask(name))
        raise
    return (yield from _apply(ledger, shape, name, value, "worker"))


def _apply(ledger: Ledger, shape: "Shape", name: str, value: Any, decided_by: str) -> Flow:
    try:
        stored = shape.dump(value)
    except PayloadError:
        # It happened, whatever it answered: that must not be forgotten.
        yield Written(lambda: ledger.apply(name, None, decided_by))
        raise
    yield Written(lambda: ledger.apply(name, stored, decided_by))
    return shape.load(stored)


# ---------------------------------------------------------------- driving
def drive(flow: Flow) -> Any:
    """Carry a flow out in this thread."""

    def do(asked: Written | Called) -> Any:
        if isinstance(asked, Written):
            return asked.work()
        value = asked.fn(*asked.args, **asked.kwargs)
        if inspect.isawaitable(value):
            _refuse_coroutine(asked.fn, value)
        return value

    try:
        asked = next(flow)
        while True:
            try:
                answer = do(asked)
            except BaseException as error:  # noqa: BLE001 - the flow decides what to make of it
                asked = flow.throw(error)
            else:
                asked = flow.send(answer)
    except StopIteration as end:
        return end.value


Hop = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
"""Does something that may block, in a thread."""


async def adrive(flow: Flow, hop: Hop, write: Hop) -> Any:
    """Carry a flow out in an event loop; what may block goes through `hop`, to a thread, and what is for the ledger through `write`."""

    async def do(asked: Written | Called) -> Any:
        if isinstance(asked, Written):
            return await _to_its_end(write(asked.work))
        call = functools.partial(asked.fn, *asked.args, **asked.kwargs)
        value = call() if inspect.iscoroutinefunction(asked.fn) else await hop(call)
        return await value if inspect.isawaitable(value) else value

    try:
        asked = next(flow)
        while True:
            try:
                answer = await do(asked)
            except BaseException as error:  # noqa: BLE001 - the flow decides what to make of it
                asked = flow.throw(error)
            else:
                asked = flow.send(answer)
    except StopIteration as end:
        return end.value


async def _to_its_end(write: Coroutine[Any, Any, Any]) -> Any:
    """A write that was begun ends, whoever is cancelled meanwhile: what is known must not be lost half way."""
    task = protected(write)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # heard, though the cancellation is what goes on
        raise


def _refuse_coroutine(fn: Callable[..., Any], value: Any) -> NoReturn:
    if inspect.iscoroutine(value):
        value.close()
    raise UsageError(f"{_name(fn)} is async, and its handler is not: write the handler with async def, or call something that is not async.")


# ---------------------------------------------------------------- values and arguments
class Shape:
    """What a function returns, as JSON and back: by its return annotation, or as plain JSON where it has none."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._name = _name(fn)
        self._adapter = _adapter(fn, self._name)

    def dump(self, value: Any) -> str:
        try:
            return encode(self._adapter.dump_python(value, mode="json", warnings=False), what=f"value of {self._name}")
        except PydanticSerializationError as error:
            raise PayloadError(f"What {self._name} returned cannot be remembered: {error}. Annotate its return type with what pydantic knows.") from None

    def load(self, stored: str | None) -> Any:
        try:
            return self._adapter.validate_json("null" if stored is None else stored)
        except pydantic.ValidationError as error:
            raise PayloadError(f"What is remembered of {self._name} no longer fits its return annotation: {error.error_count()} faults.") from None


def _adapter(fn: Callable[..., Any], name: str) -> pydantic.TypeAdapter[Any]:
    inner = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    try:
        hints = get_type_hints(inner, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    try:
        return pydantic.TypeAdapter(hints.get("return", Any))
    except pydantic.PydanticSchemaGenerationError:
        raise UsageError(f"{name} returns {hints['return']!r}, which cannot be remembered as JSON: let it return what pydantic knows.") from None


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def hash_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Arguments as a short text that is the same for the same arguments in every process; an object without a value of its own counts by its type."""
    plain = to_jsonable_python([args, dict(sorted(kwargs.items()))], fallback=lambda value: type(value).__qualname__, serialize_unknown=True)
    return hashlib.sha256(encode(plain, what="arguments", limit=1 << 30).encode()).hexdigest()[:32]
