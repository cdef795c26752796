"""Races of schedules: workers in processes of their own, which an operator or a kill interrupts at random moments."""

import itertools
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from interlock import App, Job, Operation
from interlock.store.contract import Store
from tests.contract.schedule_processes import make_app, tick_until
from tests.contract.test_races import processes
from tests.kit import Place

SECONDS = 5.0
START = 3.0
"""Seconds until the processes have started."""
WORKERS = 3


@pytest.fixture
def app(live: Store, place: Place) -> Iterator[App[Any]]:
    made = make_app(place.url, place.schema)
    made.migrate()
    yield made
    made.close()


def operate(app: App[Any], until: float) -> None:
    """Change, pause, resume, delete and create the schedule at random moments."""
    draw, round, schedules = random.Random(7), 0, app.schedules
    request = app.kinds["report"].request
    schedules.create("often", "* * * * *", request(round=0), by="0")
    while time.time() < until:
        time.sleep(draw.random() * 0.05)
        round += 1
        match draw.choice(("change", "pause", "delete")):
            case "change":
                schedules.change("often", request=request(round=round), by=str(round))
            case "pause":
                schedules.pause("often", by=str(round))
                time.sleep(draw.random() * 0.05)
                schedules.resume("often", by=str(round))
            case _:
                schedules.delete("often", by=str(round))
                time.sleep(draw.random() * 0.05)
                schedules.create("often", "* * * * *", request(round=round), by=str(round))
    schedules.pause("often", by="end")


def allowed(operations: list[Operation], last: datetime) -> list[tuple[int, datetime, datetime]]:
    """Return the spans of time in which the schedule ran, each with the round of its request."""
    spans: list[tuple[int, datetime, datetime]] = []
    round, since = 0, None
    for one in operations:
        if since is not None:
            spans.append((round, since, one.at))
        since = None if one.event in ("pause", "delete") else one.at
        if one.event in ("create", "change"):
            round = int(one.actor.removeprefix("operator:"))
    return spans if since is None else [*spans, (round, since, last)]


def test_no_job_is_created_after_a_pause_a_change_or_a_deletion(app: App[Any], place: Place) -> None:
    """Each job has the request that the schedule had when it was created, and no tick has two jobs."""
    began = time.time()
    until = began + START + SECONDS
    errors: list[BaseException] = []

    def operator() -> None:
        time.sleep(START)
        try:
            operate(app, until - 0.5)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=operator)
    thread.start()
    wrong = processes(WORKERS, tick_until, place.url, place.schema, began, until)
    thread.join()
    assert (wrong, errors) == ([[]] * WORKERS, [])
    jobs: list[Job] = app.jobs(limit=100_000)
    operations = app.operations(limit=100_000)[::-1]
    spans = allowed(operations, operations[-1].at)
    assert len(jobs) > 50
    assert len({job.scheduled_for for job in jobs}) == len(jobs)
    wrongly = [
        job
        for job in jobs
        if not any(since <= job.created_at <= end and job.payload["round"] == round for round, since, end in spans)
    ]
    assert wrongly == []


def test_killed_workers_neither_lose_nor_repeat_a_tick(app: App[Any], place: Place) -> None:
    """Three workers at a time are killed at random moments, three times. With catch_up="all", each minute has one job."""
    app.schedules.create("often", "* * * * *", app.kinds["report"].request(), catch_up="all", by="ann")
    began, draw = time.time(), random.Random(7)
    context = multiprocessing.get_context("spawn")
    for round in range(3):
        given = (place.url, place.schema, began, began + 60)
        workers = [context.Process(target=tick_until, args=(*given, f"w{round}.{number}")) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        before, seen_by = len(app.jobs(limit=100_000)), time.time() + 30
        while len(app.jobs(limit=100_000)) == before and time.time() < seen_by:
            time.sleep(0.05)
        for worker in workers:
            time.sleep(draw.random() * 0.2)
            worker.kill()
        for worker in workers:
            worker.join()
    end = time.time() + 3
    assert processes(1, tick_until, place.url, place.schema, began, end) == [[]]
    ticks = sorted(job.scheduled_for for job in app.jobs(limit=100_000) if job.scheduled_for is not None)
    # Otherwise the kills hit no tick; how many there are depends on the machine.
    assert len(ticks) > 100
    assert {later - tick for tick, later in itertools.pairwise(ticks)} == {timedelta(minutes=1)}
