"""Functions that race tests run in processes. Each opens the database itself, in real time, and returns its result."""

import random
import time

from interlock.core.clock import SystemClock
from interlock.core.outcome import Returned
from interlock.store import open_store
from interlock.store.types import NewJob
from tests.contract.kit import claim_rules, decided, make

WINDOW = 0.2
"""Seconds for which the races keep unique keys."""


def claim_all(url: str, schema: str, name: str) -> list[tuple[int, list[str]]]:
    """Claim batches of random size until no job is left; return each batch's limit and its jobs."""
    store = open_store(url, schema, SystemClock())
    draw, bites, empty = random.Random(name), [], 0
    while empty < 3:
        limit = draw.randint(1, 100)
        leases = store.queue.claim(name, claim_rules("mail", lease=600.0), ["default"], limit)
        bites.append((limit, [lease.job.id for lease in leases]))
        empty = 0 if leases else empty + 1
    store.close()
    return bites


def adopt_all(url: str, schema: str, name: str) -> list[str]:
    """Adopt expired leases until none is left."""
    store = open_store(url, schema, SystemClock())
    got: list[str] = []
    while leases := store.leases.adopt(name, ["mail"], 600.0, 37):
        got += [lease.job.id for lease in leases]
    store.close()
    return got


def redrive_all(url: str, schema: str, ids: list[str], name: str) -> list[tuple[str, str]]:
    """Redrive all of these failed jobs in random batches; return each one with the result."""
    store = open_store(url, schema, SystemClock())
    draw, got = random.Random(name), list[tuple[str, str]]()
    left = draw.sample(ids, len(ids))
    while left:
        size = draw.randint(1, 40)
        batch, left = left[:size], left[size:]
        redrives = [make(redrive_of=id, root=id, inherits=True) for id in batch]
        got += [(each.redrive_of, each.result) for each in store.bulk.redrive(redrives, again=False, reason=name)]
    store.close()
    return got


def enqueue_windows(url: str, schema: str, keys: list[str], seconds: float, name: str) -> int:
    """Enqueue these keys for some seconds, one and many at once, with and without a window, and finish what waits.

    Return how many jobs this process created.
    """
    store = open_store(url, schema, SystemClock())
    draw, created, end = random.Random(name), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        chosen = draw.sample(keys, draw.choice([1, 1, len(keys)]))
        window = draw.choice([WINDOW, WINDOW, WINDOW, None])
        # The priority tells which jobs have a window.
        jobs = [make(unique_key=key, unique_for=window, priority=int(window is not None)) for key in chosen]
        created += sum(each.created for each in store.queue.enqueue(jobs))
        leases = store.queue.claim(name, claim_rules("mail", lease=600.0), ["default"], draw.choice([0, 1, 20]))
        store.transitions.move([decided(lease, Returned("1", boundary=False)) for lease in leases])
        if draw.random() < 0.02:
            store.retention.forget_windows(100)
    store.close()
    return created


def replace_payloads(url: str, schema: str, key: str, seconds: float, name: str) -> list[tuple[str, str, str]]:
    """Enqueue a key for some seconds, each time with a payload that replaces the last one.

    Return each payload with its job, and whether the job was created with it or took it.
    """
    store = open_store(url, schema, SystemClock())
    got, end = list[tuple[str, str, str]](), time.monotonic() + seconds
    while time.monotonic() < end:
        payload, how = f"{name} {len(got)}", "replace" if len(got) % 3 else "debounce"
        new: NewJob = make(unique_key=key, on_conflict=how, payload=f'"{payload}"', actor=name)
        (answer,) = store.queue.enqueue([new])
        got.append((payload, answer.id, "created" if answer.created else "replaced" * answer.replaced))
    store.close()
    return got


def run_jobs(url: str, schema: str, seconds: float, name: str) -> list[tuple[str, str]]:
    """Claim and finish jobs one by one for some seconds; return each one with the payload that the claim gave."""
    store = open_store(url, schema, SystemClock())
    ran, end = list[tuple[str, str]](), time.monotonic() + seconds
    while time.monotonic() < end:
        for lease in store.queue.claim(name, claim_rules("mail", lease=600.0), ["default"], 1):
            ran.append((lease.job.id, str(lease.job.payload)))
            store.transitions.move([decided(lease, Returned("1", boundary=False))])
    store.close()
    return ran
