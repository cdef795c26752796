"""Schedules that are created, changed, paused, resumed, deleted or run at run time, while workers run."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from interlock import App, Operation, PayloadError, Refused, SyncRun, UsageError
from interlock.store import OpenStore
from interlock.store.schedule_types import StoredSchedule
from interlock.telemetry.events import Notice, WorkerError
from tests.kit import Place
from tests.loops.maintenance_bench import Bench
from tests.loops.test_schedules import HOUR, Office, office, utc

__all__ = ["office"]


class Others(Bench):
    """A worker with other code on the same database: `report` takes no region, and there is a kind `sweep`."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)

        @self.app.job()
        def report(run: SyncRun, day: str) -> None: ...

        @self.app.job()
        def sweep(run: SyncRun) -> None: ...

        self.report, self.sweep = report, sweep


@pytest.fixture
def others(office: Office) -> Iterator[Others]:
    made = Others(office.place)
    made.join(office)
    yield made
    made.app.close()


def create(office: Office, cron: str = "0 * * * *", name: str = "hourly", **options: Any) -> None:
    office.app.schedules.create(name, cron, office.report.request("us"), by="ann", **options)


def operations(office: Office) -> list[tuple[str, str, str | None]]:
    return [(one.event, one.actor, one.reason) for one in reversed(office.app.operations(scope="schedule"))]


# ---------------------------------------------------------------- create
def test_worker_runs_a_schedule_that_was_created_while_it_runs(office: Office) -> None:
    """The worker learns of it within five seconds, and the job has the options of the request."""
    maintenance = office.maintenance()
    maintenance.run_once()
    office.at(utc(1, 1, 0, 59))
    maintenance.run_once()
    office.advance(56)
    options: dict[str, Any] = {"queue": "slow", "priority": 7, "delay": 60, "tags": {"team": "a"}, "unique_key": "one"}
    request = office.report.using(**options).request("us")
    office.app.schedules.create("hourly", "0 * * * *", request, by="ann", reason="new region")
    for _ in range(5):
        office.advance(1)
        maintenance.run_once()
    (job,) = office.store.inspect.jobs()
    assert (job.payload, job.scheduled_for, job.queue, job.priority) == ({"region": "us"}, utc(1, 1, 1), "slow", 7)
    assert (job.tags, job.unique_key) == ({"team": "a"}, "one")
    assert job.due_at - job.created_at == timedelta(seconds=60)
    assert operations(office) == [("create", "operator:ann", "new region")]


def test_worker_without_the_kind_leaves_the_schedule_alone(office: Office, others: Others) -> None:
    others.app.schedules.create("sweep", "0 * * * *", others.sweep.request(), by="ann")
    office.advance(HOUR)
    assert office.maintenance().run_once() == 0
    assert others.maintenance("w2#b").run_once() == 1
    assert office.told(Notice) == office.told(WorkerError) == []


def test_worker_whose_kind_refuses_the_payload_leaves_the_tick_to_others(office: Office, others: Others) -> None:
    """It says so once for each tick, and marks nothing. Its other schedules run."""
    others.app.schedules.create("hourly", "0 * * * *", others.report.request("monday"), by="ann")
    create(office, name="mine")
    refusing = office.maintenance()
    office.advance(HOUR)
    assert refusing.run_once() == 1
    office.advance(6)
    assert refusing.run_once() == 0
    (notice,) = office.told(Notice)
    assert "The schedule hourly created no job for 2026-01-01T01:00:00+00:00" in notice.sentence
    assert "The tick stays due" in notice.sentence
    others.app.schedules.pause("mine", by="ann")
    assert others.maintenance("w2#b").run_once() == 1
    assert {"day": "monday"} in [job.payload for job in office.store.inspect.jobs()]


def test_refused_tick_runs_when_the_request_is_changed(office: Office, others: Others) -> None:
    others.app.schedules.create("hourly", "0 * * * *", others.report.request("monday"), by="ann")
    maintenance = office.maintenance()
    office.advance(HOUR)
    assert maintenance.run_once() == 0
    office.app.schedules.change("hourly", request=office.report.request("eu"), by="ann")
    office.advance(5)
    assert maintenance.run_once() == 1
    assert office.ticks() == [utc(1, 1, 1)]


# ---------------------------------------------------------------- pause
@pytest.mark.parametrize("catch_up", ["last", "none", "all"])
def test_pause_skips_its_ticks_whatever_catch_up_says(office: Office, catch_up: Any) -> None:
    create(office, catch_up=catch_up)
    maintenance = office.maintenance()
    maintenance.run_once()
    office.app.schedules.pause("hourly", by="bob", reason="too many")
    office.at(utc(1, 1, 3, 30))
    assert maintenance.run_once() == 0
    office.app.schedules.resume("hourly", by="ann")
    office.advance(5)
    assert maintenance.run_once() == 0
    office.at(utc(1, 1, 4))
    assert maintenance.run_once() == 1
    assert office.ticks() == [utc(1, 1, 4)]
    assert operations(office)[1:] == [("pause", "operator:bob", "too many"), ("resume", "operator:ann", None)]


