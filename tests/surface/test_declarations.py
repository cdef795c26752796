"""What can never work is refused when it is declared or called, in one sentence that says what to do."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from interlock import App, Backoff, Enqueued, External, InterlockError, Job, Kind, Lifecycle, PayloadError, Run, SyncRun, Tx
from interlock.database import FALLBACK, choose_url
from interlock.errors import UsageError

TASK = Lifecycle("task", transitions=[
    ("pending", "claim", "running"), ("running", "succeed", "done"), ("running", "fail", "error"), ("running", "lose", "pending"),
])


async def greet(run: Run, name: str, times: int = 1, *, loud: bool = False) -> Greeting:
    raise NotImplementedError


def count(run: SyncRun, upto: int) -> int:
    return upto


async def fetch(run: Run, magnet: str) -> External[Greeting]:
    raise NotImplementedError


@dataclass
class Greeting:
    """Defined after the handlers that name it, as happens."""

    text: str
    at: datetime


@pytest.fixture
def app() -> App[Tx]:
    return App("sqlite:///never-opened.db")


# ---------------------------------------------------------------- payloads
def test_a_payload_is_the_arguments_by_name_with_defaults(app: App[Tx]) -> None:
    """However it is called, the same arguments are the same text: an idempotency key compares it."""
    kind = app.job()(greet)
    text = '{"loud":false,"name":"Ann","times":1}'
    assert [call.payload for call in (kind.call("Ann"), kind.call(name="Ann", times=1), kind.call("Ann", loud=False))] == [text] * 3


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'name'"),
        (("Ann", 1, 2), {}, "too many positional arguments"),
        (("Ann",), {"lowd": True}, "unexpected keyword argument 'lowd'"),
        (("Ann", "often"), {}, "times: Input should be a valid integer"),
        ((None,), {}, "name: Input should be a valid string"),
        (("\0",), {}, "a string holds a NUL character, at name"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(app: App[Tx], args: tuple[Any, ...], kwargs: dict[str, Any], said: str) -> None:
    """Before any database is asked; and the sentence does not repeat the value, which may be a secret."""
    kind: Kind[..., Any, Tx] = app.job()(greet)
    with pytest.raises(PayloadError) as caught:
        kind.enqueue(*args, **kwargs)
    assert said in str(caught.value)
    assert "greet" in str(caught.value)


def test_a_stored_payload_may_be_older_than_a_parameter(app: App[Tx]) -> None:
    """A parameter with a default can be added while jobs wait; one that is gone is an error."""
    signature = app.job()(greet).declaration.signature
    assert signature.spread(signature.check({"name": "Ann"})) == (("Ann", 1), {"loud": False})
    with pytest.raises(PayloadError, match="nickname: Extra inputs are not permitted"):
        signature.check({"name": "Ann", "nickname": "A"})


def test_arguments_come_back_as_they_went(app: App[Tx]) -> None:
    """Stars, dataclasses and datetimes survive the way through JSON."""

    @app.job()
    def many(run: SyncRun, first: int, /, *rest: float, greeting: Greeting, **options: list[datetime]) -> None: ...

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    call = many.call(1, 2.5, greeting=Greeting("hi", moment), when=[moment])
    signature = call.declaration.signature
    assert call.payload == '{"first":1,"greeting":{"at":"2026-01-02T00:00:00Z","text":"hi"},"options":{"when":["2026-01-02T00:00:00Z"]},"rest":[2.5]}'
    assert signature.spread(signature.check(json.loads(call.payload))) == ((1, 2.5), {"greeting": Greeting("hi", moment), "when": [moment]})


def test_a_value_is_typed_by_the_return_annotation(app: App[Tx]) -> None:
    """Also one that is handed over: `External[X]` promises an X."""
    for handler in (greet, fetch):
        signature = app.job()(handler).declaration.signature
        moment = datetime(2026, 1, 2, tzinfo=UTC)
        stored = signature.dump_value(Greeting("hi", moment))
        assert stored == '{"at":"2026-01-02T00:00:00Z","text":"hi"}'
        assert signature.load_value({"at": "2026-01-02T00:00:00Z", "text": "hi"}) == Greeting("hi", moment)
        with pytest.raises(PayloadError, match="returned what its annotation does not allow"):
            signature.dump_value(5)


def test_called_a_kind_is_the_plain_function(app: App[Tx]) -> None:
    """A unit test needs no engine."""
    assert app.job()(count)(None, 3) == 3


# ---------------------------------------------------------------- handlers
def test_the_run_must_fit_the_colour(app: App[Tx]) -> None:
    """`async def` holds a Run, `def` a SyncRun; the other way round is refused."""

    async def wrong_async(run: SyncRun) -> None: ...
    def wrong_sync(run: Run) -> None: ...
    def no_run() -> None: ...

    decorate: Any = app.job()
    for handler, said in ((wrong_async, "holds a Run, not a SyncRun"), (wrong_sync, "holds a SyncRun, not a Run"), (no_run, "takes no run")):
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
def test_an_option_that_makes_no_sense_is_refused(app: App[Tx], options: dict[str, Any], said: str) -> None:
    """When the kind is declared, not when its first job fails."""
    declare: Any = app.job
    with pytest.raises(InterlockError) as caught:
        declare(**options)(greet)
    assert said in str(caught.value)
    assert not app.kinds


def test_options_reach_the_declaration(app: App[Tx]) -> None:
    """Durations may be a timedelta, and commit_timeout is the lease unless it is given."""
    backoff = Backoff(5, jitter=False)
    kind = app.job(kind="hello", tries=7, lease=timedelta(minutes=1), queue="slow", backoff=backoff, on_lost_lease="hold", key_until=["FAILED"])(greet)
    declared = kind.declaration
    assert (kind.name, declared.lease, declared.commit_timeout, declared.queue, declared.max_runtime) == ("hello", 60.0, 60.0, "slow", 3600.0)
    assert (kind.policy.tries, kind.policy.backoff, kind.policy.on_lost_lease, kind.policy.key_until) == (7, backoff, "hold", ("FAILED",))


def test_a_name_stands_for_one_kind_and_one_lifecycle(app: App[Tx]) -> None:
    """Two of a name in one app would be told apart by import order."""
    app.job()(greet)
    with pytest.raises(UsageError, match="has a kind greet already"):
        app.job()(greet)
    other = Lifecycle("standard", transitions=[("a", "claim", "b"), ("b", "succeed", "c"), ("b", "fail", "d"), ("b", "lose", "a")])
    with pytest.raises(UsageError, match="brings a lifecycle standard"):
        app.job(kind="again", lifecycle=other)(greet)


# ---------------------------------------------------------------- the other functions
def test_each_function_is_given_once(app: App[Tx]) -> None:
    """A second registration would silently replace the first."""
    kind: Any = app.job()(greet)

    def function(*_: Any) -> None: ...

    async def finish(run: Run, value: Greeting) -> None: ...

    async def tell(external_id: str) -> None: ...

    for register in (kind.commit, kind.finish, kind.guard, kind.admit, kind.on_cancel, kind.on_enter("FAILED")):
        fn: Any = {kind.finish: finish, kind.on_cancel: tell}.get(register, function)
        assert register(fn) is fn
        with pytest.raises(UsageError, match=r"has an? .* function already"):
            register(fn)
    assert kind.facts().hooks == ("FAILED",)


def test_functions_inside_a_transaction_are_plain(app: App[Tx]) -> None:
    """Nothing may await while rows are locked."""
    kind: Any = app.job()(greet)

    async def function(*_: Any) -> None: ...

    for register in (kind.commit, kind.admit, kind.on_enter("FAILED")):
        with pytest.raises(UsageError, match="write it with def"):
            register(function)


def test_admit_is_told_of_the_job_by_its_annotation_alone(app: App[Tx]) -> None:
    """One that cannot be read is the payload's, unless it names the class."""
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
        kind.declaration.admit("tx", job, "Ann")
    assert told == [("tx", "Ann"), ("tx", "Ann"), ("tx", job, "Ann")]


