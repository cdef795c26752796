"""Schedules: one job per tick, however many workers see it, and `catch_up` after downtime."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from interlock import SyncRun
from interlock.errors import Unavailable
from interlock.jobs.request import JobRequest
from interlock.jobs.schedule import Schedule, key_of
from interlock.maintenance.scheduler import READ_EVERY
from interlock.store.schedule_types import StoredSchedule
from interlock.telemetry.events import Notice, WorkerError
from tests.kit import Place
from tests.loops.maintenance_bench import Bench

HOUR, DAY = 3600.0, 86_400.0


class Office(Bench):
    """An app with a kind for reports."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.refuses = False

        @self.app.job()
        def report(run: SyncRun, region: str = "eu") -> None: ...

        @report.admit
        def admit(tx: Any, region: str) -> None:
            tx.execute("SELECT 1")
            if self.refuses:
                raise ValueError("no paper")

        self.report = report

    def plan(self, cron: str, *, name: str = "nightly", call: JobRequest | None = None, **options: Any) -> None:
        self.app.declared_schedules[name] = Schedule(name, cron, call or self.report.request(), **options)

    def at(self, moment: datetime) -> None:
        """Advance the clock to this time."""
        self.advance((moment - self.place.clock.now()).total_seconds())

    def ticks(self) -> list[datetime]:
        """Return the ticks that created a job, the oldest first."""
        return sorted(job.scheduled_for for job in self.store.inspect.jobs(limit=5000) if job.scheduled_for is not None)


@pytest.fixture
def office(place: Place) -> Iterator[Office]:
    made = Office(place)
    made.begin()
    yield made
    made.app.close()


def utc(month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


# ---------------------------------------------------------------- on time
def test_rule_36_tick_creates_one_job_keyed_by_schedule_and_utc_time(office: Office) -> None:
    """The job is created on time, with the arguments and options of the schedule."""
    office.plan("0 3 * * *", tz="Europe/Berlin", call=office.report.using(queue="slow").request("us"))
    maintenance = office.maintenance()
    assert maintenance.run_once() == 0
    office.at(utc(1, 1, 1, 59))
    assert maintenance.run_once() == 0
    office.at(utc(1, 1, 2))
    assert maintenance.run_once() == 1
    (job,) = office.store.inspect.jobs()
    assert (job.kind, job.payload, job.queue, job.scheduled_for) == ("report", {"region": "us"}, "slow", utc(1, 1, 2))
    assert job.idempotency_key == "schedule:nightly:2026-01-01T02:00:00+00:00"
    office.advance(1)
    assert maintenance.run_once() == 0


def test_new_schedule_does_not_catch_up(office: Office) -> None:
    """It starts when it is first seen, even with `catch_up="all"`."""
    office.advance(30 * DAY + 5)
    office.plan("* * * * *", catch_up="all")
    assert office.maintenance().run_once() == 0


def test_rule_36_two_maintenance_instances_create_one_job_per_tick(office: Office) -> None:
    """This holds whether they run at the same time or one after the other."""
    office.plan("0 * * * *", catch_up="all")
    both = [office.maintenance("w1#a"), office.maintenance("w2#b")]
    for maintenance in both:
        maintenance.run_once()
    office.advance(20 * HOUR)
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda maintenance=maintenance: done.append(maintenance.run_once()))
        for maintenance in both
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(done) == 20
    office.advance(HOUR)
    assert [maintenance.run_once() for maintenance in both] == [1, 0]
    assert len(office.ticks()) == len(set(office.ticks())) == 21


def test_rule_36_crash_before_the_tick_is_marked_stores_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job and the mark are one transaction: the next worker stores both."""
    office.plan("0 3 * * *")
    office.maintenance().run_once()
    office.at(utc(1, 1, 3))

    def dies(*_: Any, **__: Any) -> None:
        raise Unavailable("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(office.store.schedules, "mark_tick", dies)
        office.maintenance("w1#a").run_once()
    assert office.ticks() == []
    assert office.maintenance("w2#b").run_once() == 1
    assert office.ticks() == [utc(1, 1, 3)]
    office.at(utc(1, 2, 3))
    assert office.maintenance("w2#c").run_once() == 1


def test_tick_whose_key_another_job_has_creates_no_second_job(office: Office) -> None:
    """The existing job stays, and the schedule continues."""
    office.plan("0 3 * * *")
    maintenance = office.maintenance()
    maintenance.run_once()
    office.report.using(idempotency_key=key_of("nightly", utc(1, 1, 3))).enqueue("us")
    office.at(utc(1, 1, 3))
    assert maintenance.run_once() == 0
    assert "created no job" in office.told(Notice)[0].sentence
    office.at(utc(1, 2, 3))
    assert maintenance.run_once() == 1
    assert [job.payload["region"] for job in office.store.inspect.jobs()] == ["eu", "us"]


def test_worker_enqueues_what_its_own_code_declares(office: Office) -> None:
    """During a deploy, a restarted worker with the old code has stored its declaration last."""
    office.plan("0 3 * * *", call=office.report.request("asia"))
    new = office.maintenance("w1#a")
    new.run_once()
    old = dict(office.app.declared_schedules)
    office.plan("0 3 * * *", call=office.report.request("eu"))
    office.maintenance("w2#b").run_once()
    office.app.declared_schedules.update(old)
    office.at(utc(1, 1, 3))
    assert new.run_once() == 1
    assert [job.payload["region"] for job in office.store.inspect.jobs()] == ["asia"]


def test_second_worker_at_a_tick_takes_no_lock(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is a write on SQLite, which would wake every worker."""
    office.plan("0 3 * * *")
    first, second = office.maintenance("w1#a"), office.maintenance("w2#b")
    office.at(utc(1, 1, 2, 59))
    office.advance(58)
    assert (first.run_once(), second.run_once()) == (0, 0)
    office.at(utc(1, 1, 3))
    assert first.run_once() == 1
    monkeypatch.setattr(office.store.schedules, "lock", lambda *_, **__: 1 / 0)
    assert second.run_once() == 0
    assert office.told(WorkerError) == []


