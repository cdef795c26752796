"""A worker dies, or its database becomes unreachable: many jobs recover together, and no job is charged for another."""

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.crash.commit_proxy import Proxy
from tests.crash.conftest import Labs
from tests.crash.lab import Lab
from tests.crash.postgres_server import server
from tests.crash.scenario_kit import audited, equipped, until_begun
from tests.crash.worker_command import start
from tests.kit import postgres_place, sqlite_place

_log = logging.getLogger(__name__)
MANY = 100
SECONDS = 2.0
"""The duration of each attempt."""
LEASE = 5.0


def enqueue(lab: Lab, prefix: str, *, seconds: float = SECONDS, first: float | None = None) -> list[str]:
    tags = [f"{prefix}-{n}" for n in range(MANY)]
    kind = lab.app.kinds["steady"]
    lab.app.enqueue_many([kind.request(tag=tag, seconds=seconds, first=first) for tag in tags])
    return tags


def until_done(lab: Lab, within: float) -> float:
    """Wait until every job has ended, and return the time."""

    def open_jobs() -> int:
        return sum(
            count
            for states in lab.store.inspect.counts().values()
            for state, count in states.items()
            if state in ("PENDING", "RUNNING")
        )

    lab.until(lambda: not open_jobs(), "every job has ended", within=within)
    return time.monotonic()


def baseline(lab: Lab) -> float:
    """Return the seconds that as many jobs take on this machine without a crash."""
    tags, begun = enqueue(lab, "healthy"), time.monotonic()
    worker = start(lab, "healthy")
    took = until_done(lab, 60) - begun
    lab.bury(worker)
    assert lab.effects() == dict.fromkeys(tags, 1)
    return took


def test_jobs_of_a_killed_worker_recover_within_three_times_the_ideal(labs: Labs) -> None:
    """The ideal is the lease plus the time that as many jobs take without a crash."""
    lab = equipped(labs(lease=LEASE))
    ideal = LEASE + baseline(lab)
    tags = enqueue(lab, "lost", first=600)
    victim = start(lab, "victim")
    until_begun(lab, *tags)
    victim.kill()
    killed = time.monotonic()
    start(lab, "rescuer")
    took = until_done(lab, 3 * ideal) - killed
    _log.info("%d jobs of %g s, lease %g s: recovered in %.1f s, ideal %.1f s", MANY, SECONDS, LEASE, took, ideal)
    jobs = [job for job in lab.app.jobs(limit=1000) if job.payload["tag"] in tags]
    assert {(job.phase, job.attempt, job.tries_left) for job in jobs} == {("succeeded", 2, 2)}
    assert all(lab.effects()[tag] == 1 for tag in tags)
    lab.check()


# With two tries every suspect runs alone, so its duration does not matter. With more tries suspects share children: a
# rerun must be longer than the half second after which the poison kills its child.
@pytest.mark.parametrize(("tries", "rerun"), [(2, 0.1), (3, 1.0), (5, 1.0)])
def test_poison_job_fails_after_its_tries_and_other_jobs_are_charged_once(labs: Labs, tries: int, rerun: float) -> None:
    """None of the other jobs fails, and none is charged twice, whether it ran beside the poison once or twice."""
    lab = equipped(labs(lease=2.0, tries=tries))
    tags = enqueue(lab, "innocent", seconds=rerun, first=SECONDS)
    poison = lab.enqueue("poison", "poison")
    first = start(lab, "first", slots=MANY + 1)
    assert first.exit_code(within=30) == 13
    start(lab, "second", slots=MANY + 1)
    begun = time.monotonic()
    until_done(lab, 120)
    took, jobs = time.monotonic() - begun, {job.payload["tag"]: job for job in lab.app.jobs(limit=1000)}
    dead = jobs.pop("poison")
    _log.info(
        "poison with %d tries: %d innocents done after %.1f s, attempts %s",
        tries,
        MANY,
        took,
        Counter(job.attempt for job in jobs.values()),
    )
    assert (dead.phase, dead.attempt, dead.tries_left) == ("failed", tries, 0)
    assert lab.happened("prepare")["poison"] == len(lab.executions(poison)) == tries
    assert {(job.phase, job.tries_left) for job in jobs.values()} == {("succeeded", tries - 1)}
    assert lab.effects() == dict.fromkeys(tags, 1)
    audited(lab)


# ---------------------------------------------------------------- the database becomes unreachable
Away = Callable[[float], None]


@contextmanager
def locked_file(quick_path: Path, tmp_path: Path) -> Generator[tuple[Lab, str, Away]]:
    """A SQLite file that another process locks."""
    place = sqlite_place(quick_path)
    lab = equipped(Lab(place, tmp_path, lease=LEASE))

    def away(seconds: float) -> None:
        file = sqlite3.connect(place.url.removeprefix("sqlite:///"), timeout=20, isolation_level=None)
        file.execute("BEGIN EXCLUSIVE")
        time.sleep(seconds)
        file.execute("ROLLBACK")
        file.close()

    yield lab, place.url, away
    lab.close()
    place.close()


@contextmanager
def stopped_server(quick_path: Path, tmp_path: Path) -> Generator[tuple[Lab, str, Away]]:
    """A server that stops and is started again."""
    with server() as own:
        place = postgres_place(own.url)
        lab = equipped(Lab(place, tmp_path, lease=LEASE))

        def away(seconds: float) -> None:
            own.stop()
            time.sleep(seconds)
            own.start()
            place.raw.close()
            place._raw = None

        yield lab, place.url, away
        lab.close()
        place.close()


@contextmanager
def silent_network(quick_path: Path, tmp_path: Path) -> Generator[tuple[Lab, str, Away]]:
    """A running server whose answers do not reach the workers."""
    with server() as own:
        place, proxy = postgres_place(own.url), Proxy(own.url)
        lab = equipped(Lab(place, tmp_path, lease=LEASE))

        def away(seconds: float) -> None:
            proxy.passing.clear()
            time.sleep(seconds)
            proxy.go_on()

        yield lab, proxy.url, away
        lab.close()
        proxy.close()
        place.close()


@pytest.mark.parametrize("outage", [locked_file, stopped_server, silent_network])
def test_outage_of_two_leases_costs_no_try_of_running_jobs(outage: Any, quick_path: Path, tmp_path: Path) -> None:
    """Half of the jobs end during the outage and do not run again. The others stop when their lease can no longer be
    trusted, and run again.
    """
    with outage(quick_path, tmp_path) as (lab, url, away):
        ending, running = enqueue(lab, "ending"), enqueue(lab, "running", first=600)
        workers = [start(lab, f"worker-{n}", url=url) for n in range(2)]
        until_begun(lab, *ending[-2:], *running)
        away(2 * LEASE)
        back = time.monotonic()
        took = until_done(lab, 3 * (LEASE + 10)) - back
        _log.info("%s: %d jobs done %.1f s after the database came back", outage.__name__, 2 * MANY, took)
        jobs = lab.app.jobs(limit=1000)
        assert [worker.alive for worker in workers] == [True, True]
        assert {(job.phase, job.tries_left, job.lease_losses) for job in jobs} == {("succeeded", 3, 0)}
        assert lab.effects() == dict.fromkeys([*ending, *running], 1)
        assert {lab.happened("prepare")[tag] for tag in ending} == {1}
        lab.check()
