"""A group of commits stores the same rows and audit, and refuses the same moves, as single commits do."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from random import Random
from typing import Any

import pytest

from interlock.core.job import Job
from interlock.core.outcome import Requeued, Returned
from interlock.core.transition import Move
from interlock.store.contract import Store
from interlock.store.types import Lease
from tests.contract.kit import check, claim, decided, fail, many, settle
from tests.kit import Raw

JOBS = 12
FATES = {"good": 8, "raises": 2, "ended": 1, "claimed again": 1, "cancelled": 1, "stored before": 1, "unstorable": 0.2}
"""What happens to a job before or during its commit, with its weight."""
Body = Callable[[Any, Sequence[Job]], None]


def prepare(store: Store, lease: Lease, fate: str, number: int) -> Move:
    """Bring a job to its fate, and return the move that its first holder then tries to commit."""
    value = '{"half":' if fate == "unstorable" else f'"value {number}"'
    move = decided(lease, Returned(value, boundary=number % 2 == 0), actor="ann")
    if fate == "ended":
        fail(store, lease)
    elif fate == "claimed again":
        settle(store, lease, Requeued("the worker stops"))
        claim(store, by="bob")
    elif fate == "cancelled":
        store.control.request_cancel(lease.job.id, by="operator:olga", reason="too late")
    elif fate == "stored before":
        assert store.transitions.commit(move, lambda tx, job: None) is None
    return move


def commit_alone(store: Store, move: Move, body: Body) -> object:
    """Return what the caller of `commit` gets."""
    try:
        refusal = store.transitions.commit(move, lambda tx, job: body(tx, [job]))
    except Exception as error:  # noqa: BLE001 - compared
        return type(error).__name__
    return refusal and (*(value for name, value in asdict(refusal).items() if name != "job_id"),)


def commit_in_group(store: Store, moves: Sequence[Move], body: Body) -> tuple[list[object], int]:
    """Commit the moves as a worker does: together, then each that was left out alone.

    Return what `commit_alone` would return for each, and how many were stored together.
    """
    try:
        stored = store.transitions.commit_group(moves, body).stored
    except Exception:  # noqa: BLE001 - nothing is stored then
        stored = frozenset()
    answers = [None if move.job_id in stored else commit_alone(store, move, body) for move in moves]
    return answers, len(stored)


def rows(store: Store, raw: Raw, id: str) -> list[object]:
    """Return everything that is stored of a job, except its id."""
    check(store, id)
    story = [store.inspect.get(id), *store.inspect.executions(id), *store.inspect.history(id)]
    found = [{name: value for name, value in asdict(each).items() if value != id} for each in story]
    return [*found, raw("SELECT what FROM {effects} WHERE job = :id", id=id)]


@pytest.mark.parametrize("seed", range(8))
def test_group_equals_single_commits(store: Store, raw: Raw, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test uses random mixes of good, raising, stale, cancelled and repeated commits."""
    monkeypatch.setattr("interlock.store.commit_group.LONGEST", 60.0)
    raw("CREATE TABLE {effects} (job text, what text)")
    fates = Random(seed).choices(list(FATES), list(FATES.values()), k=JOBS)
    store.queue.enqueue(many(2 * JOBS))
    leases = sorted(claim(store), key=lambda lease: lease.job.id)
    moves = [prepare(store, lease, fates[n % JOBS], n % JOBS) for n, lease in enumerate(leases)]
    raising = {move.job_id for n, move in enumerate(moves) if fates[n % JOBS] == "raises"}

    def body(tx: Any, jobs: Sequence[Job]) -> None:
        (job,) = jobs
        tx.execute(raw.words(f"INSERT INTO {{effects}} VALUES ('{job.id}', '{job.state} {job.attempt}')"))
        if job.id in raising:
            raise PermissionError("no")

    grouped, single = moves[:JOBS], moves[JOBS:]
    answers, together = commit_in_group(store, grouped, body)
    assert answers == [commit_alone(store, move, body) for move in single]
    assert together == (0 if "unstorable" in fates else fates.count("good") + fates.count("cancelled"))
    assert [rows(store, raw, move.job_id) for move in grouped] == [rows(store, raw, move.job_id) for move in single]
