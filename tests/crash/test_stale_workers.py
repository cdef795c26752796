"""A worker that was frozen past its lease: its writes are refused, and the audit shows the refusals."""

import time
from functools import partial

import pytest

from interlock.core.job import AuditEntry
from tests.crash.conftest import Labs
from tests.crash.lab import Lab, Process

Frozen = tuple[Lab, str, str, Process, Process]
"""The laboratory, the frozen job, another job, the frozen worker and another worker."""
PLACES = [(kind, point) for kind in ("full", "plain", "fast") for point in ("in_prepare", "before_commit")]


def wake(stale: Process) -> None:
    stale.thaw()
    stale.go_on()


def refusals(lab: Lab, id: str) -> list[str]:
    """Return the workers whose refusals are in the audit."""
    return [entry.actor.partition("#")[0] for entry in lab.remarks(id, "refused")]


def arrows(lab: Lab, id: str) -> list[AuditEntry]:
    return [entry for entry in lab.app.history(id) if entry.event != "refused"]


def test_commit_of_a_stale_worker_is_refused(lab: Lab) -> None:
    """Another worker has taken over and finished. Every effect is there once, no write of a stale worker is stored, and
    the audit has each refusal.
    """
    stale_workers = {
        (kind, point): (
            lab.enqueue(kind, f"{kind}-{point}", queue=f"{kind}-{point}"),
            lab.worker(f"stale-{kind}-{point}", point, queues=(f"{kind}-{point}",)),
        )
        for kind, point in PLACES
    }
    for (_, point), (_, stale) in stale_workers.items():
        stale.at(point)
    for _, stale in stale_workers.values():
        lab.freeze(stale)
    lab.worker("rescuer", queues=tuple(f"{kind}-{point}" for kind, point in PLACES))
    before = {job.id: (job, arrows(lab, job.id)) for job in lab.until_ended()}
    for _, stale in stale_workers.values():
        wake(stale)
    for place, (id, stale) in stale_workers.items():
        lab.until(partial(refusals, lab, id), f"the stale worker at {place} is refused")
        assert refusals(lab, id) == [stale.name]
        assert stale.alive
    assert {id: (lab.job(id), arrows(lab, id)) for id in before} == before
    assert lab.effects() == {f"{kind}-{point}": 1 for kind, point in PLACES if kind != "fast"}
    assert {tuple(each.status for each in lab.executions(id)) for id in before} == {("ABORTED", "DONE")}
    lab.check()


def test_finish_of_a_stale_worker_changes_nothing(lab: Lab) -> None:
    """It was frozen after its commit, and another worker has finished the same execution.

    Its finish function runs a second time, but its writes are refused.
    """
    id = lab.enqueue("full", "one")
    stale = lab.worker("stale", "in_finish")
    stale.at("in_finish")
    lab.freeze(stale)
    lab.worker("rescuer")
    (job,) = lab.until_ended(id)
    before = arrows(lab, id)
    wake(stale)
    lab.until_idle(stale)
    assert (lab.job(id), arrows(lab, id)) == (job, before)
    assert [(each.status, each.holder) for each in lab.executions(id)] == [("DONE", 2)]
    assert (lab.effects(), lab.happened("prepare")) == ({"one": 1}, {"one": 1})
    assert {line["seen"] for line in lab.outside.lines() if line["what"] == "finish"} == {1}
    lab.check()


@pytest.fixture
def frozen_in_commit(labs: Labs) -> Frozen:
    """A worker that is frozen inside the transaction of its commit, and another worker with its own job."""
    lab = labs(commit_timeout=1.5)
    rescuer = lab.worker("rescuer", queues=("other",)).ready()
    id = lab.enqueue("full", "one", queue="default")
    stale = lab.worker("stale", "in_commit")
    other = lab.app.kinds["full"].using(queue="other", delay=3).enqueue(tag="other").id
    stale.at("in_commit")
    stale.freeze()
    return lab, id, other, stale, rescuer


@pytest.mark.parametrize("places", ["postgres"], indirect=True)
def test_postgres_ends_the_transaction_of_a_frozen_commit(frozen_in_commit: Frozen) -> None:
    """PostgreSQL ends the session after `commit_timeout` and rolls it back. Another worker takes over while the first
    is still frozen, and the late commit is refused.
    """
    lab, id, other, stale, rescuer = frozen_in_commit
    lab.worker("second")
    lab.until_ended(id, other)
    assert lab.effects() == {"one": 1, "other": 1}
    wake(stale)
    lab.until(lambda: refusals(lab, id), "the stale worker is refused")
    assert refusals(lab, id) == ["stale"]
    assert lab.effects() == {"one": 1, "other": 1}
    assert stale.alive
    assert rescuer.alive
    lab.check()


@pytest.mark.parametrize("places", ["sqlite"], indirect=True)
def test_sqlite_file_waits_for_a_frozen_commit(frozen_in_commit: Frozen) -> None:
    """On SQLite a writer that is frozen inside its transaction blocks the file.

    Other workers wait, survive, and continue when it does.
    """
    lab, id, other, stale, rescuer = frozen_in_commit
    time.sleep(3 * lab.setting.lease)
    assert not lab.job(id).ended
    assert rescuer.alive
    wake(stale)
    jobs = lab.until_ended(id, other)
    assert {job.phase for job in jobs} == {"succeeded"}
    assert lab.effects() == {"one": 1, "other": 1}
    assert stale.alive
    assert rescuer.alive
    lab.check()
