"""A worker that was frozen past its lease: its writes are refused, and the audit shows the refusals."""

import time
from functools import partial

import pytest

from interlock.core.job import AuditEntry
from tests.crash.conftest import Labs
from tests.crash.lab import Lab, Process

Frozen = tuple[Lab, str, str, Process, Process]
"""The job that stands still and the one that should not, the worker that stands still and the one that does not."""
PLACES = [(kind, point) for kind in ("full", "plain", "fast") for point in ("in_prepare", "before_commit")]


def wake(zombie: Process) -> None:
    zombie.thaw()
    zombie.go_on()


def refusals(lab: Lab, id: str) -> list[str]:
    """By whom a refusal was remarked."""
    return [entry.actor.partition("#")[0] for entry in lab.remarks(id, "refused")]


def arrows(lab: Lab, id: str) -> list[AuditEntry]:
    return [entry for entry in lab.app.history(id) if entry.event != "refused"]


def test_a_zombie_s_commit_is_refused(lab: Lab) -> None:
    """Others have taken over and finished: every effect is there once, no write of a zombie is, and the audit shows
    what each of them wanted.
    """
    zombies = {
        (kind, point): (
            lab.enqueue(kind, f"{kind}-{point}", queue=f"{kind}-{point}"),
            lab.worker(f"zombie-{kind}-{point}", point, queues=(f"{kind}-{point}",)),
        )
        for kind, point in PLACES
    }
    for (_, point), (_, zombie) in zombies.items():
        zombie.at(point)
    for _, zombie in zombies.values():
        lab.freeze(zombie)
    lab.worker("rescuer", queues=tuple(f"{kind}-{point}" for kind, point in PLACES))
    before = {job.id: (job, arrows(lab, job.id)) for job in lab.until_ended()}
    for _, zombie in zombies.values():
        wake(zombie)
    for place, (id, zombie) in zombies.items():
        lab.until(partial(refusals, lab, id), f"the zombie at {place} is refused")
        assert refusals(lab, id) == [zombie.name]
        assert zombie.alive
    assert {id: (lab.job(id), arrows(lab, id)) for id in before} == before
    assert lab.effects() == {f"{kind}-{point}": 1 for kind, point in PLACES if kind != "fast"}
    assert {tuple(each.status for each in lab.executions(id)) for id in before} == {("ABORTED", "DONE")}
    lab.check()


def test_a_zombie_s_finish_changes_nothing(lab: Lab) -> None:
    """It stood still past its commit; another has finished the same execution.

    What it does then is done again, and what it wants to write is not written.
    """
    id = lab.enqueue("full", "one")
    zombie = lab.worker("zombie", "in_finish")
    zombie.at("in_finish")
    lab.freeze(zombie)
    lab.worker("rescuer")
    (job,) = lab.until_ended(id)
    before = arrows(lab, id)
    wake(zombie)
    lab.until_idle(zombie)
    assert (lab.job(id), arrows(lab, id)) == (job, before)
    assert [(each.status, each.holder) for each in lab.executions(id)] == [("DONE", 2)]
    assert (lab.effects(), lab.happened("prepare")) == ({"one": 1}, {"one": 1})
    assert {line["seen"] for line in lab.outside.lines() if line["what"] == "finish"} == {1}
    lab.check()


@pytest.fixture
def frozen_in_commit(labs: Labs) -> Frozen:
    """A worker that stands still inside the transaction of its commit, with another beside it that has a job of its own
    to do.
    """
    lab = labs(commit_timeout=1.5)
    rescuer = lab.worker("rescuer", queues=("other",)).ready()
    id = lab.enqueue("full", "one", queue="default")
    zombie = lab.worker("zombie", "in_commit")
    other = lab.app.kinds["full"].using(queue="other", delay=3).enqueue(tag="other").id
    zombie.at("in_commit")
    zombie.freeze()
    return lab, id, other, zombie, rescuer


@pytest.mark.parametrize("places", ["postgres"], indirect=True)
def test_a_server_ends_a_commit_that_stands_still(frozen_in_commit: Frozen) -> None:
    """PostgreSQL ends the session after `commit_timeout`, with what it wrote: another takes over while the zombie still
    stands, and its return is refused.
    """
    lab, id, other, zombie, rescuer = frozen_in_commit
    lab.worker("second")
    lab.until_ended(id, other)
    assert lab.effects() == {"one": 1, "other": 1}
    wake(zombie)
    lab.until(lambda: refusals(lab, id), "the zombie is refused")
    assert refusals(lab, id) == ["zombie"]
    assert lab.effects() == {"one": 1, "other": 1}
    assert zombie.alive
    assert rescuer.alive
    lab.check()


@pytest.mark.parametrize("places", ["sqlite"], indirect=True)
def test_sqlite_file_waits_for_a_frozen_commit(frozen_in_commit: Frozen) -> None:
    """On SQLite a writer that is stopped inside its transaction stops the file.

    The others wait, live on, and go on when it does.
    """
    lab, id, other, zombie, rescuer = frozen_in_commit
    time.sleep(3 * lab.setting.lease)
    assert not lab.job(id).ended
    assert rescuer.alive
    wake(zombie)
    jobs = lab.until_ended(id, other)
    assert {job.phase for job in jobs} == {"succeeded"}
    assert lab.effects() == {"one": 1, "other": 1}
    assert zombie.alive
    assert rescuer.alive
    lab.check()
