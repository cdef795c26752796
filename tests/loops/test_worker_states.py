"""The worker's state machine: each transition emits an event, and the invariants hold over a run."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from interlock import App, Fail, NotMigrated, Run, Tx
from interlock.core.machine import Machine
from interlock.store import OpenStore
from interlock.telemetry.events import AttemptEnded, Claimed, WorkerError, WorkerStateChanged
from interlock.worker.assembly import run_worker
from interlock.worker.states import PAIRS, WORKER, Position
from interlock.worker.worker import Worker
from tests.kit import Place
from tests.loops.worker_doubles import EventRecorder, InstantSleeper, InterceptedStore, away, once

SEED = Machine.parse(
    "seed",
    """stateDiagram-v2
    [*] --> Startup
    Startup --> Connecting
    state "Worker Loop" as Loop {
        Connecting --> Recovery: Connected
        Recovery --> Polling: Check Done
        Polling --> Claiming: Task Found
        Polling --> Backoff: No Tasks
        Backoff --> Idle: Calc Interval
        Idle --> Connecting: Sleep Done
        Claiming --> Processing: Lease Acquired
        Claiming --> Polling: Claim Failed
        Processing --> ReportingSuccess: Success
        Processing --> ReportingFailure: Error
        ReportingSuccess --> Polling: Loop
        ReportingFailure --> Polling: Loop
    }
    Loop --> ErrorWait: Unhandled Exception
    ErrorWait --> Connecting: Retry
