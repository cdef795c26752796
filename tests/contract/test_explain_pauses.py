"""`explain` names every pause that a waiting job meets."""

import pytest

from interlock.operate.explain import explain
from interlock.store.contract import Store
from interlock.store.flow_types import Dependency
from tests.contract.kit import make, pause, stored


@pytest.mark.parametrize("waits", ["due", "delayed", "blocked"])
def test_both_pauses_of_a_waiting_job_are_named(store: Store, waits: str) -> None:
    first = stored(store)
    job = make(delay=60.0 if waits == "delayed" else 0.0, after=(Dependency(first.id),) if waits == "blocked" else ())
    store.queue.enqueue([job])
    before = explain(store, job.id).sentence
    pause(store, "queue", "default")
    pause(store, "kind", "mail")
    sentence = explain(store, job.id).sentence
    for text in ("The queue default was paused at ", "The kind mail was paused at ", " by operator:olga."):
        assert text in sentence
    if waits != "due":
        assert sentence.startswith(before)
