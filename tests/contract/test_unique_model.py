"""Unique keys under random histories, compared with a dict."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlock.core.outcome import Errored, FailedFinally, Returned
from interlock.store.contract import Store
from interlock.store.types import Enqueued, Lease, NewJob
from tests.conftest import Places
from tests.contract.kit import CONTENTS, claim, decided, make, taken
from tests.kit import Place

Draw = Callable[[Any], Any]


@dataclass
class Expected:
    """A job as it should be."""

    id: str
    key: str
    created: float
    until: float | None
    payload: int
    due: float
    phase: str = "pending"
    started: bool = False

    @property
    def active(self) -> bool:
        return self.phase in ("pending", "running")


@dataclass
class History:
    """A database, and what should be in it."""

    place: Place
    store: Store
    seen: Counter[str]
    jobs: dict[str, Expected] = field(default_factory=dict[str, Expected])
    leases: list[Lease] = field(default_factory=list[Lease])
    now: float = 0.0

    def __post_init__(self) -> None:
        self.start = self.place.clock.now()

    def at(self, seconds: float) -> datetime:
        return self.start + timedelta(seconds=seconds)

    def step(self, draw: Draw) -> None:
        actions = ["enqueue", "enqueue", "enqueue", "claim", "end", "end", "wait", "cancel", "redrive", "delete"]
        getattr(self, draw(st.sampled_from(actions)))(draw)
        self.check()

    def holder(self, key: str) -> Expected | None:
        """Return the job that has the key."""
        same = [job for job in self.jobs.values() if job.key == key]
        ended = (each for each in same if each.phase == "succeeded" and each.until is not None)
        return next((each for each in same if each.active), None) or next(
            (each for each in ended if each.until is not None and each.until > self.now), None
        )

    # ------------------------------------------------------------ steps
    def enqueue(self, draw: Draw) -> None:
        jobs = [
            make(
                unique_key=draw(st.sampled_from("abc")),
                unique_for=draw(st.sampled_from([None, 20.0, 20.0, 50.0])),
                on_conflict=draw(st.sampled_from(["keep", "keep", "replace", "debounce"])),
                delay=draw(st.sampled_from([0.0, 0.0, 7.0, 15.0])),
                payload=str(draw(st.integers(0, 99))),
            )
            for _ in range(draw(st.sampled_from([1, 1, 2, 5])))
        ]
        holders = {key: self.holder(key) for key in "abc"}
        expected: dict[int, Enqueued] = {}
        for key in {str(job.unique_key) for job in jobs}:
            same = [n for n, job in enumerate(jobs) if job.unique_key == key]
            chosen = next((n for n in reversed(same) if jobs[n].on_conflict != "keep"), same[0])
            expected |= self._answers(same, chosen, jobs[chosen], holders[key])
        assert self.store.queue.enqueue(jobs) == [expected[n] for n in range(len(jobs))]

    def _answers(self, same: list[int], chosen: int, job: NewJob, holder: Expected | None) -> dict[int, Enqueued]:
        payload, due = int(job.payload), self.now + job.delay
        if holder is None:
            until = None if job.unique_for is None else self.now + job.unique_for
            self.jobs[job.id] = Expected(job.id, str(job.unique_key), self.now, until, payload, due)
            answer = Enqueued(job.id, True)
            self.seen["after a window"] += any(not each.active and each.until for each in self.jobs.values())
        else:
            replaced = holder.phase == "pending" and not holder.started and job.on_conflict != "keep"
            if replaced:
                holder.payload = payload
            if replaced and job.on_conflict == "debounce":
                holder.due = due if holder.until is None else min(due, holder.until)
                self.seen["at the end of the window"] += holder.due < due
            answer = Enqueued(holder.id, False, replaced)
            self.seen["in a window"] += not holder.active
            self.seen["replaced" if replaced else "kept"] += 1
        return {n: answer if n == chosen else Enqueued(answer.id, False) for n in same}

    def claim(self, draw: Draw) -> None:
        leases = claim(self.store, limit=draw(st.integers(1, 3)), lease=1e6)
        for lease in leases:
            job = self.jobs[lease.job.id]
            assert (lease.job.payload, job.due <= self.now) == (job.payload, True)
            job.phase, job.started = "running", True
        self.leases += leases

    def end(self, draw: Draw) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(draw(st.integers(0, len(self.leases) - 1)))
        job = self.jobs[lease.job.id]
        how = draw(st.sampled_from(["succeeded", "succeeded", "succeeded", "failed", "pending"]))
        outcome = {
            "succeeded": Returned("1", boundary=False),
            "failed": FailedFinally("broken"),
            "pending": Errored("busy", retryable=True),
        }[how]
        move = decided(lease, outcome)
        assert self.store.transitions.move([move]) == []
        job.phase = move.phase
        job.due = self.now + (move.delay or 0.0)

    def cancel(self, draw: Draw) -> None:
        waiting = [job for job in self.jobs.values() if job.phase == "pending"]
        if waiting:
            chosen = draw(st.sampled_from(waiting))
            assert self.store.transitions.take([taken(self.store.inspect.get(chosen.id))]) == []
            chosen.phase = "failed"

    def redrive(self, draw: Draw) -> None:
        failed = [job for job in self.jobs.values() if job.phase == "failed"]
        if not failed:
            return
        old = draw(st.sampled_from(failed))
        new = make(unique_key=old.key, redrive_of=old.id, root=old.id, payload=str(old.payload))
        active = [job.id for job in self.jobs.values() if job.key == old.key and job.active]
        (answer,) = self.store.bulk.redrive([new], again=True, reason=None)
        assert (answer.result, answer.id) == (("key_taken", active[0]) if active else ("stored", new.id))
        if not active:
            # The window passes on, unless a later job with the key has taken its row.
            later = any(job.key == old.key and job.created > old.created and job.until for job in self.jobs.values())
            until = None if later else old.until
            self.jobs[new.id] = Expected(new.id, old.key, self.now, until, old.payload, self.now, started=True)
            old.until = None
            self.seen["redriven"] += 1

    def delete(self, draw: Draw) -> None:
        """Delete an ended job, or those that retention would delete, and ended windows."""
        ended = [job.id for job in self.jobs.values() if not job.active]
        if ended and draw(st.booleans()):
            (id,) = self.store.bulk.delete([draw(st.sampled_from(ended))], by="olga", reason=None)
            del self.jobs[id]
            return
        self.store.retention.forget_windows(draw(st.integers(0, 3)))
        gone = [
            job.id
            for job in self.jobs.values()
            if job.phase == "succeeded" and not (job.until is not None and job.until > self.now)
        ]
        assert self.store.retention.prune(phase="succeeded", age=-1.0, limit=100) == len(gone)
        for id in gone:
            del self.jobs[id]

    def wait(self, draw: Draw) -> None:
        seconds = draw(st.sampled_from([1.0, 5.0, 20.0, 100.0]))
        self.place.clock.advance(seconds)
        self.now += seconds

    # ------------------------------------------------------------ what holds
    def check(self) -> None:
        found = {job.id: job for job in self.store.inspect.jobs(limit=1000)}
        assert found.keys() == self.jobs.keys()
        for id, job in self.jobs.items():
            stored = found[id]
            assert (stored.phase, stored.created_at) == (job.phase, self.at(job.created))
            if job.phase == "pending":
                assert stored.due_at == self.at(job.due)
                assert self.store.inspect.get(id).payload == job.payload


def test_unique_keys_agree_with_a_dict(places: Places) -> None:
    """After any history of enqueues, claims, ends, redrives, deletions and waits."""
    seen: Counter[str] = Counter()
    used: list[tuple[Place, Store]] = []

    @settings(
        max_examples=80,
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
        history = History(*used[-1], seen)
        for _ in range(data.draw(st.integers(5, 40))):
            history.step(data.draw)

    check()
    wanted = ("after a window", "in a window", "replaced", "kept", "at the end of the window", "redriven")
    assert [what for what in wanted if not seen[what]] == [], seen