@pytest.mark.parametrize(("annotation", "word"), [("gone.Enqueued", "cannot be read"), ("Enqueued | None", "annotate it as Enqueued")])
def test_an_enqueued_that_cannot_be_meant_is_refused(app: App[Tx], annotation: str, word: str) -> None:
    def admit(tx: object, job: object) -> None: ...

    admit.__annotations__["job"] = annotation
    kind: Any = app.job()(greet)
    with pytest.raises(UsageError, match=word):
        kind.admit(admit)


def test_a_hook_stands_on_a_state_that_a_move_enters(app: App[Tx]) -> None:
    """Protocol 27: claims are batched, so no function runs in them."""
    kind = app.job()(greet)
    with pytest.raises(UsageError, match="entered by claim"):
        kind.on_enter("RUNNING")
    with pytest.raises(UsageError, match="lacks: it has PENDING"):
        kind.on_enter("ASLEEP")


def test_functions_belong_to_the_kind_however_it_is_used(app: App[Tx]) -> None:
    """`using` is the same kind with other options."""
    kind = app.job()(count)

    @kind.using(queue="slow").commit
    def record(tx: Tx, job: Job, value: int) -> None: ...

    assert kind.declaration.commit is record


# ---------------------------------------------------------------- options of a call
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delay": 1, "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "Both delay and run_at"),
        ({"run_at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - the mistake itself
        ({"delay": -1}, "delay is -1"),
        ({"priority": 2**31}, "at most 32 bits"),
        ({"idempotency_key": "k" * 256}, "256 characters, and 255 is the most: use a digest"),
        ({"idempotency_key": ""}, "idempotency_key is empty"),
        ({"unique_key": "\ud800"}, "half of a surrogate pair"),
        ({"queue": " slow"}, "space around it"),
        ({"tags": {"": "x"}}, "A tag's name is empty"),
        ({"tags": {"user": 5}}, "The value of tag user is an int"),
    ],
)
def test_an_option_of_a_call_that_makes_no_sense_is_refused(app: App[Tx], options: dict[str, Any], said: str) -> None:
    """Before any database is asked."""
    using: Any = app.job()(greet).using
    with pytest.raises(InterlockError) as caught:
        using(**options)
    assert said in str(caught.value)


