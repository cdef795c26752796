"""Schedules: one job per tick, however many maintenance see it, and after an absence what `catch_up` says."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from interlock import SyncRun
from interlock.errors import Unavailable
from interlock.jobs.request import JobRequest
from interlock.jobs.schedule import Schedule
from interlock.telemetry.events import Notice, WorkerError
from tests.kit import EPOCH, Place
from tests.loops.maintenance_bench import Bench

HOUR, DAY = 3600.0, 86_400.0


class Office(Bench):
    """An app that reports."""

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
        self.app.schedules[name] = Schedule(name, cron, call or self.report.request(), **options)

    def at(self, moment: datetime) -> None:
        """Let time pass up to this moment."""
        self.advance((moment - self.place.clock.now()).total_seconds())

    def ticks(self) -> list[datetime]:
        """What has fired, the oldest first."""
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
def test_rule_36_a_tick_is_one_job_whose_key_is_the_schedule_and_the_tick_in_utc(office: Office) -> None:
    """Not before its time, and with the arguments of its call."""
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


def test_a_new_schedule_makes_up_for_nothing(office: Office) -> None:
    """It begins when it is first seen, whatever its catch_up."""
    office.advance(30 * DAY + 5)
    office.plan("* * * * *", catch_up="all")
    assert office.maintenance().run_once() == 0


def test_rule_36_two_maintenance_make_one_job_per_tick(office: Office) -> None:
    """Whether they come together or one after the other."""
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


def test_rule_36_a_crash_between_the_job_and_its_mark_makes_no_second_job(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next maintenance finds the same key."""
    office.plan("0 3 * * *")
    office.maintenance().run_once()
    office.at(utc(1, 1, 3))

    def dies(*_: Any) -> None:
        raise Unavailable("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(office.store.schedules, "mark_tick", dies)
        office.maintenance("w1#a").run_once()
    assert office.maintenance("w2#b").run_once() == 0
    assert office.ticks() == [utc(1, 1, 3)]
    office.at(utc(1, 2, 3))
    assert office.maintenance("w2#c").run_once() == 1


def test_a_tick_that_another_program_made_otherwise_is_that_programs(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments changed between the crash and the next maintenance: one job, and the schedule goes on."""
    office.plan("0 3 * * *")
    office.maintenance().run_once()
    office.at(utc(1, 1, 3))
    with monkeypatch.context() as patch:
        patch.setattr(office.store.schedules, "mark_tick", lambda *_: 1 / 0)
        office.maintenance().run_once()
    office.plan("0 3 * * *", call=office.report.request("us"))
    maintenance = office.maintenance()
    assert maintenance.run_once() == 0
    assert "created no job" in office.told(Notice)[0].sentence
    office.at(utc(1, 2, 3))
    assert maintenance.run_once() == 1
    assert [job.payload["region"] for job in office.store.inspect.jobs()] == ["us", "eu"]


# ---------------------------------------------------------------- clocks that change
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
    """Every night at half past two, in Berlin, with a maintenance that looks every half hour."""
    office.at(before)
    office.plan("30 2 * * *", tz="Europe/Berlin")
    maintenance = office.maintenance()
    while office.place.clock.now() < after:
        maintenance.run_once()
        office.advance(1800)
    assert office.ticks() == ticks


# ---------------------------------------------------------------- after an absence
@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [
        ("last", [utc(1, 4, 3)]),
        ("none", []),
        ("all", [utc(1, 2, 3), utc(1, 3, 3), utc(1, 4, 3)]),
    ],
)
def test_after_downtime_fires_what_catch_up_says(office: Office, catch_up: str, fired: list[datetime]) -> None:
    """Nothing ran for three days; then each maintenance that comes finds the rest dealt with."""
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


def test_a_tick_seen_a_moment_late_is_on_time(office: Office) -> None:
    """A maintenance looks once a second, and a worker is restarted now and then."""
    office.plan("0 3 * * *", catch_up="none")
    maintenance = office.maintenance()
    maintenance.run_once()
    office.advance(3 * HOUR + 50)
    assert maintenance.run_once() == 1


# ---------------------------------------------------------------- what goes wrong
def test_a_tick_that_its_kind_does_not_admit_is_dealt_with(office: Office) -> None:
    """It is told, not tried again, and the next one has its own chance."""
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


def test_a_schedule_that_cannot_tick_stops_no_other_and_is_tried_again(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was stored counts."""
    office.plan("0 3 * * *", name="a")
    office.plan("0 3 * * *", name="b")
    maintenance = office.maintenance()
    maintenance.run_once()
    office.at(utc(1, 1, 3))
    ask = office.store.schedules.save

    def broken(facts: Any) -> datetime | None:
        if facts.name == "a":
            raise ValueError("strange")
        return ask(facts)

    with monkeypatch.context() as patch:
        patch.setattr(office.store.schedules, "save", broken)
        assert maintenance.run_once() == 1
    assert [event.where for event in office.told(WorkerError)] == ["schedule a"]
    office.advance(1)
    assert maintenance.run_once() == 1


def test_a_paused_schedule_does_not_tick(office: Office) -> None:
    """And goes on when it is resumed."""
    office.plan("0 3 * * *")
    maintenance = office.maintenance()
    maintenance.run_once()
    office.place.raw("UPDATE {schedules} SET paused_at = last_tick")
    office.at(utc(1, 1, 3))
    assert maintenance.run_once() == 0
    office.place.raw("UPDATE {schedules} SET paused_at = NULL")
    office.at(utc(1, 2, 3))
    assert maintenance.run_once() == 2


def test_rule_20_idle_schedule_sends_no_query(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two ticks the schedule is not asked for, since a write would wake every worker on a file."""
    office.plan("0 3 * * *")
    maintenance = office.maintenance()
    maintenance.run_once()
    monkeypatch.setattr(office.store.schedules, "save", lambda _: 1 / 0)
    office.advance(2 * HOUR)
    maintenance.run_once()
    assert office.told(WorkerError) == []
    assert office.store.inspect.now() > EPOCH