""",
)


class Bench:
    """An app with two kinds on a database in real time, and an intercepted store."""

    def __init__(self, place: Place) -> None:
        self.app: App[Tx] = App(place.url, schema=place.schema)
        self.place = place

        @self.app.job(lease=3)
        async def good(run: Run, n: int) -> int:
            return n

        @self.app.job(lease=3)
        async def bad(run: Run) -> None:
            raise Fail("as told")

        self.good, self.bad = good, bad
        self.app.migrate()
        self.intercepted = InterceptedStore(self.app.database.store())
        self.sleeper = InstantSleeper()

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator[tuple[Worker, EventRecorder]]:
        witness = EventRecorder(self.app.events)
        # Without a listener, so that it polls before it claims.
        plan = replace(
            self.app.plan(listen=False), find_store=lambda: cast(OpenStore, self.intercepted), sleeper=self.sleeper
        )
        async with run_worker(plan) as worker:
            yield worker, witness


@pytest.fixture
def bench(place: Place) -> Iterator[Bench]:
    bench = Bench(place)
    yield bench
    bench.app.close()


def test_worker_states_match_the_specification() -> None:
    """14 transitions of the diagram, and one from every state of the loop to ErrorWait."""
    assert WORKER.pairs() == SEED.pairs()
    assert len([pair for pair in PAIRS if pair[1] != "ErrorWait"]) == 14
    assert {source for source, target in PAIRS if target == "ErrorWait"} == set(WORKER.states) - {
        "Startup",
        "ErrorWait",
    }


def test_position_takes_only_allowed_transitions() -> None:
    steps: list[tuple[str, str, str]] = []
    position = Position("Polling", lambda *step: steps.append(step))
    with pytest.raises(RuntimeError, match="has no such transition"):
        position.go("Processing")
    position.go("Claiming", "found")
    assert steps == [("Polling", "Claiming", "found")]


def test_each_transition_of_the_worker_emits_an_event(bench: Bench) -> None:
    """The run has a failed connection, idling, a success, a failure, a lost claim race and an unhandled exception."""
    rival = bench.place.open(real_time=True)

    def robbed() -> None:
        del bench.intercepted.before["claim"]
        rival.queue.claim(
            "rival",
            [rule for kind in bench.app.kinds.values() for rule in kind.spec.claim_rules(kind.spec.version(rival))],
            ["default"],
            10,
        )

    async def scene() -> EventRecorder:
        bench.intercepted.before["now"] = once(away())
        async with bench.worker() as (worker, witness):
            for arrow in (
                ("Startup", "Connecting"),
                ("Connecting", "ErrorWait"),
                ("ErrorWait", "Connecting"),
                ("Connecting", "Recovery"),
                ("Recovery", "Polling"),
                ("Polling", "Backoff"),
                ("Backoff", "Idle"),
                ("Idle", "Connecting"),
            ):
                await witness.moved(*arrow)
            await bench.good.aenqueue(1)
            for arrow in (
                ("Polling", "Claiming"),
                ("Claiming", "Processing"),
                ("Processing", "ReportingSuccess"),
                ("ReportingSuccess", "Polling"),
            ):
                await witness.moved(*arrow)
            await bench.bad.aenqueue()
            await witness.moved("Processing", "ReportingFailure")
            await witness.moved("ReportingFailure", "Polling")
            # The worker is idle, so that it polls before it claims; another worker is faster.
            await witness.until(WorkerStateChanged, lambda moved: moved.target == "Idle", after=len(witness.seen))
            bench.intercepted.before["claim"] = robbed
            await bench.good.aenqueue(2)
            await witness.moved("Claiming", "Polling")
            bench.intercepted.before["claim"] = once(RuntimeError("a bug"))
            await bench.good.aenqueue(3)
            await witness.moved("Polling", "ErrorWait")
            assert worker.busy == 0
        return witness

    witness = asyncio.run(scene())
    assert {pair for pair in PAIRS if pair[1] != "ErrorWait"} <= witness.arrows()
    assert ("Connecting", "ErrorWait") in witness.arrows()
    assert witness.arrows() <= PAIRS


def test_error_wait_lasts_five_seconds(bench: Bench) -> None:
    async def scene() -> None:
        bench.intercepted.before["now"] = once(away())
        async with bench.worker() as (_, witness):
            await witness.moved("ErrorWait", "Connecting")

    asyncio.run(scene())
    assert 5.0 in bench.sleeper.slept


def test_worker_loop_survives_any_error(bench: Bench) -> None:
    """After any error, the worker polls again and runs jobs."""

    async def scene() -> None:
        async with bench.worker() as (_, witness):
            for verb, error in (
                ("claim", RuntimeError("a bug")),
                ("due_in", away()),
                ("claim", away()),
                ("due_in", MemoryError()),
            ):
                known = len(witness.seen)
                bench.intercepted.before[verb] = once(error)
                await bench.good.aenqueue(1)
                await witness.until(WorkerError, after=known)
            stored = await bench.good.aenqueue(7)
            assert await bench.good.aresult(stored.id, timeout=30) == 7

    asyncio.run(scene())


def test_workers_table_has_the_worker_until_it_stops(bench: Bench) -> None:
    async def scene() -> None:
        async with bench.worker() as (worker, witness):
            await witness.moved("Backoff", "Idle")
            await asyncio.to_thread(worker.heartbeat)
            seen = await asyncio.to_thread(bench.app.database.store().workers.all)
            assert [(one.facts.name, one.facts.state in WORKER.states, one.facts.kinds) for one in seen] == [
                (worker.name, True, ("bad", "good"))
            ]

    asyncio.run(scene())
    assert bench.app.database.store().workers.all() == []


def test_four_invariants_hold_over_a_run(bench: Bench) -> None:
    """They are: one lease per job, its duration, updated timestamps and a complete audit. The run has two workers,
    successes and failures.
    """
    jobs = [bench.good.enqueue(n) for n in range(150)] + [bench.bad.enqueue() for _ in range(50)]

    async def scene() -> None:
        async with bench.worker() as (_, first), bench.worker() as (_, _second):
            ended: set[str] = set()
            while len(ended) < len(jobs):
                event = await first.until(AttemptEnded, lambda one: one.job_id not in ended)
                ended.add(event.job_id)
            await first.until(Claimed)

    asyncio.run(scene())
    for stored in jobs:
        job, executions, history = (
            bench.app.get(stored.id),
            bench.app.executions(stored.id),
            bench.app.history(stored.id),
        )
        assert job.ended
        assert len(executions) == 1, "only one worker ever leased it"
        assert executions[0].lease_expires_at - executions[0].leased_at >= timedelta(seconds=3)
        assert job.updated_at > job.created_at
        assert [(entry.from_state, entry.to_state) for entry in history if entry.n == 0] == [
            (None, "PENDING"),
            ("PENDING", "RUNNING"),
            ("RUNNING", job.state),
        ]
    assert bench.app.verify().ok


def test_embedded_worker_raises_not_migrated_at_once(place: Place) -> None:
    place.open(real_time=True).registry.migrate([], [])
    app: App[Tx] = App(place.url, schema=place.schema)

    @app.job()
    async def work(run: Run) -> None:
        """Never called."""

    async def scene() -> None:
        async with app.worker():
            raise AssertionError("the block is not entered")

    with pytest.raises(NotMigrated, match="interlock migrate"):
        asyncio.run(scene())
