"""`@app.job` with and without parentheses, and handlers with and without a run."""

import asyncio
from typing import Any

import pytest

from interlock import App, Lifecycle, LifecycleError, Run, SyncRun, Tx, UsageError
from tests.kit import Place


@pytest.fixture
def app(place: Place) -> App[Tx]:
    return App(place.url, schema=place.schema)


def test_decorator_works_without_parentheses(app: App[Tx]) -> None:
    @app.job
    def add(run: SyncRun, a: int, b: int) -> int:
        return a + b

    assert add(None, 1, 2) == 3
    assert (add.name, app.kinds["add"]) == ("add", add)


def test_handler_without_a_run_runs_in_a_worker(app: App[Tx]) -> None:
    """Also as a coroutine, and with a first parameter of any type."""

    @app.job
    def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job(kind="greet")
    async def greet(names: list[str]) -> str:
        return ", ".join(names)

    @app.job
    def tick() -> str:
        return "tock"

    app.migrate()
    handles: list[Any] = [add.enqueue(1, b=2), greet.enqueue(["Ann", "Bob"]), tick.enqueue()]
    assert app.run_until_idle() == 3
    assert [handle.result(timeout=0) for handle in handles] == [3, "Ann, Bob", "tock"]
    app.close()


def test_run_is_passed_by_its_annotation_or_its_name(app: App[Tx]) -> None:
    @app.job
    def annotated(context: SyncRun, n: int) -> int:
        return context.attempt + n

    @app.job
    async def named(run: Any, n: int) -> int:
        return int(run.attempt) + n

    app.migrate()
    handles: list[Any] = [annotated.enqueue(1), named.enqueue(n=2)]
    app.run_until_idle()
    assert [handle.result(timeout=0) for handle in handles] == [2, 3]
    app.close()


def test_called_kind_is_the_plain_function(app: App[Tx]) -> None:
    """With its own signature: a run only if the function has one."""

    @app.job
    def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job
    async def greet(run: Run, name: str) -> str:
        return f"hello {name}"

    assert add(1, b=2) == 3
    assert asyncio.run(greet(None, "Ann")) == "hello Ann"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": 7}, "kind is 7: give a string"),
        ({"lifecycle": 7}, "lifecycle is 7: give a Lifecycle, or the name"),
        ({"process": "yes"}, "process is 'yes': give True or False"),
        ({"backoff": 5}, r"backoff is 5: give a Backoff, such as Backoff\(5\)"),
        ({"key_until": 5}, "key_until is 5: give a list of states"),
        ({"error_policy": 5}, "error_policy is 5: give a function"),
        ({"queue": 7}, "queue is 7: give a string"),
        ({"tries": "three"}, "tries of nothing is 'three': give a whole number"),
    ],
)
def test_invalid_option_is_refused_with_a_message(app: App[Tx], options: dict[str, Any], sentence: str) -> None:
    def nothing() -> None: ...

    declare: Any = app.job
    with pytest.raises(UsageError, match=sentence):
        declare(**options)(nothing)
    assert not app.kinds


def test_name_given_by_position_is_refused(app: App[Tx]) -> None:
    declare: Any = app.job
    with pytest.raises(UsageError, match=r"app\.job got 'greet': give options by keyword"):
        declare("greet")


def test_run_must_have_a_readable_annotation_and_be_first(app: App[Tx]) -> None:
    def unreadable(context: object) -> None: ...
    def perhaps(run: SyncRun | None) -> None: ...
    def by_keyword(*, run: SyncRun) -> None: ...

    unreadable.__annotations__["context"] = "elsewhere.Run"
    decorate: Any = app.job
    for handler, sentence in (
        (unreadable, "Import Run or SyncRun from interlock"),
        (perhaps, "annotate it as SyncRun"),
        (by_keyword, "is not its first parameter"),
    ):
        with pytest.raises(UsageError, match=sentence):
            decorate(handler)


def test_builtin_lifecycle_is_given_by_name(app: App[Tx]) -> None:
    @app.job(lifecycle="task")
    def chore() -> None: ...

    assert chore.spec.lifecycle == Lifecycle.builtin("task")
    with pytest.raises(LifecycleError, match="standard, state_model, task"):
        app.job(lifecycle="tsk")(lambda: None)
