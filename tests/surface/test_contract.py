"""The package matches its contract: exported names, bases, attributes, methods and parameters."""

import inspect
import re
import typing
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

import interlock
from tests.surface.contract_ast import Class, Parameter, classes, public_names

PUBLIC = {name: cls for name, cls in classes().items() if not name.startswith("_")}
METHODS = [(cls, name) for cls in PUBLIC.values() for name in cls.methods]


def in_package(cls: Class) -> type[Any]:
    return getattr(interlock, cls.name)


def definitions(cls: Class, name: str) -> list[Callable[..., Any]]:
    """Return the overloads of a method, or its only definition."""
    owner = next(base for base in in_package(cls).__mro__ if name in base.__dict__)
    # Look it up by name: a protocol has overloads without an implementation.
    place: Any = SimpleNamespace(__module__=owner.__module__, __qualname__=f"{owner.__qualname__}.{name}")
    function = owner.__dict__[name]
    return list(typing.get_overloads(place)) or [getattr(function, "__func__", function)]


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    signature = inspect.signature(function)
    return [
        Parameter(one.name, one.kind.name, one.default is not one.empty, says_any(one.annotation))
        for one in list(signature.parameters.values())[1:]
    ]


def says_any(annotation: object) -> bool:
    return re.search(r"\bAny\b", str(annotation)) is not None


def shape(parameters: Iterable[Parameter]) -> list[tuple[str, str, bool]]:
    return [(one.name, one.kind, one.has_default) for one in parameters]


def test_exported_names_are_those_of_the_contract() -> None:
    """`__all__` has exactly the contract's public names, and each exists."""
    assert set(interlock.__all__) == public_names()
    assert sorted(interlock.__all__) == interlock.__all__
    for name in interlock.__all__:
        assert hasattr(interlock, name)


@pytest.mark.parametrize("cls", PUBLIC.values(), ids=lambda cls: cls.name)
def test_classes_have_the_bases_of_the_contract(cls: Class) -> None:
    """A public or built-in base in the contract is a base in the package."""
    for base in cls.bases:
        if base == "Exception" or base in PUBLIC:
            assert issubclass(in_package(cls), Exception if base == "Exception" else getattr(interlock, base))


@pytest.mark.parametrize("cls", PUBLIC.values(), ids=lambda cls: cls.name)
def test_classes_have_the_attributes_of_the_contract(cls: Class) -> None:
    """Each attribute is declared or is a property."""
    declared = {name for base in in_package(cls).__mro__ for name in inspect.get_annotations(base)}
    missing = {
        name
        for name in cls.attributes - declared
        if not isinstance(inspect.getattr_static(in_package(cls), name, None), property)
    }
    assert not missing


@pytest.mark.parametrize(("cls", "name"), METHODS, ids=lambda part: part if isinstance(part, str) else part.name)
def test_methods_have_the_parameters_of_the_contract(cls: Class, name: str) -> None:
    """The same parameters, of the same kinds, in the same order and with the same defaults; async if the contract is."""
    promised, found = cls.methods[name], definitions(cls, name)
    assert [shape(method.parameters) for method in promised] == [shape(parameters(each)) for each in found]
    assert [method.is_async for method in promised] == [inspect.iscoroutinefunction(each) for each in found]


@pytest.mark.parametrize(("cls", "name"), METHODS, ids=lambda part: part if isinstance(part, str) else part.name)
def test_signatures_use_any_only_if_the_contract_does(cls: Class, name: str) -> None:
    """`Any` hides type errors, so the contract lists each use."""
    for method, function in zip(cls.methods[name], definitions(cls, name), strict=True):
        holes = {one.name for one in parameters(function) if one.any_}
        assert holes <= {one.name for one in method.parameters if one.any_}
        assert method.returns_any or not says_any(inspect.signature(function).return_annotation)
