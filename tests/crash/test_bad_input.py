"""Bad handlers, payloads, releases and commands: each ends in a clear state or error and affects no other job."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from interlock import App, Run
from interlock.core.job import Job
from interlock.store.database import migrate
from tests.crash.lab import Lab
from tests.crash.release_apps import build_new, build_old
from tests.crash.scenario_kit import audited, equipped, until_begun
from tests.crash.worker_command import Command, say, start

INNOCENTS = [f"innocent-{n}" for n in range(8)]
Ends = dict[str, tuple[str, int, str]]
"""For each kind: the final state, the attempts and a part of the error."""


@pytest.fixture
def shop(lab: Lab) -> Lab:
    return equipped(lab)


def running(pid: int) -> bool:
    """Return whether the process runs; a process that only has to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended_beside_the_innocent(lab: Lab, bad: dict[str, dict[str, Any]]) -> tuple[dict[str, Job], Command]:
    """Run jobs of these kinds between good jobs, all in one worker.

    Check that the good jobs succeed at their first attempt; return the bad jobs and the worker.
    """
    half = len(INNOCENTS) // 2
    for tag in INNOCENTS[:half]:
        lab.enqueue("slow", tag, seconds=0.5)
    for kind, payload in bad.items():
        lab.enqueue(kind, kind, **payload)
    for tag in INNOCENTS[half:]:
        lab.enqueue("slow", tag, seconds=0.5)
    worker = start(lab, "worker")
    jobs = {str(job.payload.get("tag")): job for job in lab.until_ended(within=40)}
    assert worker.alive, worker.log
    assert {(jobs[tag].phase, jobs[tag].attempt) for tag in INNOCENTS} == {("succeeded", 1)}
    assert {tag: lab.effects()[tag] for tag in INNOCENTS} == dict.fromkeys(INNOCENTS, 1)
    audited(lab)
    return {kind: jobs[kind] for kind in bad}, worker


def store_by_an_older_release(lab: Lab) -> str:
    """Store a job whose payload the current release does not accept."""
    older = App(lab.setting.url, schema=lab.setting.schema)

    @older.job()
    async def fast(run: Run, title: str) -> None: ...

    id = fast.enqueue(title="one").id
    older.close()
    return id


# ---------------------------------------------------------------- handlers
def test_misbehaving_handler_ends_only_its_own_job(shop: Lab) -> None:
    """The handlers return an unstorable value, exit, block the event loop, use all memory or are killed. One payload of
    an older release no longer fits. Each error names its cause.
    """
    expected: Ends = {
        "unspeakable": ("FAILED", 1, "cannot be stored"),
        "quitter": ("FAILED", 2, "SystemExit"),
        "quitter_thread": ("FAILED", 2, "SystemExit"),
        "quitter_child": ("FAILED", 2, "SystemExit"),
        "greedy": ("FAILED", 2, "MemoryError"),
        "glutton": ("FAILED", 2, "MemoryError"),
        "killed": (
            "FAILED",
            2,
            "signal 9 (SIGKILL); a person or a program killed it, or the kernel did because memory ran out",
        ),
        "full": ("SUCCEEDED", 1, ""),
    }
    unfit = store_by_an_older_release(shop)
    blocks = {"seconds": 2.5 * shop.setting.lease, "block": True}
    jobs, _ = ended_beside_the_innocent(shop, {kind: blocks if kind == "full" else {} for kind in expected})
    assert {kind: (job.state, job.attempt) for kind, job in jobs.items()} == {
        kind: (state, attempt) for kind, (state, attempt, _) in expected.items()
    }
    for kind, (_, _, says) in expected.items():
        assert says in (jobs[kind].last_error or ""), kind
    job = shop.job(unfit)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert re.match(r"the stored payload no longer fits: .*tag", job.last_error or "", re.DOTALL)


def test_handler_that_forks_ends_once_and_does_not_affect_the_worker(shop: Lab) -> None:
    """A forked process reports nothing, even if the handler continues in both processes. Forked processes end, and the
    worker stops normally.
    """
    kinds = [
        "parted_loop",
        "pool_child",
        *(f"{name}{where}" for name in ("forker", "parted") for where in ("", "_child")),
    ]
    jobs, worker = ended_beside_the_innocent(shop, {kind: {} for kind in kinds})
    assert {(job.state, job.attempt) for job in jobs.values()} == {("SUCCEEDED", 1)}
    assert jobs["pool_child"].result == -signal.SIGTERM
    parted = ["parted", "parted_child", "parted_loop"]
    assert (shop.happened("alone"), shop.happened("both")) == (dict.fromkeys(parted, 1), dict.fromkeys(parted, 2))
    ours = {line["pid"] for line in shop.outside.lines() if line["what"] == "alone"}
    forked = {line["pid"] for line in shop.outside.lines() if line["what"] in ("both", "left behind")} - ours
    shop.until(lambda: not any(running(pid) for pid in forked), "the forked processes have ended")
    shop.until(lambda: len(shop.happened("left behind")) == 2, "the processes left behind have ended")
    worker.terminate()
    assert worker.exit_code() == 0


