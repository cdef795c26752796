"""commit_group while another transaction has locked a row. SQLite locks the whole file, so it has no such case."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from interlock.core.job import Job
from interlock.store import OpenStore
from interlock.store.types import GroupCommit, Heartbeat
from tests.contract.kit import check
from tests.contract.test_commit_group import NONE, GroupBody, effects, ids, leased, moves_of, states
from tests.kit import Place, Raw, SettableClock, postgres_place
from tests.pool import SchemaPool

__all__ = ["effects"]


@pytest.fixture
def place(postgres_url: str, schema_pool: SchemaPool) -> Iterator[Place]:
    """An empty PostgreSQL database."""
    place = postgres_place(postgres_url, schema_pool)
    yield place
    place.close()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("locked", ["{jobs} WHERE id", "{executions} WHERE job_id"], ids=["job", "execution"])
def test_locked_row_delays_only_the_commit_of_its_own_job(
    store: OpenStore, raw: Raw, locked: str, together: bool
) -> None:
    """The others are stored while the lock is held. The job itself is committed alone, which waits for the lock."""
    leases, body = leased(store, 5), GroupBody(raw)
    moves, others = moves_of(leases), [*leases[:3], leases[4]]
    with raw.transaction() as user:
        user.execute(raw.words(f"SELECT 1 FROM {locked} = '{leases[3].job.id}' FOR UPDATE"))
        assert store.transitions.commit_group(moves, body, together=together) == GroupCommit(
            frozenset(ids(others)), NONE
        )
        assert (body.effects, states(store, others)) == (ids(others), ["SUCCEEDED"] * 4)
    assert store.transitions.commit(moves[3], lambda tx, job: body(tx, [job])) is None
    assert body.effects == ids(leases)
    for id in ids(leases):
        check(store, id)


def test_jobs_that_a_slow_group_leaves_out_keep_their_leases(
    store: OpenStore, raw: Raw, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One function takes longer than a lease. No heartbeat can renew the leases of the others, whose rows are locked."""
    leases = leased(store, 4)
    body, times = GroupBody(raw, leases[1].job), count(step=24)
    monkeypatch.setattr("interlock.store.commit_group.monotonic", lambda: next(times))

    def slow(tx: Any, jobs: Sequence[Job]) -> None:
        clock.advance(20)
        beats = [Heartbeat(lease.fence, 30.0) for lease in leases]
        assert len(store.leases.renew(beats).busy) == len(leases)
        body(tx, jobs)

    found = store.transitions.commit_group(moves_of(leases), slow)
    assert found == GroupCommit(frozenset(ids(leases[:1])), frozenset(ids(leases[2:])))
    assert store.leases.adopt("maintenance", ["mail"], 30.0, 10) == []
    clock.advance(30)
    assert len(store.leases.adopt("maintenance", ["mail"], 30.0, 10)) == 3
