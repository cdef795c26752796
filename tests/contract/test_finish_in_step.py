"""An execution and its job end together, whichever statement stores the end."""

from interlock.core.outcome import Returned
from interlock.store.contract import Store
from tests.contract.kit import claimed, decided
from tests.kit import Raw


def test_success_is_refused_if_its_job_was_cancelled_by_hand(store: Store, raw: Raw) -> None:
    """The execution still matches the move, but the job does not. Nothing is stored for it; other jobs succeed."""
    lease, other = claimed(store), claimed(store)
    raw(
        "UPDATE {jobs} SET state = 'CANCELLED', phase = 'failed', version = version + 1, finished_at = updated_at, "
        "updated_at = {later} WHERE id = :id",
        id=lease.job.id,
    )

    def stored() -> list[str]:
        return [line for lines in raw.dump().values() for line in lines if lease.job.id in line]

    before = stored()
    moves = [decided(each, Returned("1", boundary=False)) for each in (lease, other)]
    assert [refusal.job_id for refusal in store.transitions.move(moves)] == [lease.job.id]
    assert stored() == before
    assert store.inspect.get(other.job.id).phase == "succeeded"