# ---------------------------------------------------------------- releases
def test_jobs_of_an_older_lifecycle_are_finished_by_an_older_worker(lab: Lab) -> None:
    """`migrate` reports how many jobs are in a state that the new release lacks. An old worker finishes them while the
    new one runs.
    """
    before, after = build_old(lab.setting), build_new(lab.setting)
    before.migrate()
    stuck = [before.kinds["press"].enqueue(tag=f"stuck-{n}", pauses=True).id for n in range(2)]
    old = start(lab, "old", program="tests.crash.release_apps:old", queues="default,old")
    lab.until(lambda: {lab.job(id).state for id in stuck} == {"PAUSED"}, "both pause")
    notes = migrate(lab.store, after.declared()).notes
    assert [note for note in notes if "PAUSED" in note] == [
        (
            "2 live jobs are in state PAUSED, which version 2 of press lacks; only a worker with an older version moves "
            "them"
        )
    ]
    new = start(lab, "new", program="tests.crash.release_apps:new", queues="default,new").ready()
    # Enqueued by either release, for either worker and for both.
    mixed = [
        app.kinds["press"].using(queue=queue).enqueue(tag="mixed").id
        for app in (before, after)
        for queue in 5 * ("default", "old", "new")
    ]
    jobs = lab.until_ended(*stuck, *mixed)
    assert {job.state for job in jobs} == {"OK"}
    assert {each.lease_owner.partition("#")[0] for id in stuck for each in lab.executions(id)} == {"old"}
    assert {(job.queue, job.lifecycle_version) for job in jobs} >= {("old", 1), ("new", 2)}
    assert old.alive
    assert new.alive
    audited(lab)
    before.close()
    after.close()


# ---------------------------------------------------------------- commands
def test_two_workers_with_the_same_name_are_independent(shop: Lab) -> None:
    """Neither renews, returns or reports jobs of the other. After one is killed, only its jobs run again."""
    ids = {
        tag: shop.enqueue("slow", tag, queue=tag, seconds=600 if tag == "dead" else 3.5) for tag in ("dead", "alive")
    }
    first = start(shop, "twin", queues="dead")
    until_begun(shop, "dead")
    second = start(shop, "twin", queues="dead,alive")
    until_begun(shop, "alive")
    # A worker's first heartbeat and its first claim run side by side.
    shop.until(lambda: len({seen.facts.name for seen in shop.store.workers.all()}) == 2, "both workers are listed")
    first.kill()
    dead, alive = shop.until_ended(*ids.values())
    assert ((dead.phase, dead.attempt), (alive.phase, alive.attempt)) == (("succeeded", 2), ("succeeded", 1))
    assert shop.effects() == {"dead": 1, "alive": 1}
    assert second.alive
    audited(shop)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.crash.nowhere:app", "There is no module tests.crash.nowhere here"),
        ("tests.crash.misbehaving_app:nothing", "tests.crash.misbehaving_app has no nothing"),
        ("tests.crash.misbehaving_app", "is not the name of an app"),
        ("tests.crash.crash_app:QUICK", "is a Backoff, not an interlock.App"),
    ],
)
@pytest.mark.parametrize("places", ["sqlite"], indirect=True)
def test_wrong_app_name_is_one_sentence_and_starts_no_worker(shop: Lab, name: str, says: str) -> None:
    """Waiting jobs stay unchanged. One store is enough, because no store is opened."""
    id = shop.enqueue("fast", "one")
    said = say(shop, "worker", "-A", name)
    assert (said.code, says in said.text, "Traceback" in said.text) == (2, True, False)
    assert (shop.job(id).state, shop.store.workers.all()) == ("PENDING", [])


def test_app_of_another_program_ignores_these_jobs(shop: Lab) -> None:
    """It uses the same database and knows none of these kinds. It neither runs nor recovers their jobs."""
    ids = [shop.enqueue("slow", tag, queue=tag, seconds=600 if tag == "lost" else 0) for tag in ("waits", "lost")]
    victim = start(shop, "victim", queues="lost")
    until_begun(shop, "lost")
    app = build_new(shop.setting)
    app.migrate()
    app.close()
    other = start(shop, "other", program="tests.crash.release_apps:new", queues="default,waits,lost").ready()
    victim.kill()
    ends = shop.executions(ids[1])[0].lease_expires_at
    shop.until(lambda: (shop.store.inspect.now() - ends).total_seconds() > 2, "the lease expired long ago")
    assert [(shop.job(id).state, shop.job(id).attempt) for id in ids] == [("PENDING", 0), ("RUNNING", 1)]
    start(shop, "right", queues="default,waits,lost")
    assert {job.phase for job in shop.until_ended(*ids)} == {"succeeded"}
    assert other.alive
    audited(shop)
