"""A connection lost at COMMIT: sending the same fenced write again settles the job in either case."""

from collections.abc import Iterator

import pytest

from interlock.engine.context import WorkerContext
from interlock.errors import Unavailable
from interlock.store import OpenStore
from interlock.telemetry.events import Events, WorkerError
from tests.crash.commit_proxy import Cut, Proxy, When
from tests.crash.conftest import Labs
from tests.crash.lab import Lab

pytestmark = pytest.mark.parametrize("places", ["postgres"], indirect=True)
LEASE = 30.0
"""Long enough that no lease expires here, so that every job is settled by its holder."""
JOBS = 5
MOVE, CLAIM = "settled AS (", "claimed AS ("
"""Text that occurs only in the statements that store an outcome, and only in those that claim."""


class Bench:
    """A laboratory whose worker reaches the database through a proxy; the test connects directly."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.proxy = Proxy(lab.setting.url)

    def cut(self, when: When, at: str, kind: str, count: int) -> tuple[list[str], Cut]:
        """Run jobs until the connection is cut; the worker is paused from then on."""
        ids = [self.lab.enqueue(kind, f"{kind}-{n}", seconds=0.2) for n in range(count)]
        self.proxy.cut(when, at=at)
        self.worker = self.lab.worker("cut", url=self.proxy.url)
        cut = self.proxy.wait()
        raw = self.lab.place.raw
        self.lab.until(
            lambda: not raw("SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=cut.pid),
            "the server has closed the connection",
        )
        return ids, cut

    def check(self, ids: list[str], *, attempt: int = 1) -> None:
        """Check that each job ran once and kept its tries."""
        jobs = self.lab.until_ended(*ids)
        # A stopping worker first sends its pending reports, including refusals.
        self.worker.terminate()
        assert self.worker.exit_code() == 0
        assert {(job.phase, job.tries_left) for job in jobs} == {("succeeded", self.lab.setting.tries)}
        assert max(job.attempt for job in jobs) == attempt
        tags = [str(job.payload["tag"]) for job in jobs]
        assert [self.lab.happened("prepare")[tag] for tag in tags] == [1] * len(ids)
        for id in ids:
            events = [entry.event for entry in self.lab.app.history(id)]
            assert (events.count("succeed"), events.count("refused")) == (1, 0)
        self.lab.check()


@pytest.fixture
def bench(labs: Labs) -> Iterator[Bench]:
    bench = Bench(labs(lease=LEASE))
    yield bench
    bench.proxy.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_commit_with_a_lost_connection_takes_effect_once(bench: Bench, when: When) -> None:
    """If the server never received the COMMIT, the function runs again. If it had committed, it does not."""
    ids, cut = bench.cut(when, "lab_effects", "plain", 1)
    assert (cut.when, cut.replied) == (when, when == "after")
    assert (bench.lab.job(ids[0]).ended, bench.lab.effects()) == (
        (True, {"plain-0": 1}) if when == "after" else (False, {})
    )
    bench.proxy.go_on()
    bench.check(ids)
    assert bench.lab.effects() == {"plain-0": 1}


@pytest.mark.parametrize("when", ["before", "after"])
def test_report_with_a_lost_connection_ends_each_job_once(bench: Bench, when: When) -> None:
    ids, cut = bench.cut(when, MOVE, "fast", JOBS)
    ended = [job.id for job in map(bench.lab.job, ids) if job.ended]
    assert (cut.when, cut.replied, cut.simple) == (when, when == "after", False)
    assert bool(ended) == (when == "after")
    bench.proxy.go_on()
    bench.check(ids)


@pytest.mark.parametrize("when", ["before", "after"])
def test_job_of_a_claim_with_a_lost_connection_keeps_its_tries(bench: Bench, when: When) -> None:
    """The worker never learned which jobs the server leased to it. It finds these lost claims by its own name and
    returns them.
    """
    ids, cut = bench.cut(when, CLAIM, "plain", JOBS)
    leased = [id for id in ids if bench.lab.executions(id)]
    assert (cut.when, cut.replied) == (when, when == "after")
    assert bool(leased) == (when == "after")
    assert {bench.lab.executions(id)[0].lease_owner.partition("#")[0] for id in leased} <= {"cut"}
    bench.proxy.go_on()
    bench.check(ids, attempt=2 if leased else 1)
    lost_claims = [
        id
        for id in ids
        if any(entry.reason == "the reply to its claim was lost" for entry in bench.lab.app.history(id))
    ]
    assert lost_claims == leased == (ids if when == "after" else [])
    assert bench.lab.effects() == dict.fromkeys((f"plain-{n}" for n in range(JOBS)), 1)


def test_write_is_retried_while_the_database_is_unreachable(store: OpenStore) -> None:
    """Each failure is reported, and the worker knows that it must look for lost claims."""
    told: list[WorkerError] = []
    answers: list[object] = [Unavailable("the reply was lost"), Unavailable("no answer"), "stored"]

    def write() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    events = Events()
    events.subscribe(told.append, WorkerError)
    context = WorkerContext("worker#1", lambda: store, {}, events=events, random=lambda: 0.0)
    assert context.retry_while_unavailable(write, "report") == "stored"
    assert [(trouble.where, str(trouble.error)) for trouble in told] == [
        ("report", "the reply was lost"),
        ("report", "no answer"),
    ]
    assert context.database_down.is_set()
    context.stopped.set()
    answers.append(Unavailable("still no answer"))
    with pytest.raises(Unavailable, match="still no answer"):
        context.retry_while_unavailable(write, "report")
