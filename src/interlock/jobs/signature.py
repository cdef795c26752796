"""The payload and result types of a handler, read from its signature. Pydantic checks both; JSON stores them."""

import functools
import inspect
import re
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import pydantic
from pydantic_core import PydanticSerializationError
from typing_extensions import TypedDict

from ..core.payload import encode
from ..errors import PayloadError, UsageError
from ..store.types import Enqueued
from .handover import may_ask, value_type
from .run import Run, SyncRun

_NONE = inspect.Parameter.empty
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VALUES = (int, float, bool, str, bytes, list, dict, tuple, set)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMES_RUN = re.compile(r"\b(Sync)?Run\b")
_FORMS = "(run: Run, …) for async def, or (run: SyncRun, …) for def"


class Signature:
    """The parameters of one handler, without its run, and its return type."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name = name
        self.fn = fn
        self._payload_name, self._result_name = f"payload of {name}", f"result of {name}"
        self.is_async = inspect.iscoroutinefunction(fn)
        self.takes_run = takes_run(name, fn)
        self.handler = fn if self.takes_run else _ignore_run(fn)
        """The function as the worker calls it: always with a run first."""
        self._inner = _payload_part(fn, self.takes_run)
        self._names, self._count = self._inner.parameters.keys(), len(self._inner.parameters)
        self._by_name = all(parameter.kind in _BY_NAME for parameter in self._inner.parameters.values())
        self._in_order = tuple(
            name for name, parameter in self._inner.parameters.items() if parameter.kind in _BY_PLACE
        )
        """The names of the arguments that a call may give by place."""
        self._defaults = {
            parameter.name: _default(parameter)
            for parameter in self._inner.parameters.values()
            if _default(parameter) is not _NONE
        }
        self._asks = False
        self._adapters: tuple[pydantic.TypeAdapter[dict[str, Any]], pydantic.TypeAdapter[Any]] | None = None
        # An annotation may name a class that the module defines later: it is resolved at the first use.
        with suppress(NameError):
            self._adapters = self._build()

    # ------------------------------------------------------------ payload
    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments of a call and return them by name. `PayloadError` names each one that does not fit."""
        if self._by_name:  # faster, for calls that give each argument once: all by place, or all by name
            if not kwargs and len(args) == self._count and len(self._in_order) == self._count:
                return self.check(dict(zip(self._in_order, args, strict=True)))
            if not args and kwargs.keys() == self._names:
                return self.check(kwargs)
        try:
            bound = self._inner.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadError(f"{self.name}{self._inner} cannot be enqueued like this: {error}.") from None
        return self.check(bound.arguments)

    def check(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Check a payload and return its arguments by name.

        Missing ones get their defaults, since a stored payload may be older than the signature.
        """
        try:
            given = {**self._defaults, **payload} if self._defaults else payload
            checked: dict[str, Any] = self._payload.validator.validate_python(given)
        except pydantic.ValidationError as error:
            raise PayloadError(f"The payload does not fit {self.name}{self._inner}: {_sentences(error)}.") from None
        return checked

    def dump(self, arguments: dict[str, Any]) -> str:
        """Return checked arguments as canonical JSON."""
        try:
            return encode(self._payload.serializer.to_python(arguments, mode="json"), what=self._payload_name)
        except PydanticSerializationError as error:
            raise PayloadError(f"The payload of {self.name} cannot be stored: {error}.") from None

    def spread(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return checked arguments as positional and keyword arguments of a call."""
        bound = inspect.BoundArguments(self._inner, OrderedDict(arguments))
        return bound.args, bound.kwargs

    def bound(self, run: Any, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """Return the handler, ready to be called with a run and checked arguments."""
        if self._by_name:  # faster, and possible for nearly every handler
            return functools.partial(self.handler, run, **arguments)
        args, kwargs = self.spread(arguments)
        return functools.partial(self.handler, run, *args, **kwargs)

    def call(self, run: Any, arguments: Mapping[str, Any]) -> Any:
        """Call the handler with a run and checked arguments. The run is ignored if the handler takes none."""
        if self._by_name:  # faster, and possible for nearly every handler
            return self.fn(run, **arguments) if self.takes_run else self.fn(**arguments)
        return self.bound(run, arguments)()

    # ------------------------------------------------------------ result
    def dump_value(self, value: Any, got: str = "returned a value") -> str:
        """Return the job's value as canonical JSON. `got` says in an error where the value came from.

        `PayloadError` if it contradicts the annotation or cannot be stored.
        """
        try:
            adapter = self._value
            checked = adapter.validator.validate_python(value)
            return encode(adapter.serializer.to_python(checked, mode="json"), what=self._result_name)
        except pydantic.ValidationError as error:
            raise PayloadError(f"{self.name} {got} that its annotation does not allow: {_sentences(error)}.") from None
        except PydanticSerializationError as error:
            raise PayloadError(f"The result of {self.name} cannot be stored: {error}.") from None

    def load_value(self, stored: Any) -> Any:
        """Return a stored result as the type that the handler returns."""
        try:
            return self._value.validate_python(stored)
        except pydantic.ValidationError as error:
            raise PayloadError(
                f"The stored result no longer fits the return annotation of {self.name}: {_sentences(error)}."
            ) from None

    # ------------------------------------------------------------ types
    @property
    def asks(self) -> bool:
        """Whether the handler may return a question. False if its annotations cannot be read: each use reports that."""
        with suppress(UsageError):
            self._resolved()
        return self._asks

    @property
    def _payload(self) -> pydantic.TypeAdapter[dict[str, Any]]:
        return self._resolved()[0]

    @property
    def _value(self) -> pydantic.TypeAdapter[Any]:
        return self._resolved()[1]

    def _resolved(self) -> tuple[pydantic.TypeAdapter[dict[str, Any]], pydantic.TypeAdapter[Any]]:
        if self._adapters is None:
            try:
                self._adapters = self._build()
            except NameError as error:
                raise UsageError(
                    f"An annotation of {self.name} cannot be read: {error}. Define or import it at the top level of "
                    "its module."
                ) from None
        return self._adapters

    def _build(self) -> tuple[pydantic.TypeAdapter[dict[str, Any]], pydantic.TypeAdapter[Any]]:
        hints = get_type_hints(self.fn, include_extras=True)
        fields = {
            parameter.name: _field(parameter, hints.get(parameter.name, Any))
            for parameter in self._inner.parameters.values()
        }
        payload = _typed_dict(fields)
        returned = hints.get("return", Any)
        self._asks = may_ask(returned)
        try:
            return pydantic.TypeAdapter(payload), pydantic.TypeAdapter(value_type(returned))
        except pydantic.PydanticSchemaGenerationError as error:
            raise UsageError(
                f"{self.name} has a parameter or return type that pydantic cannot turn into JSON: "
                f"{error.message.splitlines()[0]}"
            ) from None


def check_run(name: str, fn: Callable[..., Any]) -> None:
    """Raise `UsageError` unless the function can take a run first: `Run` for async def, `SyncRun` for def."""
    if takes_run(name, fn):
        return
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is None or first.kind not in _BY_PLACE or _annotation(fn, first) in _VALUES:
        raise UsageError(f"{name} takes no run: write it as {_FORMS}.")


def takes_run(name: str, fn: Callable[..., Any]) -> bool:
    """Whether the function takes a run: its first parameter is annotated as `Run` or `SyncRun`, or is named run.

    `UsageError` if an async def takes a `SyncRun`, a def takes a `Run`, or the run is not the first parameter.
    """
    parameters = list(inspect.signature(fn).parameters.values())
    for parameter in parameters[1:] if parameters and parameters[0].kind in _BY_PLACE else parameters:
        if _run_class(name, fn, parameter) is not None:
            raise UsageError(
                f"{name} takes its run as {parameter.name}, which is not its first parameter: write it as {_FORMS}."
            )
    if not parameters or parameters[0].kind not in _BY_PLACE:
        return False
    first = parameters[0]
    found = _run_class(name, fn, first, must_read=True)
    if found is None:
        if first.name == "run":
            _refuse_value(name, fn, first)
        return first.name == "run"
    wrong, right, form = (SyncRun, "Run", "async def") if inspect.iscoroutinefunction(fn) else (Run, "SyncRun", "def")
    if found is wrong:
        raise UsageError(
            f"{name} is written with {form}, so it takes a {right}, not a {wrong.__name__}: change one of the two."
        )
    return True


def _run_class(
    name: str, fn: Callable[..., Any], parameter: inspect.Parameter, *, must_read: bool = False
) -> type | None:
    """Return `Run` or `SyncRun` if the parameter is annotated as one of them."""
    try:
        annotation: object = _annotation(fn, parameter)
    except Exception as error:  # noqa: BLE001 - an annotation is any expression
        # It may name a class that the module defines later, which is part of the payload.
        if not must_read or (parameter.name != "run" and not _NAMES_RUN.search(str(parameter.annotation))):
            return None
        raise UsageError(
            f"The annotation of {parameter.name} in {name} cannot be read: {error}. Import Run or SyncRun from "
            "interlock."
        ) from None
    runs: tuple[type, ...] = (Run, SyncRun)
    for run in runs:
        if annotation is run:
            return run
        if run in get_args(annotation):
            raise UsageError(
                f"{parameter.name} in {name} is a {run.__name__} or something else: annotate it as {run.__name__}."
            )
    return None


def _refuse_value(name: str, fn: Callable[..., Any], parameter: inspect.Parameter) -> None:
    """Raise `UsageError` if a parameter named run is annotated as a plain value."""
    annotation = _annotation(fn, parameter)
    if annotation in _VALUES:
        raise UsageError(
            f"The first parameter of {name} is named run, but is annotated as {annotation.__name__}: "
            f"give a value another name, or write {_FORMS}."
        )


def _ignore_run(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler without a run as one that takes and ignores it."""
    if inspect.iscoroutinefunction(fn):

        async def ahandler(_run: object, /, *args: Any, **kwargs: Any) -> Any:
            return await fn(*args, **kwargs)

        return ahandler

    def handler(_run: object, /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return handler


def with_job(name: str, fn: Callable[..., None]) -> Callable[..., None]:
    """Return `admit` as a function of the transaction, the new job and the payload.

    The job is passed on only if the second parameter of `fn` is annotated as `Enqueued`.
    """
    parameters = list(inspect.signature(fn).parameters.values())[:2]
    if len(parameters) == 2 and parameters[1].kind in _BY_PLACE and _is_enqueued(name, fn, parameters[1]):
        return fn

    def without_job(tx: object, job: Enqueued, *args: object, **kwargs: object) -> None:
        del job
        fn(tx, *args, **kwargs)

    return without_job


def _is_enqueued(name: str, fn: Callable[..., None], parameter: inspect.Parameter) -> bool:
    """Whether a parameter takes the new job.

    A parameter with an unreadable annotation belongs to the payload, unless the annotation names `Enqueued`.
    """
    try:
        annotation = _annotation(fn, parameter)
    except Exception as error:  # noqa: BLE001 - an annotation is any expression
        if Enqueued.__name__ not in str(parameter.annotation):
            return False
        raise UsageError(
            f"The annotation of {parameter.name} in {name}'s admit cannot be read: {error}. Import Enqueued from "
            "interlock."
        ) from None
    if annotation is not Enqueued and Enqueued in get_args(annotation):
        raise UsageError(
            f"{parameter.name} in {name}'s admit is an Enqueued or something else: annotate it as Enqueued."
        )
    return annotation is Enqueued


def _annotation(fn: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    # Resolve only this annotation: others may name a class that the module defines later.
    alone = types.SimpleNamespace(__annotations__={"this": parameter.annotation})
    return get_type_hints(alone, globalns=getattr(inspect.unwrap(fn), "__globals__", {}))["this"]


def _payload_part(fn: Callable[..., Any], takes_run: bool) -> inspect.Signature:
    """Return the signature without the run and the return annotation."""
    whole = inspect.signature(fn)
    parameters = list(whole.parameters.values())
    return whole.replace(parameters=parameters[1 if takes_run else 0 :], return_annotation=inspect.Signature.empty)


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple[hint, ...]
    return dict[str, hint] if parameter.kind is inspect.Parameter.VAR_KEYWORD else hint


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return ()
    return {} if parameter.kind is inspect.Parameter.VAR_KEYWORD else parameter.default


def _typed_dict(fields: dict[str, Any]) -> Any:
    make: Any = TypedDict  # built at run time, which no type checker follows
    made = make("Payload", fields)
    made.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    return made


def _sentences(error: pydantic.ValidationError) -> str:
    # Leave the input out: the sentence is logged, and payloads may be private.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(str(part) for part in one['loc']) or 'value'}: {one['msg']}" for one in found)
