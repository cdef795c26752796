"""What is measured: enqueue, and claim with finish, through a store, with the bare-SQL floor of the same database in the same run."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from interlock.ids import uuid7
from interlock.lifecycle import builtin
from interlock.move import Policy, decide
from interlock.outcome import Finished, Returned, Started
from interlock.records import KindFacts, Lease, NewJob, Way
from interlock.store import Store

STANDARD = builtin("standard")
POLICY = Policy()


@dataclass
class Figure:
    """One line of the table. `cpu` is the database's own: it repeats on a noisy machine, throughput does not."""

    store: str
    what: str
    jobs: int
    per_second: float
    cpu_us: float
    ratio: float | None = None
    """Database CPU per job over the floor's in the same run."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Bench:
    """A migrated store and a way to read the CPU that its database has used so far, in seconds."""

    def __init__(self, name: str, store: Store, cpu: Callable[[], float]) -> None:
        self.name, self.store, self.cpu = name, store, cpu
        store.migrate([STANDARD], [KindFacts("noop", "standard")])
        self.version = store.version_of(STANDARD)

    def timed(self, what: str, work: Callable[[], int]) -> Figure:
        cpu, began = self.cpu(), time.perf_counter()
        jobs = work()
        took, used = time.perf_counter() - began, self.cpu() - cpu
        return Figure(self.name, what, jobs, jobs / took, used / jobs * 1e6)

    def new(self, n: int) -> list[NewJob]:
        return [NewJob(uuid7(), "noop", "standard", self.version, STANDARD.initial, '{"n":1}', 3) for _ in range(n)]

    def ways(self, status: str) -> list[Way]:
        return [Way("noop", "standard", self.version, s, STANDARD.claim_path(s) or (), status, 30.0) for s in sorted(STANDARD.waiting)]  # type: ignore[arg-type]

    # ------------------------------------------------------------ what is measured
    def enqueue_singly(self, n: int) -> int:
        for job in self.new(n):
            self.store.enqueue([job])
        return n

    def enqueue_in_bulk(self, n: int) -> int:
        for start in range(0, n, 1000):
            self.store.enqueue(self.new(min(1000, n - start)))
        return n

    def drain(self, batch: int) -> int:
        """The fast path: a claim writes IN_PROGRESS, the report DONE."""
        done, ways = 0, self.ways("IN_PROGRESS")
        while leases := self.store.claim("bench", ways, ["default"], batch):
            moves = [decide(STANDARD, lease.job, lease, Returned("1", boundary=False), POLICY, 0.5, actor="bench") for lease in leases]
            assert not self.store.move(moves)
            done += len(leases)
        return done

    def drain_by_every_status(self, batch: int) -> int:
        """The long way: LEASED, IN_PROGRESS, COMMITTED, DONE, each written."""
        done, ways = 0, self.ways("LEASED")
        while leases := self.store.claim("bench", ways, ["default"], batch):
            for outcome in (Started(), Returned("1", boundary=True), Finished()):
                moves = [decide(STANDARD, lease.job, lease, outcome, POLICY, 0.5, actor="bench") for lease in leases]
                assert not self.store.move(moves)
                leases = [Lease(lease.job, lease.holder, move.to_status, lease.owner, lease.seconds) for lease, move in zip(leases, moves, strict=True)]
            done += len(leases)
        return done
