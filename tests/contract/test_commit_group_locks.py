"""commit_group while another transaction has locked a row. SQLite locks the whole file, so it has no such case."""

from collections.abc import Iterator

import pytest

from interlock.store import OpenStore
from interlock.store.types import GroupCommit
from tests.contract.kit import check
from tests.contract.test_commit_group import NONE, GroupBody, effects, ids, leased, moves_of, states
from tests.kit import Place, Raw, postgres_place
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
