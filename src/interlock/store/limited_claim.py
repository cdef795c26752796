"""A claim of jobs with limits, for both stores.

The claim holds the lock of its limits while it runs. It reads what is left of each limit, finds the due jobs that fit,
chooses among them in the order of any claim, and leases them.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ..core.limits import Budget, Candidate, Rate, Scope, choose
from .types import ClaimRule, Lease

SPARE = 10
"""How many more concurrency keys a claim looks at than it can lease jobs."""
MOST_CHECKS = 2000
"""The most concurrency keys that one statement looks at."""
ROUNDS = 6
"""How often one claim looks at further keys, if those before had no job to start."""
AGAIN_AFTER = 1.0
"""Seconds after which a claim looks again for a job that it could not lease, because it is locked or a suspect."""
_log = logging.getLogger("interlock")


class LimitRow(NamedTuple):
    """A limit, and what is left of it."""

    scope: Scope
    name: str
    paused: bool
    max_running: int | None
    running: int
    rate_count: float | None
    rate_seconds: float | None
    burst: float | None
    tokens: float | None
    now: Any
    """The time, as the store writes it, at which the tokens were read."""
    ahead: bool = False
    """Whether the clock was set back since the tokens were stored. They grow again once they are stored anew."""

    @property
    def budget(self) -> Budget:
        if self.paused:
            return Budget(0, math.inf)
        running = math.inf if self.max_running is None else self.max_running - self.running
        return Budget(running, math.inf if self.tokens is None else self.tokens)

    @property
    def rate(self) -> Rate | None:
        if self.rate_count is None or self.rate_seconds is None:
            return None
        return Rate(self.rate_count, self.rate_seconds)


Limits = dict[tuple[str, str], LimitRow]


class KeyCheck(NamedTuple):
    """A concurrency key to look at. An empty queue means all queues; without a time, it is looked at after `wait`."""

    kind: str
    queue: str
    key: str
    check_at: Any
    priority: int
    wait: float = 0.0


class KeyJob(NamedTuple):
    """What is left of a concurrency key's limit, and a waiting job, if there is one that may start."""

    n: int
    """The position of the key in the statement's list, from 1."""
    running: int
    tokens: float | None
    now: Any
    id: str | None
    queue: str
    priority: int
    due_at: Any
    suspect: bool
    fits: bool
    """Whether this worker may lease the job: it knows its state, and has room for it if it is a suspect."""
    ahead: bool = False
    """Whether the clock was set back since the tokens were stored."""


@dataclass(slots=True)
class KeyState:
    """A concurrency key that a claim looks at."""

    limit: LimitRow
    kind: str
    key: str
    queue: str
    """The only queue to look at, or an empty text for all."""
    checks: list[KeyCheck]
    budget: Budget = field(default_factory=lambda: Budget(0, 0))
    now: Any = None
    ahead: bool = False
    jobs: list[Candidate] = field(default_factory=list[Candidate])
    foreign: set[str] = field(default_factory=set[str])
    """Queues with waiting jobs that this worker does not serve."""
    postponed: bool = False
    """Whether a job waits that this worker cannot lease now."""

    @property
    def name(self) -> tuple[str, str]:
        return "key", f"{self.kind} {self.key}"


class LimitedQueries(Protocol):
    """The statements of a limited claim, in one transaction."""

    def read_limits(self) -> list[LimitRow]:
        """Lock the limits of the claim's queues and kinds, then read them."""
        ...

    def take_checks(self, pairs: Sequence[tuple[str, str]], most: int) -> list[KeyCheck]:
        """Delete up to `most` due checks of these pairs of kind and queue, and return them."""
        ...

    def find_key_jobs(self, keys: Sequence[KeyState], limit: int, *, fitting: bool) -> list[KeyJob]:
        """Return at least one row for each key: its first jobs, or the first jobs that the worker may lease."""
        ...

    def pick(self, pairs: Mapping[tuple[str, str], int]) -> list[Candidate]:
        """Return due jobs without concurrency keys, at most so many of each queue, kind and priority."""
        ...

    def lease(self, chosen: Sequence[Candidate], limited: Collection[str]) -> list[Lease]:
        """Lease the chosen jobs that still wait."""
        ...

    def spend(self, limits: Sequence[tuple[LimitRow, int]], keys: Sequence[tuple[KeyState, int]]) -> None:
        """Take so many tokens of each rate, at the time at which the jobs were leased."""
        ...

    def add_checks(self, checks: Sequence[KeyCheck]) -> None: ...


