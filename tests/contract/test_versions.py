"""Versions: old and new workers run at the same time during a rolling deployment."""

from dataclasses import replace

import pytest

from interlock.core.lifecycle import Lifecycle
from interlock.core.outcome import Advanced, CancelRequested, Errored, FailedFinally, Requeued, Returned
from interlock.errors import NotMigrated, TransitionRefused
from interlock.operate.verify import verify
from interlock.store.contract import Store
from interlock.store.types import Lease
from tests.contract.kit import claim_rules, decided, make, refused
from tests.kit import Place, Raw

_ARROWS = [("NEW", "claim", "BUSY"), ("BUSY", "succeed", "OK"), ("BUSY", "fail", "BAD"), ("BUSY", "retry", "NEW")]
OLD = Lifecycle("press", transitions=_ARROWS)
# The new version adds a stage, a PAUSED state for retries and a cancel; it has no direct transition from BUSY to
# success.
NEW = Lifecycle(
    "press",
    transitions=[
        ("NEW", "claim", "BUSY"),
        ("PAUSED", "claim", "BUSY"),
        ("BUSY", "advance", "PRINTING"),
        ("PRINTING", "succeed", "OK"),
        ("BUSY", "fail", "BAD"),
        ("PRINTING", "fail", "BAD"),
        ("BUSY", "retry", "PAUSED"),
        ("PRINTING", "retry", "PAUSED"),
        ("NEW", "cancel", "GONE"),
        ("PAUSED", "cancel", "GONE"),
    ],
)


@pytest.fixture(params=["old first", "new first"])
def deploy(request: pytest.FixtureRequest, place: Place) -> tuple[Store, Store, int, int]:
    """An old and a new process on one database, migrated in either order: their stores and the versions of their
    lifecycles.
    """
    old, new = place.open(), place.open()
    for store, lifecycle in ((old, OLD), (new, NEW)) if request.param == "old first" else ((new, NEW), (old, OLD)):
        store.registry.migrate([lifecycle], [])
    place.freeze()
    return old, new, old.registry.version_of(OLD), new.registry.version_of(NEW)


def claim(store: Store, lifecycle: Lifecycle, version: int, by: str = "ann") -> list[Lease]:
    return store.queue.claim(by, claim_rules("press", lifecycle=lifecycle, version=version), ["default"], 9)


def enqueue(store: Store, lifecycle: Lifecycle, version: int) -> str:
    return store.queue.enqueue([make("press", lifecycle=lifecycle, version=version)])[0].id


def move(store: Store, lifecycle: Lifecycle, lease: Lease, outcome: object) -> Lease:
    assert store.transitions.move([decided(lease, outcome, lifecycle=lifecycle)]) == []  # type: ignore[arg-type]
    last = store.inspect.executions(lease.job.id)[-1]
    return replace(lease, job=store.inspect.get(lease.job.id), status=last.status)


Deploy = tuple[Store, Store, int, int]


def test_both_versions_are_accepted_in_either_order(deploy: Deploy) -> None:
    """In either order, the old worker uses the old transitions and the new worker the new ones."""
    old, new, v_old, v_new = deploy
    assert v_old != v_new
    enqueue(old, OLD, v_old)
    (lease,) = claim(old, OLD, v_old)
    enqueue(new, NEW, v_new)
    (later,) = claim(new, NEW, v_new)
    assert move(old, OLD, lease, Returned("1", boundary=False)).job.state == "OK"
    later = move(new, NEW, later, Advanced("PRINTING"))
    assert move(new, NEW, later, Returned("1", boundary=False)).job.state == "OK"
    assert verify(old).ok
    assert verify(new).ok


def test_migration_of_an_old_app_keeps_the_new_version(deploy: Deploy, place: Place) -> None:
    """It keeps its version, and the new transitions still work."""
    old, new, v_old, v_new = deploy
    before = place.raw.dump()
    assert old.registry.migrate([OLD], []).versions["press"] == v_old
    assert place.raw.dump() == before
    enqueue(new, NEW, v_new)
    (lease,) = claim(new, NEW, v_new)
    assert move(new, NEW, lease, Advanced("PRINTING")).job.state == "PRINTING"


