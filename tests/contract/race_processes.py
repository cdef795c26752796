"""Functions that race tests run in processes. Each opens the database itself, in real time, and returns its result."""

import random

from interlock.core.clock import SystemClock
from interlock.store import open_store
from tests.contract.kit import claim_rules, make


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