def test_a_ttl_needs_an_arrow(app: App[Tx]) -> None:
    """Where `expire` is not drawn nobody could end the job."""
    kind = app.job(lifecycle=TASK)(greet)
    with pytest.raises(UsageError, match="draws no `expire` from pending"):
        kind.using(ttl=60)


def test_using_adds_up(app: App[Tx]) -> None:
    """The later option holds, the others stay, and the kind itself is untouched."""
    kind = app.job()(greet)
    chosen = kind.using(queue="slow", priority=5).using(priority=0, tags={"user": "7"}).call("Ann").options
    assert (chosen.queue, chosen.priority, chosen.tags) == ("slow", 0, '{"user":"7"}')
    assert kind.call("Ann").options.queue is None


def test_a_call_keeps_no_connection_and_no_other_app(app: App[Tx]) -> None:
    """It may be enqueued much later, where that connection is closed."""
    kind = app.job()(greet)
    with pytest.raises(UsageError, match="keeps no connection"):
        kind.using(conn=object()).call("Ann")
    stranger = App("sqlite:///never-opened.db")
    with pytest.raises(UsageError, match="belongs to another app"):
        stranger.enqueue_many([kind.call("Ann")])


# ---------------------------------------------------------------- schedules
@pytest.mark.parametrize(
    ("cron", "options", "said"),
    [
        ("0 3 * *", {}, "give five fields"),
        ("0 3 * * *", {"tz": "Mars/Olympus"}, "does not know"),
        ("0 3 * * *", {"tz": "../etc/passwd"}, "does not know"),
        ("0 3 * * *", {"catch_up": "some"}, "give one of last, none, all"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(app: App[Tx], cron: str, options: dict[str, Any], said: str) -> None:
    """When it is declared."""
    schedule: Any = app.schedule
    with pytest.raises(UsageError, match=said):
        schedule("nightly", cron, app.job()(greet).call("Ann"), **options)
    assert not app.schedules


def test_a_schedule_has_one_name_and_makes_its_own_key(app: App[Tx]) -> None:
    """The key is its name and tick, so that there is one job per tick however many workers."""
    kind = app.job()(greet)
    app.schedule("nightly", "0 3 * * *", kind.call("Ann"), tz="Europe/Berlin", catch_up="none")
    with pytest.raises(UsageError, match="has a schedule nightly already"):
        app.schedule("nightly", "0 4 * * *", kind.call("Ann"))
    with pytest.raises(UsageError, match="makes its own"):
        app.schedule("weekly", "0 3 * * 1", kind.using(idempotency_key="mine").call("Ann"))
    assert list(app.schedules) == ["nightly"]


# ---------------------------------------------------------------- ways
def test_ways_begin_in_progress_where_nothing_stands_before_the_work(app: App[Tx]) -> None:
    """Protocol 16: neither a guard nor a drawn `start`."""
    kind = app.job(lease=20)(greet)
    (way,) = kind.ways(3)
    assert (way.kind, way.lifecycle, way.version, way.lease) == ("greet", "standard", 3, 20.0)
    assert (way.state, way.target, way.status) == ("PENDING", "RUNNING", "IN_PROGRESS")
    kind.guard(lambda *_, **__: None)
    assert kind.ways(3)[0].status == "LEASED"


def test_a_resting_failure_is_claimed_along_two_arrows(app: App[Tx]) -> None:
    """The claim that ends a rest writes `retry` and `claim`."""
    image = Lifecycle("image", transitions=[
        ("queued", "claim", "running"), ("running", "succeed", "completed"), ("running", "fail", "failed"), ("running", "lose", "queued"),
        ("failed", "retry", "queued"), ("failed", "bury", "dead_letter"),
    ])
    ways = {way.state: [arrow.event for arrow in way.path] for way in app.job(lifecycle=image)(greet).ways(1)}
    assert ways == {"queued": ["claim"], "failed": ["retry", "claim"]}


# ---------------------------------------------------------------- where the database is
def test_the_url_is_given_or_the_environments_or_a_file() -> None:
    """In this order; an empty variable is none."""
    both = {"INTERLOCK_DATABASE_URL": "sqlite:///a.db", "DATABASE_URL": "sqlite:///b.db"}
    assert choose_url("sqlite:///c.db", both) == "sqlite:///c.db"
    assert choose_url(None, both) == "sqlite:///a.db"
    assert choose_url(None, {**both, "INTERLOCK_DATABASE_URL": ""}) == "sqlite:///b.db"
    assert choose_url(None, {}) == FALLBACK


@pytest.mark.parametrize(("url", "said"), [("mysql://ann:secret@host/db", "starts with 'mysql'"), ("jobs.db", "has no scheme"), ("sqlite", "has no scheme")])
def test_an_unknown_url_is_one_sentence_at_the_first_verb(url: str, said: str) -> None:
    """An app can be made with any URL; its first verb says what to write, and no password."""
    app = App(url)
    with pytest.raises(UsageError) as caught:
        app.get("some-id")
    assert said in str(caught.value)
    assert "sqlite:///jobs.db" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_kind_that_hands_nothing_over_is_not_called_back(app: App[Tx]) -> None:
    """Better than an answer that means nothing."""
    with pytest.raises(UsageError, match=r"count hands nothing over, so nobody calls back about it: give it a function with @count\.reconcile"):
        app.job()(count).complete("hash", 1)


def test_a_handler_whose_first_parameter_is_a_value_takes_no_run() -> None:
    """Said when it is declared, and not when its first job fails."""
    app: App[Tx] = App("sqlite:///nowhere.db")

    def norun(x: int) -> int:
        return x

    with pytest.raises(UsageError, match="takes no run, since its first parameter is int"):
        app.job()(norun)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.parametrize("role", ["reconcile", "on_cancel"])
def test_what_the_event_loop_waits_for_is_a_coroutine(app: App[Tx], role: str) -> None:
    """A plain function would hold up every job of the worker while it asks."""
    kind = app.job()(fetch)
    register: Any = kind.reconcile() if role == "reconcile" else kind.on_cancel

    def blocking(given: Any) -> None: ...

    with pytest.raises(UsageError, match=f"The {role} function of fetch runs in the worker's event loop, so it cannot block: write it with async def"):
        register(blocking)
    assert getattr(kind.declaration, role) is None


def test_the_outside_is_not_asked_without_a_pause(app: App[Tx]) -> None:
    """Every zero seconds would be a worker that does nothing else."""
    with pytest.raises(UsageError, match="above zero"):
        app.job()(fetch).reconcile(every=0)(cast("Any", fetch))
