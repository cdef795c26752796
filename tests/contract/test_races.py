"""Races: real connections, real threads, real processes, real time."""

import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

from interlock.core.job import Job
from interlock.core.outcome import FailedFinally, Returned
from interlock.operate.verify import verify
from interlock.store.contract import Store
from interlock.store.types import NewJob
from tests.contract.kit import check, claim, claimed, decided, limit, make, many, stored, taken
from tests.contract.race_processes import adopt_all, claim_all
from tests.kit import Place

THREADS = 64
KEYS = 1000
BITE = 50


failed = Event()
"""Set when one thread of a race fails, so that the others stop."""


def settle_batch(n: int, work: Callable[[int], Any]) -> list[Any]:
    """Run `work(0) ... work(n - 1)` in n threads that start together; raise the first exception."""
    barrier = Barrier(n)
    failed.clear()

    def run(number: int) -> Any:
        barrier.wait()
        try:
            return work(number)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(run, range(n)))


def processes(n: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    with ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [task.result(timeout=120) for task in [pool.submit(work, *given, f"p{number}") for number in range(n)]]


def bites(keys: Sequence[str], seed: int) -> Iterator[list[str]]:
    """Yield the keys in random order, in lists for one enqueue each."""
    shuffled = random.Random(seed).sample(list(keys), len(keys))
    for start in range(0, len(shuffled), BITE):
        if failed.is_set():
            return
        yield shuffled[start : start + BITE]


# ---------------------------------------------------------------- keys
def test_64_threads_with_1000_idempotency_keys_make_1000_jobs(live: Store, place: Place) -> None:
    """FM_001: each caller gets an answer for each key, the same for all, and none gets an error."""
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    keys = [f"key {n}" for n in range(KEYS)]

    def enqueue(number: int) -> dict[str, tuple[str, bool]]:
        answers: dict[str, tuple[str, bool]] = {}
        for bite in bites(keys, number):
            found = stores[number % 4].queue.enqueue(
                [make(idempotency_key=key, payload=f'{{"key":"{key}"}}') for key in bite]
            )
            answers |= {key: (each.id, each.created) for key, each in zip(bite, found, strict=True)}
        return answers

    answers = settle_batch(THREADS, enqueue)
    assert live.inspect.counts() == {"standard": {"PENDING": KEYS}}
    ids = {key: {each[key][0] for each in answers} for key in keys}
    assert all(len(found) == 1 for found in ids.values())
    assert sum(created for each in answers for _, created in each.values()) == KEYS


def test_unique_keys_race_jobs_that_are_claimed_and_finished(live: Store, place: Place) -> None:
    """However fast the jobs end, every caller gets an answer, no key has two active jobs, and every stored job was
    returned to a caller.
    """
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    keys = [f"key {n}" for n in range(KEYS)]
    over = Event()

    def work(number: int) -> int:
        finished = 0
        while not over.is_set():
            leases = claim(stores[number % 4], limit=50, by=f"w{number}")
            moves = [
                decided(lease, Returned("1", boundary=False) if n % 2 else FailedFinally("x"))
                for n, lease in enumerate(leases)
            ]
            assert stores[number % 4].transitions.move(moves) == []
            finished += len(moves)
            over.wait(0.005 if leases else 0.02)
        return finished

    def enqueue(number: int) -> list[tuple[str, bool]]:
        store = stores[number % 4]
        return [
            (each.id, each.created)
            for bite in bites(keys, number)
            for each in store.queue.enqueue([make(unique_key=key) for key in bite])
        ]

    with ThreadPoolExecutor(4) as workers:
        working = [workers.submit(work, number) for number in range(4)]
        try:
            answers = settle_batch(THREADS, enqueue)
        finally:
            over.set()
        finished = sum(task.result() for task in working)
    created = {id for answer in answers for id, new in answer if new}
    assert {id for answer in answers for id, _ in answer} == created
    assert sum(live.inspect.counts()["standard"].values()) == len(created) >= KEYS
    assert finished > 0
    active = "SELECT 1 FROM {jobs} WHERE phase IN ('pending', 'running') GROUP BY unique_key HAVING count(*) > 1"
    assert place.raw(active) == []


def test_key_whose_job_keeps_ending_fails_no_caller(live: Store, place: Place) -> None:
    """The worst case of protocol 21: all callers use one unique key, whose job ends as soon as it is stored."""
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    over = Event()

    def work(number: int) -> None:
        while not over.is_set():
            leases = claim(stores[number], limit=5, by=f"w{number}")
            assert (
                stores[number].transitions.move([decided(lease, Returned("1", boundary=False)) for lease in leases])
                == []
            )

    def enqueue(number: int) -> list[str]:
        return [stores[number % 4].queue.enqueue([make(unique_key="u")])[0].id for _ in range(40)]

    with ThreadPoolExecutor(4) as workers:
        working = [workers.submit(work, number) for number in range(4)]
        try:
            answers = settle_batch(16, enqueue)
        finally:
            over.set()
        for task in working:
            task.result()
    assert {id for answer in answers for id in answer} == {job.id for job in live.inspect.jobs(limit=10_000)}


# ---------------------------------------------------------------- claims
def test_8_processes_claim_10000_jobs_once_each(live: Store, place: Place) -> None:
    """FM_004: each job is claimed exactly once, and no claim exceeds its limit."""
    live.queue.enqueue(many(10_000))
    answers = processes(8, claim_all, place.url, place.schema)
    assert all(len(ids) <= limit for answer in answers for limit, ids in answer)
    claims = Counter(id for answer in answers for _, ids in answer for id in ids)
    assert len(claims) == 10_000
    assert set(claims.values()) == {1}
    assert place.raw("SELECT count(*), min(attempt), max(attempt), max(holder) FROM {executions}") == [
        (10_000, 1, 1, 1)
    ]
    assert live.inspect.counts() == {"standard": {"RUNNING": 10_000}}


def test_8_processes_adopt_2000_executions_once_each(live: Store, place: Place) -> None:
    """Concurrent maintenance sweeps adopt each expired lease once."""
    live.queue.enqueue(many(2000))
    assert len(claim(live, limit=2000, by="dead", lease=0.0)) == 2000
    adoptions = Counter(id for answer in processes(8, adopt_all, place.url, place.schema) for id in answer)
    assert len(adoptions) == 2000
    assert set(adoptions.values()) == {1}
    assert place.raw("SELECT min(holder), max(holder) FROM {executions}") == [(2, 2)]


def test_limit_applies_to_concurrent_claims(live: Store, place: Place) -> None:
    """Sixteen workers claim jobs of a kind that may run ten at once: together they get ten."""
    limit(live, "kind", "mail", max_running=10)
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    live.queue.enqueue(many(200))
    got = settle_batch(16, lambda number: [len(claim(stores[number % 4], limit=7, by=f"w{number}")) for _ in range(3)])
    assert sum(map(sum, got)) == 10


# ---------------------------------------------------------------- one job, many processes
def test_only_the_present_holder_settles_a_job(live: Store, place: Place) -> None:
    """FM_023: present and former holders report at once; only the present one is accepted, and the job ends once."""
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    for _ in range(10):
        lease = claimed(live, lease=0.0)
        holders = [lease]
        while len(holders) < 8:
            holders += live.leases.adopt("k", ["mail"], 0.0, 1)
        refusals = settle_batch(
            8,
            lambda number: stores[number % 4].transitions.move(
                [decided(holders[number], Returned(f"{number}", boundary=False))]  # noqa: B023 - called in this round
            ),
        )
        assert [bool(refused) for refused in refusals] == [True] * 7 + [False]
        assert live.inspect.get(lease.job.id).result == 7
        check(live, lease.job.id)


def test_cancel_expire_and_claim_race_and_one_wins(live: Store, place: Place) -> None:
    """A waiting job that is claimed, cancelled and expired at the same time takes exactly one of the three transitions."""
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    ways_taken: Counter[str] = Counter()
    for _ in range(30):
        job: Job = stored(live)

        def go(number: int) -> bool:
            if number == 0:
                return bool(claim(stores[0], limit=1))
            return not stores[number].transitions.take([taken(job, "cancel" if number == 1 else "expire")])  # noqa: B023 - joined in the loop

        assert sum(settle_batch(3, go)) == 1
        ways_taken[live.inspect.get(job.id).state] += 1
        check(live, job.id)
    assert set(ways_taken) <= {"RUNNING", "CANCELLED", "EXPIRED"}


def test_enqueues_in_callers_transactions_race_without_error(live: Store, place: Place) -> None:
    """Callers that keep their transactions open for a while still get one job per key."""
    stores = [live, *(place.open(real_time=True) for _ in range(3))]

    def enqueue(number: int) -> str:
        store, answers = stores[number % 4], []
        for _ in range(5):
            with store.transaction() as tx:
                jobs: list[NewJob] = [make(idempotency_key="k")]
                answers += store.queue.enqueue(jobs, conn=tx)
        return {each.id for each in answers}.pop()

    assert len(set(settle_batch(12, enqueue))) == 1
    assert verify(live).ok
