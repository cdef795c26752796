"""Schedules at run time, `app.schedules`: what it lists, what it refuses, and what status and explain say."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from interlock import App, NotFound, SyncRun, UsageError
from interlock.jobs.enqueue import enqueue
from interlock.jobs.schedule import key_of, name_in
from interlock.store.types import WorkerFacts
from tests.kit import Place


@pytest.fixture
def app(place: Place) -> Iterator[App[Any]]:
    made: App[Any] = App(place.url, schema=place.schema)

    @made.job(max_running_per_key=2)
    def report(run: SyncRun, region: str) -> None: ...

    @made.job()
    def sweep(run: SyncRun) -> None: ...

    made.migrate()
    yield made
    made.close()


def report(app: App[Any], region: str = "eu", **options: Any) -> Any:
    return app.kinds["report"].using(**options).request(region)


def serve(app: App[Any], *schedules: str, name: str = "ann#1") -> None:
    facts = WorkerFacts(name, "host", 1, "Idle", 1, 0, ("report",), ("default",), schedules)
    app.database.store().workers.report(facts)


# ---------------------------------------------------------------- the list
def test_schedules_are_listed_with_their_source_and_times(app: App[Any]) -> None:
    """A declared one is listed before any worker has stored it."""
    app.schedule("nightly", "0 3 * * *", report(app, queue="slow"), tz="Europe/Berlin")
    app.schedules.create("hourly", "0 * * * *", report(app, tags={"a": "b"}), catch_up="all", by="ann")
    hourly, nightly = app.schedules
    assert (hourly.name, hourly.kind, hourly.source, hourly.changed_by) == (
        "hourly", "report", "run time", "operator:ann"
    )  # fmt: skip
    assert (hourly.payload, hourly.options, hourly.catch_up) == ({"region": "eu"}, {"tags": {"a": "b"}}, "all")
    assert (nightly.name, nightly.source, nightly.changed_by, nightly.options) == (
        "nightly", "code", None, {"queue": "slow"}
    )  # fmt: skip
    assert (nightly.cron, nightly.tz, nightly.last_tick) == ("0 3 * * *", "Europe/Berlin", None)
    for each in (hourly, nightly):
        assert each.next_tick is not None
        assert each.next_tick > datetime.now(UTC)
    assert app.schedules.get("nightly") == nightly


def test_paused_schedule_has_no_next_tick(app: App[Any]) -> None:
    """A declared one can be paused before a worker has stored it."""
    app.schedule("nightly", "0 3 * * *", report(app))
    assert app.schedules.pause("nightly", by="ann", reason="too many")
    seen = app.schedules.get("nightly")
    assert (seen.next_tick, seen.paused_by, seen.pause_reason) == (None, "operator:ann", "too many")


def test_list_counts_the_workers_that_run_a_schedule(app: App[Any]) -> None:
    """A declared one runs on workers that declare it, any other one on workers that have its kind."""
    app.schedule("nightly", "0 3 * * *", report(app))
    app.schedules.pause("nightly", by="ann")
    app.schedules.create("hourly", "0 * * * *", report(app), by="ann")
    app.schedules.create("sweep", "0 * * * *", app.kinds["sweep"].request(), by="ann")
    serve(app, "nightly")
    serve(app, name="bob#1")
    assert {each.name: each.workers for each in app.schedules} == {"nightly": 1, "hourly": 2, "sweep": 0}


def test_async_twins_do_the_same(app: App[Any]) -> None:
    async def operate() -> None:
        await app.schedules.acreate("hourly", "0 * * * *", report(app), by="ann")
        await app.schedules.achange("hourly", cron="5 * * * *", by="ann")
        assert await app.schedules.apause("hourly", by="ann")
        job = await app.schedules.arun_now("hourly", by="ann")
        assert (await app.aget(job.id)).kind == "report"
        assert await app.schedules.aresume("hourly", by="ann")
        assert (await app.schedules.aget("hourly")).cron == "5 * * * *"
        await app.schedules.adelete("hourly", by="ann")
        assert await app.schedules.aall() == []

    asyncio.run(operate())


# ---------------------------------------------------------------- refusals
def test_code_and_run_time_do_not_share_a_name(app: App[Any]) -> None:
    app.schedule("nightly", "0 3 * * *", report(app))
    with pytest.raises(UsageError, match="The code declares a schedule nightly: change that one"):
        app.schedules.create("nightly", "0 3 * * *", report(app), by="ann")
    app.schedules.create("hourly", "0 * * * *", report(app), by="ann")
    with pytest.raises(UsageError, match="There is a schedule hourly already"):
        app.schedules.create("hourly", "0 * * * *", report(app), by="ann")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "has run_at, but every tick has its own time"),
        ({"idempotency_key": "mine"}, "has idempotency_key, but a schedule makes its own key"),
        ({"after": []}, None),
        ({"concurrency_key": "mine"}, None),
    ],
)
def test_options_that_a_schedule_cannot_have_are_refused(
    app: App[Any], options: dict[str, Any], said: str | None
) -> None:
    """In code, in a new schedule and in a change alike."""
    app.schedules.create("hourly", "0 * * * *", report(app), by="ann")
    request = report(app, **options)
    for verb in (
        lambda: app.schedules.create("new", "0 * * * *", request, by="ann"),
        lambda: app.schedules.change("hourly", request=request, by="ann"),
        lambda: app.schedule("declared", "0 * * * *", request),
    ):
        if said is None:
            verb()
            continue
        with pytest.raises(UsageError, match=said):
            verb()


def test_request_that_waits_for_a_job_is_refused(app: App[Any]) -> None:
    needed = app.kinds["sweep"].enqueue()
    with pytest.raises(UsageError, match="has after, but dependencies end only once"):
        app.schedules.create("new", "0 * * * *", report(app, after=[needed]), by="ann")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "Give what to change"),
        ({"cron": "0 3 *"}, "give five fields"),
        ({"cron": ""}, "give five fields"),
        ({"tz": "Mars/Olympus"}, "does not know"),
        ({"catch_up": "some"}, "give one of last, none, all"),
        ({"request": "report"}, "give the value of kind.request"),
    ],
    ids=str,
)
def test_invalid_change_is_refused(app: App[Any], values: dict[str, Any], said: str) -> None:
    app.schedules.create("hourly", "0 * * * *", report(app), by="ann")
    before = app.schedules.get("hourly")
    with pytest.raises(UsageError, match=said):
        app.schedules.change("hourly", **values, by="ann")
    assert app.schedules.get("hourly") == before
    assert len(app.operations()) == 1


def test_request_of_another_app_is_refused(app: App[Any]) -> None:
    other: App[Any] = App("sqlite:///unused.db")

    @other.job()
    def report(run: SyncRun) -> None: ...

    with pytest.raises(UsageError, match="belongs to another app"):
        app.schedules.create("hourly", "0 * * * *", report.request(), by="ann")


def test_name_too_long_for_a_key_is_refused(app: App[Any]) -> None:
    """The longest name that is accepted makes a key that the database stores."""
    app.schedules.create("n" * 220, "0 * * * *", report(app), by="ann")
    assert len(key_of("n" * 220, datetime(2026, 1, 1, tzinfo=UTC))) <= 255
    with pytest.raises(UsageError, match="give at most 220"):
        app.schedules.create("n" * 221, "0 * * * *", report(app), by="ann")


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "reset", "delete", "run_now", "change"])
def test_unknown_schedule_is_not_found(app: App[Any], verb: str) -> None:
    given = {} if verb == "get" else {"by": "ann"}
    with pytest.raises(NotFound, match="There is no schedule hourly"):
        getattr(app.schedules, verb)("hourly", **given, **({"cron": "* * * * *"} if verb == "change" else {}))


def test_declared_schedule_is_not_deleted(app: App[Any]) -> None:
    """Neither if this code declares it, nor if the code of a live worker does."""
    app.schedule("nightly", "0 3 * * *", report(app))
    with pytest.raises(UsageError, match=r"The code declares the schedule nightly, .* pause it, or remove it"):
        app.schedules.delete("nightly", by="ann")
    del app.declared_schedules["nightly"]
    serve(app, "nightly")
    with pytest.raises(UsageError, match="The code of the worker ann#1 declares the schedule nightly"):
        app.schedules.delete("nightly", by="ann")
    app.database.store().workers.remove("ann#1")
    app.schedules.delete("nightly", by="ann")
    assert app.schedules.all() == []


def test_schedule_that_no_code_declares_cannot_be_reset(app: App[Any]) -> None:
    app.schedules.create("hourly", "0 * * * *", report(app), by="ann")
    with pytest.raises(UsageError, match="created at run time, so no code declares it: change or delete it"):
        app.schedules.reset("hourly", by="ann")


def test_change_inside_a_transaction_is_refused(app: App[Any]) -> None:
    """It could not be atomic with it."""
    with app.transaction(), pytest.raises(UsageError, match=r"app\.schedules\.create cannot run inside"):
        app.schedules.create("hourly", "0 * * * *", report(app), by="ann")


def test_run_now_needs_the_kind(app: App[Any]) -> None:
    app.schedules.create("hourly", "0 * * * *", report(app), by="ann")
    del app.kinds["report"]
    with pytest.raises(
        UsageError, match="The schedule hourly enqueues jobs of kind report, which this app does not have"
    ):
        app.schedules.run_now("hourly", by="ann")


# ---------------------------------------------------------------- status and explain
def test_status_names_paused_schedules(app: App[Any]) -> None:
    """They are no problem: somebody wanted it so."""
    app.schedules.create("hourly", "0 * * * *", report(app), by="ann")
    assert app.status().paused_schedules == []
    app.schedules.pause("hourly", by="ann", reason="moving")
    seen = app.status()
    assert [(each.name, each.pause_reason) for each in seen.paused_schedules] == [("hourly", "moving")]
    assert seen.healthy


def test_explain_names_the_schedule_of_a_job_and_its_pause(app: App[Any]) -> None:
    app.schedules.create("at: night", "0 * * * *", report(app), by="ann")
    tick = datetime(2026, 1, 1, 3, tzinfo=UTC)
    key = key_of("at: night", tick)
    store = app.database.store()
    (job,) = enqueue(store, [report(app).at_tick(key, tick)], conn=None, transaction=None)
    assert "The schedule at: night enqueued it for 2026-01-01 03:00:00 UTC." in app.explain(job.id).reasons
    app.schedules.pause("at: night", by="ann", reason="moving.")
    (reason,) = [each for each in app.explain(job.id).reasons if "schedule" in each]
    assert reason.endswith("by operator:ann: moving.")
    app.schedules.delete("at: night", by="ann")
    (reason,) = [each for each in app.explain(job.id).reasons if "schedule" in each]
    assert reason.endswith(", which was deleted since.")


def test_key_of_a_tick_names_its_schedule() -> None:
    tick = datetime(2026, 1, 1, tzinfo=UTC)
    for name in ("a", "a:b", "schedule:x", "ä b"):
        assert name_in(key_of(name, tick)) == name
    assert [name_in(key) for key in (None, "", "schedule:a", "schedule:a:b", "x:a:2026-01-01T00:00:00+00:00")] == [
        None
    ] * 5
