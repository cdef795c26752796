"""A batch whose jobs exist already: its dependents wait for those jobs."""

import pytest

from interlock.errors import UsageError
from interlock.store.contract import Store
from tests.contract.flow_kit import batch, get, node, put, run, run_all
from tests.contract.kit import make
from tests.kit import SettableClock


@pytest.mark.parametrize("whole_flow", [True, False])
@pytest.mark.parametrize("others", [0, 2])
def test_dependent_of_a_batch_waits_for_a_part_that_was_found_by_its_key(
    store: Store, clock: SettableClock, others: int, whole_flow: bool
) -> None:
    """Its result counts, too. It stays outside the batch."""
    existing = make(unique_key="u", delay=60)
    put(store, [existing])
    whole = batch("import")
    parts = batch("parts", whole)
    asked = node(batch=parts.id, unique_key="u")
    rest = [node(batch=parts.id) for _ in range(others)]
    last = node([whole if whole_flow else parts])
    found = store.queue.enqueue([asked, *rest, last], batches=[whole, parts])
    assert (found[0].id, found[0].created) == (existing.id, False)
    assert sorted(run_all(store)) == sorted(job.id for job in rest)
    assert get(store, last).blocked_at is not None
    assert store.flow.batch(parts.id).total == others
    clock.advance(60)
    assert run_all(store) == [existing.id, last.id]
    assert len(store.flow.results(last.id, "mail")) == others + 1


def test_dependent_fails_with_a_part_that_was_found(store: Store) -> None:
    existing = make(idempotency_key="i")
    put(store, [existing])
    run(store, fails=[existing])
    parts = batch("parts")
    asked = node(batch=parts.id, idempotency_key="i")
    strict, lenient = node([parts]), node([parts], "run")
    store.queue.enqueue([asked, strict, lenient], batches=[parts])
    store.flow.resolve()
    assert get(store, strict).cancel_reason == f"one of its 2 dependencies failed: mail {existing.id}"
    assert run_all(store) == [lenient.id]


def test_two_parts_with_one_key_are_one_job_of_the_batch(store: Store) -> None:
    parts = batch("parts")
    twins = [node(batch=parts.id, unique_key="u") for _ in range(2)]
    last = node([parts])
    assert [each.created for each in store.queue.enqueue([*twins, last], batches=[parts])] == [True, False, True]
    assert run_all(store) == [twins[0].id, last.id]


def test_job_that_would_wait_for_itself_is_refused(store: Store) -> None:
    """Two jobs with one key are one job, so that the second cannot wait for the first."""
    parts = batch("parts")
    first = node(unique_key="u", batch=parts.id)
    second = node([parts], unique_key="u")
    with pytest.raises(UsageError, match="would wait for itself"):
        store.queue.enqueue([second, first], batches=[parts])
    assert store.inspect.jobs() == []