def test_claim_pins_a_job_to_the_workers_lifecycle_version(deploy: Deploy) -> None:
    """Protocol 15: a job that waited under one version runs under the version of the worker that claims it, in both
    directions.
    """
    old, new, v_old, v_new = deploy
    first = enqueue(old, OLD, v_old)
    (lease,) = claim(new, NEW, v_new)
    assert (lease.job.id, lease.job.lifecycle_version) == (first, v_new)
    move(new, NEW, lease, FailedFinally("x"))
    second = enqueue(new, NEW, v_new)
    (lease,) = claim(old, OLD, v_old)
    assert (lease.job.id, lease.job.lifecycle_version, old.inspect.get(second).lifecycle_version) == (
        second,
        v_old,
        v_old,
    )


def test_worker_claims_no_job_whose_state_its_version_lacks(deploy: Deploy) -> None:
    """Old workers cannot claim a job in the new PAUSED state; it waits for a new worker."""
    old, new, _, v_new = deploy
    enqueue(new, NEW, v_new)
    (lease,) = claim(new, NEW, v_new)
    paused = move(new, NEW, lease, Errored("busy", retryable=True, after=0)).job
    assert paused.state == "PAUSED"
    assert claim(old, OLD, old.registry.version_of(OLD)) == []
    (again,) = claim(new, NEW, v_new)
    assert again.job.id == paused.id


def test_running_job_keeps_the_version_it_was_claimed_under(deploy: Deploy, place: Place) -> None:
    """Moves follow the pinned version: the database refuses a transition of the other one."""
    old, new, v_old, _ = deploy
    enqueue(old, OLD, v_old)
    (lease,) = claim(old, OLD, v_old)
    before = place.raw.dump()
    refusal = refused(new, decided(lease, Advanced("PRINTING"), lifecycle=NEW))
    assert "interlock refuses" in (refusal.error or "")
    assert place.raw.dump() == before
    with pytest.raises(TransitionRefused):
        decided(lease, Advanced("PRINTING"), lifecycle=new.registry.lifecycle("press", lease.job.lifecycle_version))
    assert move(old, OLD, lease, Returned("1", boundary=False)).job.state == "OK"


def test_adopter_decides_by_the_lifecycle_version_of_the_job(deploy: Deploy, place: Place) -> None:
    """A new maintenance recovers an old worker's job by the old lifecycle, read from the database."""
    old, new, v_old, _ = deploy
    id = enqueue(old, OLD, v_old)
    claim(old, OLD, v_old)
    place.clock.advance(31)
    (lease,) = new.leases.adopt("maintenance", ["press"], 30.0, 9)
    pinned = new.registry.lifecycle(lease.job.lifecycle, lease.job.lifecycle_version)
    assert pinned == OLD
    assert move(new, pinned, lease, Requeued("stopping")).job.state == "NEW"
    assert verify(new).ok
    assert new.inspect.get(id).lifecycle_version == v_old


def test_history_is_complete_across_lifecycle_versions(deploy: Deploy) -> None:
    """Claimed by the old worker, retried, claimed by the new one, paused and cancelled: `verify` finds no violation."""
    old, new, v_old, v_new = deploy
    id = enqueue(old, OLD, v_old)
    move(old, OLD, claim(old, OLD, v_old)[0], Errored("busy", retryable=True, after=0))
    (lease,) = claim(new, NEW, v_new)
    move(new, NEW, lease, Errored("busy", retryable=True, after=0))
    (lease,) = claim(new, NEW, v_new)
    assert move(new, NEW, lease, CancelRequested(None, "olga")).job.state == "GONE"
    assert [entry.event for entry in old.inspect.history(id) if entry.n == 0] == [
        "enqueue",
        "claim",
        "retry",
        "claim",
        "retry",
        "claim",
        "retry",
        "cancel",
    ]
    assert verify(old).ok


def test_worker_with_an_unregistered_version_gets_an_error(deploy: Deploy) -> None:
    """The error names the command to run, instead of one refusal per job."""
    old, _, _, _ = deploy
    newest = Lifecycle("press", transitions=[*_ARROWS, ("NEW", "expire", "LATE")])
    with pytest.raises(NotMigrated, match="interlock migrate"):
        old.registry.version_of(newest)


def test_migration_counts_live_jobs_in_states_that_the_new_version_lacks(place: Place, raw: Raw) -> None:
    """The notes count jobs in states that the new version does not have."""
    store = place.open()
    version = store.registry.migrate([NEW], []).versions["press"]
    place.freeze()
    enqueue(store, NEW, version)
    move(store, NEW, claim(store, NEW, version)[0], Errored("busy", retryable=True, after=0))
    notes = " ".join(store.registry.migrate([OLD], []).notes)
    assert "PAUSED" in notes
    assert "1" in notes
