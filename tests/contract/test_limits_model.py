"""Limits under random histories: none is ever exceeded, and every job gets its turn."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlock.core.job_filter import JobFilter
from interlock.core.limits import Scope
from interlock.core.outcome import Errored, Lost, Returned, Snoozed
from interlock.store.contract import Store
from interlock.store.types import Lease
from tests.conftest import Places
from tests.contract.kit import CONTENTS, claim_rules, decided, limit, make, pause, resume, taken
from tests.kit import Place

KINDS = ("mail", "chore")
QUEUES = ("one", "two")
WORKERS = {"ann": QUEUES, "bob": ("one",), "carl": ("two",)}
Draw = Callable[[Any], Any]


@dataclass
class History:
    """A database, what its limits are, and which jobs run."""

    place: Place
    store: Store
    seen: Counter[str]
    running: dict[str, Lease] = field(default_factory=dict[str, Lease])
    most: dict[tuple[Scope, str], int | None] = field(default_factory=dict[tuple[Scope, str], int | None])
    paused: set[tuple[Scope, str]] = field(default_factory=set[tuple[Scope, str]])
    rates: dict[tuple[Scope, str], tuple[float, float]] = field(default_factory=dict[tuple[Scope, str], Any])
    """Tokens per second, and the burst."""
    starts: dict[tuple[str, ...], list[float]] = field(default_factory=dict[tuple[str, ...], list[float]])
    now: float = 0.0

    def begin(self) -> None:
        for kind in KINDS:
            self.limit("key", kind, 1, None)

    # ------------------------------------------------------------ steps
    def step(self, draw: Draw) -> None:
        getattr(self, draw(st.sampled_from(["enqueue", "claim", "claim", "end", "end", "change", "wait", "cancel"])))(
            draw
        )

    def enqueue(self, draw: Draw) -> None:
        jobs = [
            make(
                draw(st.sampled_from(KINDS)),
                queue=draw(st.sampled_from(QUEUES)),
                concurrency_key=draw(st.sampled_from([None, "a", "b", "c"])),
                priority=draw(st.sampled_from([0, 0, 1, 5])),
                delay=draw(st.sampled_from([0.0, 0.0, 7.0])),
            )
            for _ in range(draw(st.integers(1, 6)))
        ]
        self.store.queue.enqueue(jobs)

    def claim(self, draw: Draw) -> None:
        by = draw(st.sampled_from(sorted(WORKERS)))
        self.claim_by(by, draw(st.integers(1, 4)))

    def claim_by(self, by: str, most: int) -> list[Lease]:
        rules, queues = claim_rules(*KINDS), WORKERS[by]
        ready = self.store.queue.due_in(rules, queues) == 0.0
        leases = self.store.queue.claim(by, rules, queues, most)
        assert ready or not leases
        for lease in leases:
            self.running[lease.job.id] = lease
            self._check_start(lease)
        self.seen["starts"] += len(leases)
        for name, running in Counter(name for lease in self.running.values() for name in names(lease)).items():
            allowed = self.most.get((name[0], name[1]))  # type: ignore[arg-type]
            started = any(name in names(lease) for lease in leases)
            assert allowed is None or running <= allowed or not started, name
        return leases

    def _check_start(self, lease: Lease) -> None:
        for name in names(lease):
            scope: Any = name[0]
            assert (scope, name[1]) not in self.paused
            if (rate := self.rates.get((scope, name[1]))) is not None:
                times = self.starts.setdefault(name, [])
                times.append(self.now)
                per_second, burst = rate
                for n, since in enumerate(times):
                    assert len(times) - n <= burst + per_second * (self.now - since) + 1e-6, name

    def end(self, draw: Draw) -> None:
        if not self.running:
            return
        lease = self.running[draw(st.sampled_from(sorted(self.running)))]
        outcome = draw(
            st.sampled_from(
                [Returned('"v"', boundary=False)] * 3 + [Errored("x", retryable=True), Snoozed(5.0, "later")]
            )
        )
        self.settle(lease, outcome)

    def settle(self, lease: Lease, outcome: Any) -> None:
        assert self.store.transitions.move([decided(lease, outcome)]) == []
        del self.running[lease.job.id]

    def change(self, draw: Draw) -> None:
        scope: Scope = draw(st.sampled_from(["queue", "kind", "key", "key"]))
        name = draw(st.sampled_from(QUEUES if scope == "queue" else KINDS))
        what = draw(st.sampled_from(["running", "rate", "pause"]))
        self.seen[what] += 1
        if what == "running":
            self.limit(scope, name, draw(st.sampled_from([0, 1, 2, 3, None])), self.rates.get((scope, name)))
        elif what == "rate":
            rate = draw(st.sampled_from([None, (1.0, 1.0), (0.5, 2.0), (2.0, 3.0)]))
            self.limit(scope, name, self.most.get((scope, name)), rate)
        elif scope != "key":
            (resume if (scope, name) in self.paused else pause)(self.store, scope, name)
            self.paused ^= {(scope, name)}

    def limit(self, scope: Scope, name: str, most: int | None, rate: tuple[float, float] | None) -> None:
        given = {"rate": None} if rate is None else {"rate": f"{rate[0]}/s", "burst": int(rate[1])}
        limit(self.store, scope, name, max_running=most, **given)
        self.most[scope, name] = most
        if rate != self.rates.pop((scope, name), None):
            self.starts = {at: times for at, times in self.starts.items() if at[:2] != (scope, name)}
        if rate is not None:
            self.rates[scope, name] = rate

    def wait(self, draw: Draw) -> None:
        self.advance(draw(st.sampled_from([0.3, 1.0, 8.0, 31.0])))

    def advance(self, seconds: float) -> None:
        self.place.clock.advance(seconds)
        self.now += seconds
        for lease in self.store.leases.adopt("maintenance", KINDS, 30.0, 100):
            self.seen["lost"] += 1
            self.settle(lease, Lost())

    def cancel(self, draw: Draw) -> None:
        waiting = self.store.inspect.jobs(matching=JobFilter(phase="pending", kind="mail"))
        if waiting:
            assert self.store.transitions.take([taken(draw(st.sampled_from(waiting)))]) == []

    # ------------------------------------------------------------ the end
    def drain(self) -> None:
        """Let every limit leave room; then every job runs, and the workers are told when to claim."""
        for scope, name in sorted(self.paused):
            resume(self.store, scope, name)
        self.paused.clear()
        for (scope, name), most in sorted(self.most.items()):
            if most == 0:
                self.limit(scope, name, 1, self.rates.get((scope, name)))
        for _ in range(2000):
            for lease in list(self.running.values()):
                self.settle(lease, Returned('"v"', boundary=False))
            for by in WORKERS:
                self.claim_by(by, 3)
            if not self.running:
                dues = [self.store.queue.due_in(claim_rules(*KINDS), queues) for queues in WORKERS.values()]
                known = [due for due in dues if due is not None]
                if not known:
                    break
                self.advance(min(known))
        assert {job.phase for job in self.store.inspect.jobs(limit=1000)} <= {"succeeded", "failed"}


def names(lease: Lease) -> list[tuple[str, ...]]:
    """Return the limits that count a job; of its key, with the key."""
    job = lease.job
    key = [] if job.concurrency_key is None else [("key", job.kind, job.concurrency_key)]
    return [("queue", job.queue), ("kind", job.kind), *key]


def test_no_limit_is_exceeded_and_every_job_runs(places: Places) -> None:
    """After any history of claims, ends, crashes, pauses and changes, the jobs that wait run to the last one."""
    seen: Counter[str] = Counter()
    used: list[tuple[Place, Store]] = []

    @settings(
        max_examples=60,
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
        history.begin()
        for _ in range(data.draw(st.integers(5, 40))):
            history.step(data.draw)
        history.drain()

    check()
    assert [what for what in ("starts", "running", "rate", "pause", "lost") if not seen[what]] == [], seen
