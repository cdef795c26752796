"""Functions that race tests run in processes. Each opens the database itself, in real time, and returns its result."""

import random

from interlock.core.clock import SystemClock
from interlock.store import open_store
from tests.contract.kit import claim_rules


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