def test_pause_applies_before_the_worker_reads_it(office: Office) -> None:
    """The tick looks at the row in its own transaction, not at what the worker read some seconds ago."""
    create(office)
    maintenance = office.maintenance()
    office.at(utc(1, 1, 0, 59))
    office.advance(58)
    maintenance.run_once()
    office.app.schedules.pause("hourly", by="bob")
    office.advance(2)
    assert maintenance.run_once() == 0


def test_second_pause_changes_nothing(office: Office) -> None:
    create(office)
    assert [office.app.schedules.pause("hourly", by=name) for name in ("bob", "eve")] == [True, False]
    assert office.app.schedules.get("hourly").paused_by == "operator:bob"
    assert [office.app.schedules.resume("hourly", by="bob") for _ in range(2)] == [True, False]
    assert [event for event, _, _ in operations(office)] == ["create", "pause", "resume"]


# ---------------------------------------------------------------- change, reset and delete
def test_changed_cron_line_starts_from_now(office: Office) -> None:
    """Also if no worker has run for a while: nothing is caught up by the new line."""
    create(office, "0 5 * * *", catch_up="all")
    office.at(utc(1, 1, 3, 30))
    office.app.schedules.change("hourly", cron="0 * * * *", by="ann")
    maintenance = office.maintenance()
    assert maintenance.run_once() == 0
    office.at(utc(1, 1, 4))
    assert maintenance.run_once() == 1
    assert office.ticks() == [utc(1, 1, 4)]


def test_change_of_the_request_keeps_missed_ticks(office: Office) -> None:
    create(office)
    office.at(utc(1, 1, 3, 30))
    office.app.schedules.change("hourly", request=office.report.request("asia"), catch_up="all", by="ann")
    assert office.maintenance().run_once() == 3
    assert {job.payload["region"] for job in office.store.inspect.jobs()} == {"asia"}


def test_tick_enqueues_the_kind_to_which_the_schedule_was_just_changed(office: Office, others: Others) -> None:
    """The worker has read the old kind some seconds before: it reads again, and enqueues the new one a second later."""
    others.app.schedules.create("hourly", "0 * * * *", others.sweep.request(), by="ann")
    maintenance = others.maintenance("w2#b")
    office.at(utc(1, 1, 0, 59))
    office.advance(58)
    maintenance.run_once()
    others.app.schedules.change("hourly", request=others.report.request("monday"), by="ann")
    office.advance(2)
    maintenance.run_once()
    office.advance(1)
    maintenance.run_once()
    assert [(job.kind, job.scheduled_for) for job in office.store.inspect.jobs()] == [("report", utc(1, 1, 1))]
    assert others.told(WorkerError) == others.told(Notice) == []


def test_change_of_a_declared_schedule_outlasts_deploys_until_reset(office: Office) -> None:
    """A worker with new code declares the schedule again, with other arguments even."""
    office.plan("0 3 * * *")
    office.maintenance().run_once()
    office.app.schedules.change("nightly", cron="0 4 * * *", by="ann", reason="backup")
    office.plan("0 3 * * *", call=office.report.request("asia"))
    maintenance = office.maintenance("w2#b")
    office.at(utc(1, 1, 4))
    assert maintenance.run_once() == 1
    assert [job.payload["region"] for job in office.store.inspect.jobs()] == ["eu"]
    assert office.app.schedules.reset("nightly", by="ann")
    assert not office.app.schedules.reset("nightly", by="ann")
    office.at(utc(1, 2, 3))
    assert maintenance.run_once() == 1
    assert office.ticks() == [utc(1, 1, 4), utc(1, 2, 3)]
    assert office.store.inspect.jobs()[0].payload["region"] == "asia"


def test_deleted_schedule_creates_no_jobs(office: Office) -> None:
    """Also before the worker has read that it is gone. The jobs of the schedule stay."""
    create(office)
    maintenance = office.maintenance()
    office.at(utc(1, 1, 1))
    assert maintenance.run_once() == 1
    office.app.schedules.delete("hourly", by="ann", reason="not needed")
    office.at(utc(1, 1, 2))
    assert maintenance.run_once() == 0
    assert office.ticks() == [utc(1, 1, 1)]
    (deletion,) = [one for one in office.app.operations() if one.event == "delete"]
    assert deletion.detail is not None
    assert (deletion.detail["cron"], deletion.detail["payload"]) == ("0 * * * *", {"region": "us"})


