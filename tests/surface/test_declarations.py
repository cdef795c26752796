"""Declarations and calls that can never work are refused with a message that says what to do."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from interlock import (
    App,
    Backoff,
    Enqueued,
    External,
    InterlockError,
    Job,
    Kind,
    Lifecycle,
    PayloadError,
    Run,
    SyncRun,
    Tx,
)
from interlock.errors import UsageError


async def greet(run: Run, name: str, times: int = 1, *, loud: bool = False) -> Greeting:
    raise NotImplementedError


def count(run: SyncRun, upto: int) -> int:
    return upto


async def fetch(run: Run, magnet: str) -> External[Greeting]:
    raise NotImplementedError


@dataclass
class Greeting:
    """Defined after the handlers that name it, as in real programs."""

    text: str
    at: datetime


@pytest.fixture
def app() -> App[Tx]:
    return App("sqlite:///never-opened.db")


# ---------------------------------------------------------------- payloads
def test_payload_has_all_arguments_by_name_with_defaults(app: App[Tx]) -> None:
    """However they are passed, the same arguments make the same text: an idempotency key compares it."""
    kind = app.job()(greet)
    text = '{"loud":false,"name":"Ann","times":1}'
    assert [
        call.payload
        for call in (kind.request("Ann"), kind.request(name="Ann", times=1), kind.request("Ann", loud=False))
    ] == [text] * 3


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'name'"),
        (("Ann", 1, 2), {}, "too many positional arguments"),
        (("Ann",), {"lowd": True}, "unexpected keyword argument 'lowd'"),
        (("Ann", "often"), {}, "times: Input should be a valid integer"),
        ((None,), {}, "name: Input should be a valid string"),
        (("\0",), {}, "a string contains a NUL character, at name"),
    ],
)
def test_payload_that_does_not_match_the_handler_is_refused(
    app: App[Tx], args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    """Before the database is used; the message does not repeat the value, which may be a secret."""
    kind: Kind[..., Any, Tx] = app.job()(greet)
    with pytest.raises(PayloadError) as caught:
        kind.enqueue(*args, **kwargs)
    assert said in str(caught.value)
    assert "greet" in str(caught.value)


def test_parameter_with_a_default_can_be_added_later(app: App[Tx]) -> None:
    """Waiting jobs get the default; a removed parameter is an error."""
    signature = app.job()(greet).spec.signature
    assert signature.spread(signature.check({"name": "Ann"})) == (("Ann", 1), {"loud": False})
    with pytest.raises(PayloadError, match="nickname: Extra inputs are not permitted"):
        signature.check({"name": "Ann", "nickname": "A"})


def test_arguments_are_read_back_unchanged(app: App[Tx]) -> None:
    """Variadic arguments, dataclasses and datetimes are restored from JSON."""

    @app.job()
    def many(run: SyncRun, first: int, /, *rest: float, greeting: Greeting, **options: list[datetime]) -> None: ...

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    call = many.request(1, 2.5, greeting=Greeting("hi", moment), when=[moment])
    signature = call.spec.signature
    assert (
        call.payload
        == '{"first":1,"greeting":{"at":"2026-01-02T00:00:00Z","text":"hi"},"options":{"when":["2026-01-02T00:00:00Z"]},"rest":[2.5]}'
    )
    assert signature.spread(signature.check(json.loads(call.payload))) == (
        (1, 2.5),
        {"greeting": Greeting("hi", moment), "when": [moment]},
    )


def test_result_has_the_type_of_the_return_annotation(app: App[Tx]) -> None:
    """Also for handed-over work: `External[X]` promises an X."""
    for handler in (greet, fetch):
        signature = app.job()(handler).spec.signature
        moment = datetime(2026, 1, 2, tzinfo=UTC)
        stored = signature.dump_value(Greeting("hi", moment))
        assert stored == '{"at":"2026-01-02T00:00:00Z","text":"hi"}'
        assert signature.load_value({"at": "2026-01-02T00:00:00Z", "text": "hi"}) == Greeting("hi", moment)
        with pytest.raises(PayloadError, match="returned a value that its annotation does not allow"):
            signature.dump_value(5)


def test_calling_a_kind_calls_the_plain_function(app: App[Tx]) -> None:
    """A unit test needs no engine."""
    assert app.job()(count)(None, 3) == 3


# ---------------------------------------------------------------- handlers
def test_run_must_match_async_or_sync_handler(app: App[Tx]) -> None:
    """`async def` takes a Run, `def` a SyncRun; the reverse is refused."""

    async def wrong_async(run: SyncRun) -> None: ...
    def wrong_sync(run: Run) -> None: ...
    def late_run(name: str, run: SyncRun) -> None: ...

    decorate: Any = app.job()
    for handler, said in (
        (wrong_async, "takes a Run, not a SyncRun"),
        (wrong_sync, "takes a SyncRun, not a Run"),
        (late_run, "takes its run as run, which is not its first parameter"),
    ):
        with pytest.raises(UsageError, match=said):
            decorate(handler)
    assert not app.kinds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tries": 0}, "tries of greet is 0"),
        ({"tries": True}, "tries of greet is True"),
        ({"lease": 0}, "lease of greet is zero"),
        ({"lease": -1}, "lease is -1"),
        ({"lease": "30"}, "lease is '30'"),
        ({"lease": float("nan")}, "lease is nan"),
        ({"max_runtime": timedelta(0)}, "max_runtime of greet is zero"),
        ({"commit_timeout": float("inf")}, "commit_timeout is inf"),
        ({"on_lost_lease": "shrug"}, "give one of rerun, fail, hold"),
        ({"key_until": ["dead"]}, "key_until of greet names 'dead'"),
        ({"key_until": "FAILED_"}, "key_until of greet names 'FAILED_'"),
        ({"queue": ""}, "queue is empty"),
        ({"kind": "two\nlines"}, "control character"),
    ],
)
def test_invalid_option_of_a_kind_is_refused(app: App[Tx], options: dict[str, Any], said: str) -> None:
    """When the kind is declared, not when its first job fails."""
    declare: Any = app.job
    with pytest.raises(InterlockError) as caught:
        declare(**options)(greet)
    assert said in str(caught.value)
    assert not app.kinds


def test_options_are_stored_in_the_declaration(app: App[Tx]) -> None:
    """Durations may be a timedelta, and `commit_timeout` defaults to the lease."""
    backoff = Backoff(5, jitter=False)
    kind = app.job(
        kind="hello",
        tries=7,
        lease=timedelta(minutes=1),
        queue="slow",
        backoff=backoff,
        on_lost_lease="hold",
        key_until=["FAILED"],
    )(greet)
    declared = kind.spec
    assert (kind.name, declared.lease, declared.commit_timeout, declared.queue, declared.max_runtime) == (
        "hello",
        60.0,
        60.0,
        "slow",
        3600.0,
    )
    assert (
        kind.spec.policy.tries,
        kind.spec.policy.backoff,
        kind.spec.policy.on_lost_lease,
        kind.spec.policy.key_until,
    ) == (
        7,
        backoff,
        "hold",
        ("FAILED",),
    )


def test_names_of_kinds_and_lifecycles_are_unique(app: App[Tx]) -> None:
    """Otherwise the import order would decide which one is used."""
    app.job()(greet)
    with pytest.raises(UsageError, match="already has a kind greet"):
        app.job()(greet)
    other = Lifecycle(
        "standard", transitions=[("a", "claim", "b"), ("b", "succeed", "c"), ("b", "fail", "d"), ("b", "lose", "a")]
    )
    with pytest.raises(UsageError, match="The lifecycle standard of again differs"):
        app.job(kind="again", lifecycle=other)(greet)


# ---------------------------------------------------------------- functions of a kind
def test_each_function_is_registered_once(app: App[Tx]) -> None:
    """A second registration would silently replace the first."""
    kind: Any = app.job()(greet)

    def function(*_: Any) -> None: ...

    async def finish(run: Run, value: Greeting) -> None: ...

    async def tell(external_id: str) -> None: ...

    for register in (kind.commit, kind.finish, kind.guard, kind.admit, kind.on_cancel, kind.on_enter("FAILED")):
        fn: Any = {kind.finish: finish, kind.on_cancel: tell}.get(register, function)
        assert register(fn) is fn
        with pytest.raises(UsageError, match=r"already has an? .* function"):
            register(fn)
    assert kind.facts().hooks == ("FAILED",)


def test_functions_inside_a_transaction_cannot_be_async(app: App[Tx]) -> None:
    """No code may await while rows are locked."""
    kind: Any = app.job()(greet)

    async def function(*_: Any) -> None: ...

    for register in (kind.commit, kind.admit, kind.on_enter("FAILED")):
        with pytest.raises(UsageError, match="write it with def"):
            register(function)


def test_admit_receives_the_job_only_by_its_annotation(app: App[Tx]) -> None:
    """A parameter whose annotation cannot be read belongs to the payload, unless it names the class."""
    job = Enqueued("01", created=True)
    told: list[tuple[object, ...]] = []

    class Callable:
        def __call__(self, tx: object, name: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
            told.append((tx, name))

    def aware(tx: object, job: Enqueued, name: str) -> None:
        told.append((tx, job, name))

    for number, fn in enumerate((Callable(), functools.partial(Callable()), aware)):
        kind: Any = app.job(kind=f"kind{number}")(greet)
        kind.admit(fn)
        kind.spec.admit("tx", job, "Ann")
    assert told == [("tx", "Ann"), ("tx", "Ann"), ("tx", job, "Ann")]


@pytest.mark.parametrize(
    ("annotation", "word"), [("gone.Enqueued", "cannot be read"), ("Enqueued | None", "annotate it as Enqueued")]
)
def test_unclear_annotation_of_enqueued_is_refused(app: App[Tx], annotation: str, word: str) -> None:
    def admit(tx: object, job: object) -> None: ...

    admit.__annotations__["job"] = annotation
    kind: Any = app.job()(greet)
    with pytest.raises(UsageError, match=word):
        kind.admit(admit)


def test_hook_needs_a_state_that_a_move_enters(app: App[Tx]) -> None:
    """Protocol 27: claims are batched, so no function runs in them."""
    kind = app.job()(greet)
    with pytest.raises(UsageError, match="claims enter it in batches"):
        kind.on_enter("RUNNING")
    with pytest.raises(UsageError, match="which is not a state of its lifecycle standard: give one of PENDING"):
        kind.on_enter("ASLEEP")


def test_function_registered_through_using_belongs_to_the_kind(app: App[Tx]) -> None:
    """`using` returns the same kind with other options."""
    kind = app.job()(count)

    @kind.using(queue="slow").commit
    def record(tx: Tx, job: Job, value: int) -> None: ...

    assert kind.spec.commit is record
