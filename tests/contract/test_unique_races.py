"""Races of processes for unique keys with a window, and for the payload of a waiting job."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

import psycopg

from interlock.operate.verify import verify
from interlock.store.contract import Store
from interlock.store.enqueue_plan import Statement
from interlock.store.types import Enqueued
from tests.contract.kit import CONTENTS, make, stored
from tests.contract.race_processes import WINDOW, enqueue_windows, replace_payloads, run_jobs
from tests.kit import Place, postgres_place

FUTURE = datetime(2999, 1, 1, tzinfo=UTC)
KEYS = [f"key {n}" for n in range(12)]


def deadlocks(place: Place) -> Any:
    if place.url.startswith("sqlite"):
        return 0
    return place.raw("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")


def at_once(*calls: tuple[Callable[..., Any], tuple[Any, ...]]) -> list[Any]:
    """Run each function in a process of its own; return the results."""
    with ProcessPoolExecutor(len(calls), mp_context=get_context("spawn")) as pool:
        return [task.result(timeout=120) for task in [pool.submit(function, *given) for function, given in calls]]


def test_processes_that_enqueue_the_same_keys_make_one_job_for_each_window(live: Store, place: Place) -> None:
    """One by one and in lists of different orders, with and without a window, while the jobs end and windows are
    forgotten. No process gets an error or waits in a deadlock.
    """
    before = deadlocks(place)
    created = at_once(*((enqueue_windows, (place.url, place.schema, KEYS, 4.0, f"p{n}")) for n in range(5)))
    assert deadlocks(place) == before
    # A time of creation is that of the beginning of an enqueue, which may have waited for others.
    jobs = sorted(live.inspect.jobs(limit=10_000), key=lambda job: job.finished_at or FUTURE)
    assert sum(created) == len(jobs)
    assert len(jobs) > 5 * len(KEYS)
    by_key: dict[str | None, list[Any]] = defaultdict(list)
    for job in jobs:
        by_key[job.unique_key].append(job)
    for same in by_key.values():
        for job, following in pairwise(same):
            if job.priority:
                assert following.created_at - job.created_at >= timedelta(seconds=WINDOW)
    assert verify(live).ok


class Meddling:
    """A dialect that runs a function once, before it looks for the jobs that may take another payload."""

    def __init__(self, real: Any, meddle: Callable[[], None]) -> None:
        self._real, self._meddle = real, [meddle]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def replaceable(self, ids: Sequence[str]) -> Statement:
        while self._meddle:
            self._meddle.pop()()
        return self._real.replaceable(ids)


def test_callers_that_replace_a_payload_at_the_same_time_all_write_their_note(postgres_url: str) -> None:
    """The second one waits for the first, which locked the job after it was found; its note has the next number.

    It has its own transaction, which nothing retries. SQLite has one writer.
    """
    place = postgres_place(postgres_url)
    store: Any = place.open_with(CONTENTS, real_time=True)
    job = stored(store, unique_key="u")
    first = psycopg.connect(place.url)

    def meddle() -> None:
        with_first = make(unique_key="u", on_conflict="replace", payload="1")
        assert place.open(real_time=True).queue.enqueue([with_first], conn=first)[0].replaced
        threading.Timer(0.5, first.commit).start()

    store.session.dialect = Meddling(store.session.dialect, meddle)
    with store.transaction() as tx:
        (answer,) = store.queue.enqueue([make(unique_key="u", on_conflict="replace", payload="2")], conn=tx)
    assert answer == Enqueued(job.id, False, True)
    assert store.inspect.get(job.id).payload == 2
    assert [(entry.n, entry.event) for entry in store.inspect.history(job.id)][1:] == [(1, "replaced"), (2, "replaced")]
    first.close()
    place.close()


def test_job_runs_with_the_payload_that_its_history_and_the_callers_know(live: Store, place: Place) -> None:
    """Processes replace the payload of one key while others claim it: a caller is told that its payload was taken only
    if no later caller was, or the job ran with it; a job never runs with a payload that a caller was not told of.
    """
    ends = 5.0
    *answers, first, second = at_once(
        *((replace_payloads, (place.url, place.schema, "u", 4.0, f"p{n}")) for n in range(3)),
        (run_jobs, (place.url, place.schema, ends, "w1")),
        (run_jobs, (place.url, place.schema, ends, "w2")),
    )
    ran = dict(first + second)
    assert len(ran) == len(first) + len(second) > 3
    told: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for payload, id, result in (each for answer in answers for each in answer):
        told[id].append((payload, result))
    for job in live.inspect.jobs(limit=10_000):
        taken = {payload for payload, result in told[job.id] if result}
        notes = [entry for entry in live.inspect.history(job.id) if entry.n > 0]
        assert job.payload in taken
        assert ran[job.id] == job.payload
        assert len(notes) == len(taken) - 1
        assert all(entry.version == 0 and entry.event in ("replaced", "debounced") for entry in notes)
        if notes:
            assert str(job.payload).startswith(f"{notes[-1].actor} ")
    assert any(len(each) > 1 for each in told.values())
    assert verify(live).ok
