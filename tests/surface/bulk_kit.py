"""Shared by the tests of operations on many jobs: jobs in several states, and what became of them."""

from collections.abc import Callable
from typing import Any

import pytest

from interlock import App, BulkResult
from interlock.core.outcome import FailedFinally, Outcome, Returned
from interlock.operate import bulk, bulk_actions
from tests.surface.test_app import Shop

Verb = Callable[..., BulkResult]


def verbs(app: App[Any]) -> dict[str, Verb]:
    return {
        "cancel": app.bulk.cancel,
        "reject": app.bulk.reject,
        "redrive": app.bulk.redrive,
        "delete": app.bulk.delete,
    }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three jobs."""
    monkeypatch.setattr(bulk, "BATCH", 3)
    monkeypatch.setattr(bulk_actions, "PAYLOADS", 2)


def greetings(shop: Shop, count: int, **options: Any) -> list[str]:
    kind = shop.greet.using(**options) if options else shop.greet
    return [each.id for each in shop.app.enqueue_many([kind.request(f"guest {n}") for n in range(count)])]


def end(shop: Shop, count: int, outcome: Outcome) -> list[str]:
    """End as many greetings in this way."""
    ids: list[str] = []
    for _ in range(count):
        greetings(shop, 1)
        lease = shop.claim(shop.greet)
        shop.settle(shop.greet, lease, outcome)
        ids.append(lease.job.id)
    return ids


def failed(shop: Shop, count: int, error: str = "broken") -> list[str]:
    return end(shop, count, FailedFinally(error))


def succeeded(shop: Shop, count: int) -> list[str]:
    return end(shop, count, Returned("1", boundary=False))


def states(shop: Shop, ids: list[str]) -> set[str]:
    return {shop.app.get(id).state for id in ids}


def redrives(shop: Shop) -> list[str]:
    """Return the ids of the redriven jobs, oldest first."""
    return [job.redrive_of for job in reversed(shop.app.jobs(limit=1000)) if job.redrive_of]


def last(shop: Shop, id: str) -> tuple[str, str, str | None]:
    entry = shop.app.history(id)[-1]
    return entry.event, entry.actor, entry.reason
