"""Races of operations on many jobs: real connections, real processes, real time."""

from collections import Counter
from threading import Barrier

from interlock.core.outcome import FailedFinally
from interlock.operate.verify import verify
from interlock.store.contract import Store
from tests.contract.kit import claim, decided, make, many
from tests.contract.race_processes import redrive_all
from tests.contract.test_races import processes, settle_batch
from tests.kit import Place

JOBS = 600


def failed(store: Store, count: int) -> list[str]:
    store.queue.enqueue(many(count))
    leases = claim(store, limit=count)
    assert store.transitions.move([decided(lease, FailedFinally("broken")) for lease in leases]) == []
    return [lease.job.id for lease in leases]


def check_once(place: Place, ids: list[str]) -> None:
    """Check that each job was redriven once, by one new job and one note."""
    assert place.raw("SELECT count(*), count(DISTINCT redrive_of) FROM {jobs} WHERE redrive_of IS NOT NULL") == [
        (len(ids), len(ids))
    ]
    assert place.raw("SELECT count(*), count(DISTINCT job_id) FROM {audit} WHERE event = 'redrive'") == [
        (len(ids), len(ids))
    ]


def test_6_processes_redrive_600_jobs_once_each(live: Store, place: Place) -> None:
    """In batches of random sizes, in random orders: none deadlocks, and each job is redriven by one of them."""
    ids = failed(live, JOBS)
    results = [each for answer in processes(6, redrive_all, place.url, place.schema, ids) for each in answer]
    assert Counter(result for _, result in results) == {"stored": JOBS, "redriven_before": 5 * JOBS}
    assert {id for id, result in results if result == "stored"} == set(ids)
    check_once(place, ids)
    assert verify(live).ok


def test_threads_redrive_one_job_once(live: Store, place: Place) -> None:
    """Eight operators redrive the same job at the same moment, many times."""
    stores = [live, *(place.open(real_time=True) for _ in range(3))]
    ids, together = failed(live, 40), Barrier(8)

    def redrive(number: int) -> list[str]:
        results: list[str] = []
        for id in ids:
            together.wait(60)
            (result,) = stores[number % 4].bulk.redrive([make(redrive_of=id)], again=False, reason=None)
            results.append(result.result)
        return results

    for results in zip(*settle_batch(8, redrive), strict=True):
        assert sorted(results) == ["redriven_before"] * 7 + ["stored"]
    check_once(place, ids)


def test_redrive_and_deletion_of_the_same_jobs_race(live: Store, place: Place) -> None:
    """A job is redriven and then deleted, or only deleted; either way its history is complete."""
    ids = failed(live, 200)

    def act(number: int) -> set[str]:
        done: set[str] = set()
        for start in range(0, len(ids), 10):
            batch = ids[start : start + 10]
            if number:
                done.update(live.bulk.delete(batch, by="olga", reason=None))
            else:
                results = live.bulk.redrive([make(redrive_of=id) for id in batch], again=False, reason=None)
                done.update(each.redrive_of for each in results if each.result == "stored")
        return done

    redriven, deleted = settle_batch(2, act)
    assert deleted == set(ids)
    assert {job.redrive_of for job in live.inspect.jobs(limit=1000)} == redriven
    for id in ids:
        events = [entry.event for entry in live.inspect.history(id)][3:]
        assert events == (["redrive", "delete"] if id in redriven else ["delete"])