# ---------------------------------------------------------------- daylight saving time
@pytest.mark.parametrize(
    ("before", "after", "ticks"),
    [
        (utc(3, 28, 0), utc(3, 30, 12), [utc(3, 28, 1, 30), utc(3, 30, 0, 30)]),
        (utc(10, 24, 0), utc(10, 26, 12), [utc(10, 24, 0, 30), utc(10, 25, 0, 30), utc(10, 26, 1, 30)]),
    ],
    ids=["the local time that does not exist is skipped", "the one that comes twice fires once"],
)
def test_ticks_follow_daylight_saving_changes(
    office: Office, before: datetime, after: datetime, ticks: list[datetime]
) -> None:
    """The schedule runs at 02:30 in Berlin, and maintenance runs every half hour."""
    office.at(before)
    office.plan("30 2 * * *", tz="Europe/Berlin")
    maintenance = office.maintenance()
    while office.place.clock.now() < after:
        maintenance.run_once()
        office.advance(1800)
    assert office.ticks() == ticks


# ---------------------------------------------------------------- downtime
@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [
        ("last", [utc(1, 4, 3)]),
        ("none", []),
        ("all", [utc(1, 2, 3), utc(1, 3, 3), utc(1, 4, 3)]),
    ],
)
def test_ticks_missed_during_downtime_follow_catch_up(office: Office, catch_up: str, fired: list[datetime]) -> None:
    """No worker runs for three days. The first round afterwards handles all missed ticks."""
    office.at(utc(1, 1, 12))
    office.plan("0 3 * * *", catch_up=catch_up)
    office.maintenance().run_once()
    office.at(utc(1, 4, 12))
    assert office.maintenance("w2#b").run_once() == len(fired)
    assert office.ticks() == fired
    office.plan("0 3 * * *", catch_up="all")
    assert office.maintenance("w3#c").run_once() == 0
    office.at(utc(1, 5, 3))
    assert office.maintenance("w3#d").run_once() == 1


def test_slightly_late_tick_counts_as_on_time(office: Office) -> None:
    """Maintenance runs only once per second, and workers restart now and then."""
    office.plan("0 3 * * *", catch_up="none")
    maintenance = office.maintenance()
    maintenance.run_once()
    office.advance(3 * HOUR + 50)
    assert maintenance.run_once() == 1


# ---------------------------------------------------------------- errors
def test_tick_refused_by_admit_is_reported_and_not_retried(office: Office) -> None:
    """The next tick is tried as usual."""
    office.plan("0 3 * * *")
    maintenance = office.maintenance()
    maintenance.run_once()
    office.at(utc(1, 1, 3))
    office.refuses = True
    assert maintenance.run_once() == 0
    (notice,) = office.told(Notice)
    assert "no paper" in notice.sentence
    office.refuses = False
    office.advance(1)
    assert office.maintenance().run_once() == 0
    office.at(utc(1, 2, 3))
    assert maintenance.run_once() == 1


def test_refused_tick_does_not_refuse_the_other_missed_ticks(office: Office) -> None:
    """They are enqueued together, and one by one if one of them is refused."""
    office.plan("0 3 * * *", catch_up="all")
    office.maintenance().run_once()
    office.report.using(idempotency_key=key_of("nightly", utc(1, 2, 3))).enqueue("us")
    office.at(utc(1, 4, 12))
    assert office.maintenance("w2#b").run_once() == 3
    assert office.ticks() == [utc(1, 1, 3), utc(1, 3, 3), utc(1, 4, 3)]
    assert [event.sentence[:62] for event in office.told(Notice)] == [
        "The schedule nightly created no job for 2026-01-02T03:00:00+00"
    ]


def test_failing_schedule_stops_no_other_and_is_retried(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick counts only if its job is stored."""
    office.plan("0 3 * * *", name="a")
    office.plan("0 3 * * *", name="b")
    maintenance = office.maintenance()
    maintenance.run_once()
    office.at(utc(1, 1, 3))
    ask = office.store.schedules.get

    def broken(name: str) -> StoredSchedule | None:
        if name == "a":
            raise ValueError("strange")
        return ask(name)

    with monkeypatch.context() as patch:
        patch.setattr(office.store.schedules, "get", broken)
        assert maintenance.run_once() == 1
    assert [event.where for event in office.told(WorkerError)] == ["schedule a"]
    office.advance(1)
    assert maintenance.run_once() == 1


def test_rule_20_idle_schedule_is_read_once_in_five_seconds(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two ticks, one statement in five seconds, and no write: on SQLite, a write would wake every worker."""
    office.plan("0 3 * * *")
    maintenance = office.maintenance()
    maintenance.run_once()
    read: list[int] = []
    ask = office.store.schedules.times
    monkeypatch.setattr(office.store.schedules, "times", lambda: read.append(1) or ask())
    for verb in ("get", "lock", "declare", "mark_tick"):
        monkeypatch.setattr(office.store.schedules, verb, lambda *_, **__: 1 / 0)
    for _ in range(20):
        office.advance(1)
        maintenance.run_once()
    assert (len(read), READ_EVERY) == (4, 5.0)
    assert office.told(WorkerError) == []