@dataclass(frozen=True, slots=True)
class LimitedClaim:
    """One claim: which jobs to lease, and how many."""

    claim_rules: Sequence[ClaimRule]
    queues: Sequence[str]
    limit: int
    suspects: int
    only: Collection[str] | None = None
    """If given, jobs to choose from."""
    checks: int = 0
    """The most concurrency keys to look at; zero for a few more than the jobs that may start."""

    def after(self, leases: Sequence[Lease], rounds: int) -> "LimitedClaim":
        """Return what is left of the claim after these leases.

        Many checks may be of one full key, so each round looks at four times as many.
        """
        suspects = self.suspects - sum(lease.job.lease_losses > 0 for lease in leases)
        limit = self.limit - len(leases)
        return replace(self, limit=limit, suspects=max(suspects, 0), checks=(limit + SPARE) * 4**rounds)

    def limited_to(self, ids: Collection[str]) -> "LimitedClaim":
        """Return the claim of these jobs only."""
        return replace(self, only=frozenset(ids))

    def run_rounds(self, run_one: Callable[["LimitedClaim"], tuple[list[Lease], bool]]) -> list[Lease]:
        """Claim until the claim is full or no concurrency key is due. Each round is a transaction of its own.

        If a round fails, the jobs of earlier rounds are leased already: they are returned, and the error appears at the
        next claim, if it lasts.
        """
        leases: list[Lease] = []
        for round in range(ROUNDS):
            try:
                found, more = run_one(self.after(leases, round))
            except Exception as error:
                if not leases:
                    raise
                _log.warning("A claim ended after %d jobs: %s. The next claim tries again.", len(leases), error)
                break
            leases += found
            if not more or len(leases) >= self.limit:
                break
        return leases

    def run(self, db: LimitedQueries) -> tuple[list[Lease], bool]:
        """Carry out the claim. Returns the leases, and whether more keys may be due."""
        rows: Limits = {(row.scope, row.name): row for row in db.read_limits()}
        free: dict[tuple[str, str], float] = {name: row.budget.free for name, row in rows.items() if row.scope != "key"}
        kinds = sorted({rule.kind for rule in self.claim_rules})
        pairs = {
            (queue, kind): int(min(room, self.limit))
            for queue in sorted(set(self.queues))
            for kind in kinds
            if (room := min(free.get(("queue", queue), math.inf), free.get(("kind", kind), math.inf))) >= 1
        }
        keys, more = self._find_keys(db, rows, pairs)
        for key in keys:
            free[key.name] = key.budget.free
        candidates = [*db.pick(pairs), *(job for key in keys for job in key.jobs)]
        if self.only is not None:
            candidates = [each for each in candidates if each.id in self.only]
        free["suspects", ""] = self.suspects
        chosen, left = choose(candidates, free, self.limit)
        leases = self._lease(db, rows, chosen)
        leased = {lease.job.id for lease in leases}
        self._spend(db, rows, keys, leases)
        taken: dict[tuple[str, str | None], set[str]] = {}
        for each in chosen:
            taken.setdefault((each.kind, each.key), set()).add(each.id)
        no_suspects = left["suspects", ""] < 1
        checks = [
            check
            for key in keys
            for check in _next_checks(key, taken.get((key.kind, key.key), set()), leased, no_suspects=no_suspects)
        ]
        db.add_checks(checks)
        return leases, more

    def candidates(self, db: LimitedQueries) -> list[str]:
        """Return the ids of the jobs that a claim would choose from, without leasing any. Roll back afterwards."""
        everything = {(queue, rule.kind): self.limit for queue in self.queues for rule in self.claim_rules}
        rows: Limits = {(row.scope, row.name): row for row in db.read_limits()}
        keys, _ = self._find_keys(db, rows, everything)
        return [each.id for each in (*db.pick(everything), *(job for key in keys for job in key.jobs))]

    # ------------------------------------------------------------ concurrency keys
    def _find_keys(
        self, db: LimitedQueries, rows: Limits, pairs: Collection[tuple[str, str]]
    ) -> tuple[list[KeyState], bool]:
        """Find the concurrency keys to look at, and their due jobs."""
        open_queues: dict[str, set[str]] = {}
        for queue, kind in pairs:
            if ("key", kind) in rows:
                open_queues.setdefault(kind, {""}).add(queue)
        asked = [(kind, queue) for kind, queues in sorted(open_queues.items()) for queue in sorted(queues)]
        most = min(self.checks or self.limit + SPARE, MOST_CHECKS)
        checks = db.take_checks(asked, most) if asked else []
        keys: dict[tuple[str, str], KeyState] = {}
        for check in checks:
            known = keys.get((check.kind, check.key))
            if known is None:
                limit = rows["key", check.kind]
                keys[check.kind, check.key] = KeyState(limit, check.kind, check.key, check.queue, [check])
            else:
                known.queue = known.queue if known.queue == check.queue else ""
                known.checks.append(check)
        self._read_key_jobs(db, list(keys.values()), open_queues)
        return list(keys.values()), len(checks) >= most

    def _read_key_jobs(self, db: LimitedQueries, keys: Sequence[KeyState], open_queues: dict[str, set[str]]) -> None:
        self._take_key_jobs(keys, db.find_key_jobs(keys, self.limit, fitting=False) if keys else (), open_queues)
        # Jobs that this worker cannot lease must not hide those behind them.
        if postponed := [key for key in keys if key.postponed]:
            for key in postponed:
                key.jobs.clear()
            self._take_key_jobs(postponed, db.find_key_jobs(postponed, self.limit, fitting=True), open_queues)

    @staticmethod
    def _take_key_jobs(keys: Sequence[KeyState], rows: Iterable[KeyJob], open_queues: dict[str, set[str]]) -> None:
        for row in rows:
            key = keys[row.n - 1]
            most = key.limit.max_running
            running = math.inf if most is None else most - row.running
            key.budget = Budget(running, math.inf if row.tokens is None else row.tokens)
            key.now, key.ahead = row.now, row.ahead
            if row.id is None:
                continue
            if row.queue not in open_queues[key.kind]:
                key.foreign.add(row.queue)
            elif row.fits:
                key.jobs.append(Candidate(row.id, key.kind, row.queue, row.priority, row.due_at, row.suspect, key.key))
            else:
                key.postponed = True

    # ------------------------------------------------------------ writing
    def _lease(self, db: LimitedQueries, rows: Limits, chosen: Sequence[Candidate]) -> list[Lease]:
        if not chosen:
            return []
        limited = {
            each.id
            for each in chosen
            if each.key is not None or ("queue", each.queue) in rows or ("kind", each.kind) in rows
        }
        places = {each.id: place for place, each in enumerate(chosen)}
        return sorted(db.lease(chosen, limited), key=lambda lease: places[lease.job.id])

    @staticmethod
    def _spend(
        db: LimitedQueries,
        rows: Limits,
        keys: Sequence[KeyState],
        leases: Sequence[Lease],
    ) -> None:
        used: dict[tuple[str, str], int] = {}
        for lease in leases:
            job = lease.job
            for name in (("queue", job.queue), ("kind", job.kind), ("key", f"{job.kind} {job.concurrency_key}")):
                used[name] = used.get(name, 0) + 1
        limits = [
            (row, used.get((row.scope, row.name), 0))
            for row in rows.values()
            if row.tokens is not None and row.scope != "key" and (row.ahead or (row.scope, row.name) in used)
        ]
        spent = [(key, used.get(key.name, 0)) for key in keys if key.limit.rate and (key.ahead or key.name in used)]
        if limits or spent:
            db.spend(limits, spent)


def _next_checks(key: KeyState, taken: set[str], leased: set[str], *, no_suspects: bool) -> Iterator[KeyCheck]:
    """Yield the checks that are still needed for a key.

    If the key is full, the end of one of its running jobs adds a check. If no job waits, the next enqueue adds one.
    """
    rest = [job for job in key.jobs if job.id not in taken]
    running, tokens = key.budget.running - len(taken), key.budget.tokens - len(taken)
    if running < 1 and leased.issuperset(taken):
        return
    first = max((job.priority for job in rest), default=max(check.priority for check in key.checks))
    rate, again = key.limit.rate, KeyCheck(key.kind, "", key.key, None, first, AGAIN_AFTER)
    if running >= 1 and tokens < 1 and rate is not None:
        if rest or key.postponed or key.foreign or key.budget.free < 1:
            yield again._replace(wait=rate.wait(tokens))
    elif not leased.issuperset(taken):
        yield again
    elif running >= 1:
        yield from (again._replace(queue=queue, wait=0.0) for queue in sorted(key.foreign))
        if key.postponed or (rest and no_suspects and all(job.suspect for job in rest)):
            yield again
        elif rest:
            yield again._replace(queue=key.queue, check_at=min(check.check_at for check in key.checks))