def test_schedule_that_no_code_declares_any_more_runs_nowhere(office: Office, others: Others) -> None:
    """The other worker has the kind, but a declared schedule is run only by workers that declare it."""
    office.plan("0 * * * *", call=office.report.request("us"))
    office.maintenance().run_once()
    del office.app.declared_schedules["nightly"]
    office.advance(HOUR)
    assert (office.maintenance().run_once(), others.maintenance("w2#b").run_once()) == (0, 0)
    assert (office.app.schedules.get("nightly").source, office.app.schedules.get("nightly").workers) == ("code", 0)
    office.app.schedules.delete("nightly", by="ann")
    assert office.app.schedules.all() == []


def test_worker_declares_a_deleted_schedule_again(office: Office) -> None:
    """Another app deleted it before this worker reported what it declares."""
    office.plan("0 * * * *")
    maintenance = office.maintenance()
    maintenance.run_once()
    assert office.store.schedules.delete("nightly", by="ann", reason=None, detail={})
    for _ in range(6):
        office.advance(1)
        maintenance.run_once()
    assert office.app.schedules.get("nightly").source == "code"
    office.advance(HOUR)
    assert maintenance.run_once() == 1


def test_unreadable_time_zone_is_reported_once_and_stops_no_other_schedule(office: Office) -> None:
    """Another machine, which created the schedule, knows the zone."""
    create(office)
    create(office, name="far")
    office.place.raw("UPDATE {schedules} SET tz = 'Mars/Olympus' WHERE name = 'far'")
    maintenance = office.maintenance()
    for _ in range(8):
        office.advance(1)
        maintenance.run_once()
    assert [event.where for event in office.told(WorkerError)] == ["schedule far"]
    office.advance(HOUR)
    assert maintenance.run_once() == 1


# ---------------------------------------------------------------- run now
def test_run_now_enqueues_at_once_and_leaves_the_ticks_alone(office: Office) -> None:
    """Also during a pause, and several times."""
    create(office)
    maintenance = office.maintenance()
    office.app.schedules.pause("hourly", by="bob")
    jobs = [office.app.schedules.run_now("hourly", by="eve", reason="look") for _ in range(2)]
    assert len({job.id for job in jobs}) == 2
    assert [job.job().payload for job in jobs] == [{"region": "us"}] * 2
    assert {job.job().scheduled_for for job in jobs} == {None}
    assert {office.app.history(job.id)[0].actor for job in jobs} == {"operator:eve"}
    office.app.schedules.resume("hourly", by="bob")
    office.at(utc(1, 1, 1))
    assert maintenance.run_once() == 1
    runs: list[Operation] = [one for one in office.app.operations() if one.event == "run"]
    assert [(one.actor, one.detail) for one in runs] == [("operator:eve", {"job": job.id}) for job in reversed(jobs)]


def test_refused_run_now_leaves_no_trace(office: Office) -> None:
    create(office)
    office.refuses = True
    with pytest.raises(Refused, match="no paper"):
        office.app.schedules.run_now("hourly", by="eve")
    assert [event for event, _, _ in operations(office)] == ["create"]


def test_run_now_of_a_payload_that_no_longer_fits_is_refused(office: Office, others: Others) -> None:
    others.app.schedules.create("hourly", "0 * * * *", others.report.request("monday"), by="ann")
    with pytest.raises(PayloadError):
        office.app.schedules.run_now("hourly", by="eve")


def test_run_now_of_a_schedule_that_changes_at_that_moment_is_refused(
    office: Office, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kind is another one when the row is locked, and would not fit the transaction that is open."""
    others.app.schedules.create("hourly", "0 * * * *", others.sweep.request(), by="ann")
    get = others.store.schedules.get

    def get_and_change(name: str) -> StoredSchedule | None:
        found = get(name)
        monkeypatch.undo()
        others.app.schedules.change("hourly", request=others.report.request("monday"), by="bob")
        return found

    monkeypatch.setattr(others.store.schedules, "get", get_and_change)
    with pytest.raises(UsageError, match="was changed during this call"):
        others.app.schedules.run_now("hourly", by="eve")
    assert office.store.inspect.jobs() == []


# ---------------------------------------------------------------- transactions of the app
def test_admit_of_a_tick_gets_the_handle_of_the_app(place: Place) -> None:
    """The job, the tick and what `admit` writes are stored in one transaction of the app."""
    handles: list[object] = []

    def transaction() -> Any:
        return app.database.store().transaction()

    app: App[Any] = App(place.url, schema=place.schema, transaction=transaction)
    app.database.clock = place.clock

    @app.job()
    def bill(run: SyncRun) -> None: ...

    @bill.admit
    def admit(tx: Any) -> None:
        handles.append(tx)

    app.migrate()
    place.freeze()
    bench = Bench(place)
    bench.app.close()
    bench.app = app
    store: OpenStore = app.database.store()
    bench.store = store
    app.schedules.create("bill", "0 * * * *", bill.request(), by="ann")
    context = bench.context()
    context.transaction = transaction
    bench.advance(HOUR)
    assert bench.maintenance(context=context).run_once() == 1
    assert len(handles) == 1
    app.close()
