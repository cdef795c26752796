"""Measures a store: enqueue, and claim with finish. The floor is bare SQL on the same database in the same run."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from interlock.core.decide import decide
from interlock.core.ids import uuid7
from interlock.core.lifecycle import builtin
from interlock.core.outcome import Finished, Returned, Started
from interlock.core.transition import Policy
from interlock.store.contract import Store
from interlock.store.types import ClaimRule, KindFacts, Lease, NewJob

STANDARD = builtin("standard")
POLICY = Policy()


@dataclass
class Figure:
    """One line of the table. `cpu_us` is the CPU time of the database, which varies less than throughput."""

    store: str
    what: str
    jobs: int
    per_second: float
    cpu_us: float
    ratio: float | None = None
    """Database CPU per job, divided by that of the floor in the same run."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Bench:
    """A migrated store and a way to read the CPU that its database has used so far, in seconds."""

    def __init__(self, name: str, store: Store, cpu: Callable[[], float]) -> None:
        self.name, self.store, self.cpu = name, store, cpu
        store.registry.migrate([STANDARD], [KindFacts("noop", "standard")])
        self.version = store.registry.version_of(STANDARD)

    def timed(self, what: str, work: Callable[[], int]) -> Figure:
        cpu, began = self.cpu(), time.perf_counter()
        jobs = work()
        took, used = time.perf_counter() - began, self.cpu() - cpu
        return Figure(self.name, what, jobs, jobs / took, used / jobs * 1e6)

    def new(self, n: int) -> list[NewJob]:
        return [NewJob(uuid7(), "noop", "standard", self.version, STANDARD.initial, '{"n":1}', 3) for _ in range(n)]

    def claim_rules(self, status: str) -> list[ClaimRule]:
        return [
            ClaimRule("noop", "standard", self.version, s, STANDARD.claim_path(s) or (), status, 30.0)
            for s in sorted(STANDARD.waiting)
        ]  # type: ignore[arg-type]

    # ------------------------------------------------------------ measured work
    def enqueue_singly(self, n: int) -> int:
        for job in self.new(n):
            self.store.queue.enqueue([job])
        return n

    def enqueue_in_bulk(self, n: int) -> int:
        for start in range(0, n, 1000):
            self.store.queue.enqueue(self.new(min(1000, n - start)))
        return n

    def drain(self, batch: int) -> int:
        """Run all jobs by the fast path: the claim writes IN_PROGRESS, and the move writes DONE."""
        done, claim_rules = 0, self.claim_rules("IN_PROGRESS")
        while leases := self.store.queue.claim("bench", claim_rules, ["default"], batch):
            moves = [
                decide(STANDARD, lease.job, lease, Returned("1", boundary=False), POLICY, 0.5, actor="bench")
                for lease in leases
            ]
            assert not self.store.transitions.move(moves)
            done += len(leases)
        return done

    def drain_by_every_status(self, batch: int) -> int:
        """Run all jobs by the slow path, which writes each of LEASED, IN_PROGRESS, COMMITTED and DONE."""
        done, claim_rules = 0, self.claim_rules("LEASED")
        while leases := self.store.queue.claim("bench", claim_rules, ["default"], batch):
            for outcome in (Started(), Returned("1", boundary=True), Finished()):
                moves = [decide(STANDARD, lease.job, lease, outcome, POLICY, 0.5, actor="bench") for lease in leases]
                assert not self.store.transitions.move(moves)
                leases = [
                    Lease(lease.job, lease.holder, move.to_status, lease.owner, lease.seconds)
                    for lease, move in zip(leases, moves, strict=True)
                ]
            done += len(leases)
        return done
