"""A handler's signature as the type of its payload and of its value: pydantic checks both, and JSON stores them."""

import functools
import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, get_args, get_origin, get_type_hints

import pydantic
from pydantic_core import PydanticSerializationError
from typing_extensions import TypedDict

from .answers import External
from .errors import PayloadError, UsageError
from .payload import encode
from .records import Enqueued
from .run import Run, SyncRun

_NONE = inspect.Parameter.empty
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VALUES = (int, float, bool, str, bytes, list, dict, tuple, set)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signature:
    """What one handler takes after its run, and what it gives."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name = name
        self.fn = fn
        self.is_async = inspect.iscoroutinefunction(fn)
        self._inner = check_run(name, fn)
        self._by_name = all(parameter.kind in _BY_NAME for parameter in self._inner.parameters.values())
        self._defaults = {parameter.name: _default(parameter) for parameter in self._inner.parameters.values() if _default(parameter) is not _NONE}
        self._adapters: tuple[pydantic.TypeAdapter[dict[str, Any]], pydantic.TypeAdapter[Any]] | None = None
        # A class that is defined further down in the module is known at the first use.
        with suppress(NameError):
            self._adapters = self._build()

    # ------------------------------------------------------------ payload
    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The checked arguments of a call, by name. `PayloadError` naming each one that does not fit."""
        try:
            bound = self._inner.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadError(f"{self.name}{self._inner} cannot be enqueued like this: {error}.") from None
        return self.check(bound.arguments)

    def check(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """A payload, as given or as stored, as checked arguments by name. Defaults are filled in: a stored one may be older than a parameter."""
        try:
            return self._payload.validate_python({**self._defaults, **payload})
        except pydantic.ValidationError as error:
            raise PayloadError(f"The payload does not fit {self.name}{self._inner}: {_sentences(error)}.") from None

    def dump(self, arguments: dict[str, Any]) -> str:
        """Checked arguments as canonical JSON."""
        try:
            return encode(self._payload.dump_python(arguments, mode="json"), what=f"payload of {self.name}")
        except PydanticSerializationError as error:
            raise PayloadError(f"The payload of {self.name} cannot be stored: {error}.") from None

    def spread(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Checked arguments as a call takes them, after whatever comes first."""
        bound = inspect.BoundArguments(self._inner, OrderedDict(arguments))
        return bound.args, bound.kwargs

    def bound(self, run: Any, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """The handler, ready to be called with checked arguments."""
        if self._by_name:  # as nearly all are, and much quicker
            return functools.partial(self.fn, run, **arguments)
        args, kwargs = self.spread(arguments)
        return functools.partial(self.fn, run, *args, **kwargs)

    # ------------------------------------------------------------ value
    def dump_value(self, value: Any) -> str:
        """What the handler returned, as canonical JSON. `PayloadError` if it is not what its annotation says, or cannot be stored."""
        try:
            return encode(self._value.dump_python(self._value.validate_python(value), mode="json"), what=f"result of {self.name}")
        except pydantic.ValidationError as error:
            raise PayloadError(f"{self.name} returned what its annotation does not allow: {_sentences(error)}.") from None
        except PydanticSerializationError as error:
            raise PayloadError(f"The result of {self.name} cannot be stored: {error}.") from None

    def load_value(self, stored: Any) -> Any:
        """A stored result as the handler's own type."""
        try:
            return self._value.validate_python(stored)
        except pydantic.ValidationError as error:
            raise PayloadError(f"The stored result no longer fits what {self.name} returns: {_sentences(error)}.") from None

    # ------------------------------------------------------------ types
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
                raise UsageError(f"An annotation of {self.name} cannot be read: {error}. Define or import it at the top level of its module.") from None
        return self._adapters

    def _build(self) -> tuple[pydantic.TypeAdapter[dict[str, Any]], pydantic.TypeAdapter[Any]]:
        hints = get_type_hints(self.fn, include_extras=True)
        fields = {parameter.name: _field(parameter, hints.get(parameter.name, Any)) for parameter in self._inner.parameters.values()}
        payload = _typed_dict(fields)
        returned = hints.get("return", Any)
        if get_origin(returned) is External:
            returned = get_args(returned)[0]
        try:
            return pydantic.TypeAdapter(payload), pydantic.TypeAdapter(returned)
        except pydantic.PydanticSchemaGenerationError as error:
            raise UsageError(f"{self.name} takes or returns what pydantic cannot turn into JSON: {error.message.splitlines()[0]}") from None


def check_run(name: str, fn: Callable[..., Any]) -> inspect.Signature:
    """What a function takes after its run. `UsageError` if it takes none, or the wrong one of the two."""
    whole = inspect.signature(fn)
    parameters = list(whole.parameters.values())
    if not parameters or parameters[0].kind not in _BY_PLACE:
        raise UsageError(f"{name} takes no run: write it as (run: Run, …) for async def, or (run: SyncRun, …) for def.")
    try:
        annotation = _annotation(fn, parameters[0])
    except NameError as error:
        raise UsageError(f"The annotation of {name}'s run cannot be read: {error}. Import Run or SyncRun from interlock.") from None
    if annotation in _VALUES:
        first = f"its first parameter is {annotation.__name__}"
        raise UsageError(f"{name} takes no run, since {first}: write it as (run: Run, …) for async def, or (run: SyncRun, …) for def.")
    wrong, right, form = (SyncRun, "Run", "async def") if inspect.iscoroutinefunction(fn) else (Run, "SyncRun", "def")
    if annotation is wrong:
        raise UsageError(f"{name} is written with {form}, so it holds a {right}, not a {wrong.__name__}: change one of the two.")
    return whole.replace(parameters=parameters[1:], return_annotation=inspect.Signature.empty)


def admission(name: str, fn: Callable[..., None]) -> Callable[..., None]:
    """An `admit` function as it is called: with the transaction, the new job, and the payload. One that names no `Enqueued` second is not told of the job."""
    parameters = list(inspect.signature(fn).parameters.values())[:2]
    if len(parameters) == 2 and parameters[1].kind in _BY_PLACE and _is_enqueued(name, fn, parameters[1]):
        return fn

    def unaware(tx: object, job: Enqueued, *args: object, **kwargs: object) -> None:
        del job
        fn(tx, *args, **kwargs)

    return unaware


def _is_enqueued(name: str, fn: Callable[..., None], parameter: inspect.Parameter) -> bool:
    """Whether a parameter is for the new job. What cannot be read is part of the payload, unless it names the class."""
    try:
        annotation = _annotation(fn, parameter)
    except Exception as error:  # noqa: BLE001 - an annotation is any expression
        if Enqueued.__name__ not in str(parameter.annotation):
            return False
        raise UsageError(f"The annotation of {parameter.name} in {name}'s admit cannot be read: {error}. Import Enqueued from interlock.") from None
    if annotation is not Enqueued and Enqueued in get_args(annotation):
        raise UsageError(f"{parameter.name} in {name}'s admit may be an Enqueued and may be none: annotate it as Enqueued, since there always is a new job.")
    return annotation is Enqueued


def _annotation(fn: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    # Alone, since another annotation may name a class that comes later.
    alone = types.SimpleNamespace(__annotations__={"this": parameter.annotation})
    return get_type_hints(alone, globalns=getattr(inspect.unwrap(fn), "__globals__", {}))["this"]


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple[hint, ...]
    return dict[str, hint] if parameter.kind is inspect.Parameter.VAR_KEYWORD else hint


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return ()
    return {} if parameter.kind is inspect.Parameter.VAR_KEYWORD else parameter.default


def _typed_dict(fields: dict[str, Any]) -> Any:
    make: Any = TypedDict  # made at run time, which no checker follows
    made = make("Payload", fields)
    made.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    return made


def _sentences(error: pydantic.ValidationError) -> str:
    # Without the input: a sentence goes to logs, where payloads do not belong.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(str(part) for part in one['loc']) or 'value'}: {one['msg']}" for one in found)
