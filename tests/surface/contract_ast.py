"""Reads the contract: its classes with their attributes, methods and parameters."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CONTRACT = Path(__file__).parent / "contract" / "api.pyi"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, without `self`."""

    name: str
    kind: str
    has_default: bool
    any_: bool


@dataclass(frozen=True, slots=True)
class Method:
    """One definition of a method; an overloaded method has several."""

    name: str
    is_async: bool
    parameters: tuple[Parameter, ...]
    returns_any: bool


@dataclass(slots=True)
class Class:
    """A class, including what it inherits from other classes of the contract."""

    name: str
    bases: list[str]
    attributes: set[str] = field(default_factory=set)
    methods: dict[str, list[Method]] = field(default_factory=dict)


def classes() -> dict[str, Class]:
    """Return all classes of the contract, by name."""
    found: dict[str, Class] = {}
    for node in ast.parse(CONTRACT.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = _class(node, found)
    return found


def public_names() -> set[str]:
    """Return the names that the package exports: the public classes, and the alias `Answer`."""
    return {name for name in classes() if not name.startswith("_")} | {"Answer"}


def _class(node: ast.ClassDef, known: dict[str, Class]) -> Class:
    made = Class(node.name, [base.id for base in node.bases if isinstance(base, ast.Name)])
    for base in made.bases:
        if base in known:
            made.attributes |= known[base].attributes
            made.methods |= known[base].methods
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            made.attributes.add(item.target.id)
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            made.methods.setdefault(item.name, []).append(_method(item))
    return made


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Method:
    return Method(
        node.name, isinstance(node, ast.AsyncFunctionDef), tuple(_parameters(node.args))[1:], mentions_any(node.returns)
    )


def _parameters(args: ast.arguments) -> Iterator[Parameter]:
    placed = [(arg, "POSITIONAL_ONLY") for arg in args.posonlyargs] + [
        (arg, "POSITIONAL_OR_KEYWORD") for arg in args.args
    ]
    required = len(placed) - len(args.defaults)
    for place, (arg, kind) in enumerate(placed):
        yield Parameter(arg.arg, kind, place >= required, mentions_any(arg.annotation))
    if args.vararg:
        yield Parameter(args.vararg.arg, "VAR_POSITIONAL", False, mentions_any(args.vararg.annotation))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield Parameter(arg.arg, "KEYWORD_ONLY", default is not None, mentions_any(arg.annotation))
    if args.kwarg:
        yield Parameter(args.kwarg.arg, "VAR_KEYWORD", False, mentions_any(args.kwarg.annotation))


def mentions_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation)
    )
