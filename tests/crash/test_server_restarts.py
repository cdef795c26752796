"""A server that is stopped immediately and restarted five times under load: no job is lost, duplicated or failed, and
no worker exits.
"""

import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.errors import Unavailable
from tests.crash.lab import Lab
from tests.crash.postgres_server import Server, server
from tests.kit import Place, PostgresRaw, postgres_place

_log = logging.getLogger(__name__)
GAPS = (1.0, 5.5, 0.5, 0.5, 2.0)
"""Seconds before each restart: some come while workers still wait after the last one, some while they work again."""
AWAY = (0.0, 1.0, 0.0, 0.5, 0.0)
"""Seconds for which the server is down, in addition to its start."""
LEASE = 10.0
"""Longer than any downtime, so that no lease has to be lost."""
TRIES = 100
"""The finish function here queries the database itself and fails while it is unreachable."""


class Producer:
    """Enqueues jobs one after the other until it is stopped.

    A job that may not have been stored is sent again under the same idempotency key.
    """

    def __init__(self, lab: Lab) -> None:
        self.taken: dict[str, tuple[str, str]] = {}
        """Id and kind of each tag."""
        self.errors = 0
        self._lab = lab
        self._chance = random.Random(5)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _produce(self) -> None:
        while not self._over.wait(0.02):
            tag, kind = str(len(self.taken)), self._chance.choice(["full", "plain", "fast"])
            self.taken[tag] = self._insist(kind, tag, self._chance.choice([0.0, 0.1, 2.0])), kind

    def _insist(self, kind: str, tag: str, seconds: float) -> str:
        while True:
            try:
                return self._lab.app.kinds[kind].using(idempotency_key=tag).enqueue(tag=tag, seconds=seconds).id
            except Unavailable:
                self.errors += 1
                time.sleep(0.05)


@pytest.fixture
def own() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture
def lab(own: Server, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(postgres_place(own.url), tmp_path, lease=LEASE, tries=TRIES)
    yield lab
    lab.close()
    lab.place.raw.close()


def running(lab: Lab) -> int:
    """Return how many jobs run, or 0 if the server is unreachable."""
    try:
        return len(lab.app.jobs(phase="running", limit=10))
    except Unavailable:
        return 0


def ended(lab: Lab) -> int:
    ((count,),) = lab.place.raw("SELECT count(*) FROM {jobs} WHERE phase IN ('succeeded', 'failed')")
    return int(count)


def check(lab: Lab, producer: Producer) -> None:
    """Check that each enqueued job exists once, has succeeded, took effect once and has all its tries."""
    _log.info(
        "%d jobs, %d times the producer was told that the server is unreachable", len(producer.taken), producer.errors
    )
    rows = lab.place.raw("SELECT id, payload, phase, tries_left, lease_losses FROM {jobs}")
    assert sorted(str(row[0]) for row in rows) == sorted(id for id, _ in producer.taken.values())
    assert {row[2:] for row in rows} == {("succeeded", lab.setting.tries, 0)}
    assert lab.effects() == {tag: 1 for tag, (_, kind) in producer.taken.items() if kind != "fast"}
    finished = lab.happened("finish")
    assert all(finished[tag] >= 1 for tag, (_, kind) in producer.taken.items() if kind == "full")
    # Each handler ran once, so no finished work was lost.
    assert set(lab.happened("prepare").values()) == {1}
    lab.check()


def test_five_restarts_of_the_server_cost_no_job_and_no_try(lab: Lab, own: Server) -> None:
    workers = [lab.worker(f"worker-{n}").ready() for n in range(2)]
    pids = [worker.pid for worker in workers]
    producer = Producer(lab)
    for gap, away in zip(GAPS, AWAY, strict=True):
        time.sleep(gap)
        lab.until(lambda: running(lab), "jobs run")
        own.restart(away)
    producer.stop()
    # The test's own connection is lost, too.
    lab.place.raw.close()
    lab.place = Place(own.url, lab.setting.schema, lambda: PostgresRaw(own.url, lab.setting.schema))
    lab.until(lambda: ended(lab) == len(producer.taken), "every job has ended", within=30)
    check(lab, producer)
    assert [(worker.alive, worker.pid) for worker in workers] == [(True, pid) for pid in pids]
    assert producer.errors > 0
