"""Graphs of any shape end as a model in Python says, in whatever order their jobs end."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlock.core.job_filter import JobFilter
from interlock.core.outcome import FailedFinally, Returned
from interlock.operate.verify import verify
from interlock.store.contract import Store
from interlock.store.flow_types import NewBatch
from interlock.store.types import Lease, NewJob
from tests.conftest import Places
from tests.contract.flow_kit import batch, cancel_requested, node, put
from tests.contract.kit import CONTENTS, claim, decided
from tests.kit import Place

POLICIES: list[Any] = ["cancel", "run", "hold"]


class Graph:
    """A random graph of jobs and batches, and how each job must end."""

    def __init__(self, size: int, choose: Callable[[list[Any]], Any], chance: Callable[[float], bool]) -> None:
        self.jobs: list[NewJob] = []
        self.batches: list[NewBatch] = []
        self.members: dict[str, list[NewJob]] = {}
        self.fails: set[str] = set()
        open_batch: NewBatch | None = None
        closed: list[NewBatch] = []
        for _ in range(size):
            if chance(0.1):
                # Jobs may wait for a batch only after its last member, so that the graph has no cycle.
                closed += [open_batch] if open_batch else []
                open_batch = batch("part") if chance(0.7) else None
                if open_batch is not None:
                    self.batches.append(open_batch)
                    self.members[open_batch.id] = []
            job = node(batch=None if open_batch is None else open_batch.id)
            before: list[NewJob | NewBatch] = [*self.jobs[-40:], *closed[-5:]]
            for _ in range(choose([0, 1, 1, 2, 4]) if before else 0):
                known = {each.needs for each in job.after}
                job.after += tuple(e for e in node([choose(before)], choose(POLICIES)).after if e.needs not in known)
            self.jobs.append(job)
            if open_batch is not None:
                self.members[open_batch.id].append(job)
            if chance(0.15):
                self.fails.add(job.id)

    def expected(self) -> dict[str, str]:
        """Return the state in which each job ends, if held jobs are released."""
        ends: dict[str, str] = {}
        for job in self.jobs:
            failed = {each.on_failed for each in job.after if self._failed(each.needs, ends)}
            ends[job.id] = "CANCELLED" if "cancel" in failed else "FAILED" if job.id in self.fails else "SUCCEEDED"
        return ends

    def _failed(self, id: str, ends: dict[str, str]) -> bool:
        ids = [job.id for job in self.members[id]] if id in self.members else [id]
        return any(ends[each] != "SUCCEEDED" for each in ids)


def drive(store: Store, graph: Graph, choose: Callable[[list[Any]], Any]) -> Counter[str]:
    """Claim, and end jobs in random order, until nothing is left. A job never starts before what it needs has ended."""
    ended: set[str] = set()
    needs = {job.id: [each.needs for each in job.after] for job in graph.jobs}
    seen: Counter[str] = Counter()
    running: list[Lease] = []
    while True:
        for lease in claim(store, limit=50):
            for need in needs[lease.job.id]:
                assert {job.id for job in graph.members[need]} <= ended if need in graph.members else need in ended
            running.append(lease)
        if running:
            lease = running.pop(running.index(choose(running)))
            bad = lease.job.id in graph.fails
            outcome = FailedFinally("bad") if bad else Returned('"v"', boundary=False)
            assert store.transitions.move([decided(lease, outcome)]) == []
            ended.add(lease.job.id)
        elif cancelled := cancel_requested(store):
            ended.update(cancelled)
            seen["cancelled"] += len(cancelled)
        elif held := [
            job
            for job in store.inspect.jobs(matching=JobFilter(phase="pending"), limit=2000)
            if job.held_at is not None
        ]:
            seen["held"] += len(held)
            for job in held:
                assert store.control.release(job.id, by="olga", reason="go on")
        else:
            return seen


def check_end(store: Store, graph: Graph) -> None:
    assert {job.id: job.state for job in store.inspect.jobs(limit=5000)} == graph.expected()
    assert verify(store).violations == []


def test_small_graphs_end_as_the_model_says(places: Places) -> None:
    seen: Counter[str] = Counter()
    used: list[tuple[Place, Store]] = []

    @settings(
        max_examples=50,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        if not used or not used[-1][0].recycle():
            place = places()
            used.append((place, place.open_with(CONTENTS)))
        store = used[-1][1]

        def choose(values: list[Any]) -> Any:
            return values[data.draw(st.integers(0, len(values) - 1))]

        graph = Graph(data.draw(st.integers(1, 12)), choose, lambda p: data.draw(st.floats(0, 1)) < p)
        put(store, graph.jobs, *graph.batches)
        seen.update(drive(store, graph, choose))
        check_end(store, graph)

    check()
    assert seen["cancelled"]
    assert seen["held"]


@pytest.mark.parametrize("seed", [1, 2])
def test_graph_of_1000_jobs_ends_as_the_model_says(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    graph = Graph(1000, chance.choice, lambda p: chance.random() < p)
    put(store, graph.jobs, *graph.batches)
    seen = drive(store, graph, chance.choice)
    assert min(seen["cancelled"], seen["held"]) > 20
    check_end(store, graph)
