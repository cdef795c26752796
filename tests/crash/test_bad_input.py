"""Bad input: handlers, payloads, releases and commands that no one should write.

Each ends in a clear state or a clear sentence, and no other job suffers.
"""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from interlock import App, Run
from interlock.cli.common_options import kind_facts as facts
from interlock.cli.common_options import lifecycles
from interlock.core.job import Job
from tests.crash.lab import Lab
from tests.crash.release_apps import build_new, build_old
from tests.crash.scenario_kit import audited, equipped, until_begun
from tests.crash.worker_command import Command, say, start

INNOCENTS = [f"innocent-{n}" for n in range(8)]
Ends = dict[str, tuple[str, int, str]]
"""By kind, how a job of it ends: its state, its attempts, and what its error says."""


@pytest.fixture
def shop(lab: Lab) -> Lab:
    return equipped(lab)


def running(pid: int) -> bool:
    """Whether the process runs, rather than waits to be buried by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended_beside_the_innocent(lab: Lab, bad: dict[str, dict[str, Any]]) -> tuple[dict[str, Job], Command]:
    """Jobs of these kinds between jobs that do no harm, all in one worker.

    The latter succeed, untouched; answered are the former, and the worker.
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
    """A job whose payload the present release does not know."""
    older = App(lab.setting.url, schema=lab.setting.schema)

    @older.job()
    async def fast(run: Run, title: str) -> None: ...

    id = fast.enqueue(title="one").id
    older.close()
    return id


# ---------------------------------------------------------------- handlers
def test_a_handler_that_misbehaves_ends_its_own_job_and_no_other(shop: Lab) -> None:
    """It returns what cannot be stored, ends the program, blocks the event loop, eats all memory or is killed for it;
    or its payload, which an older release
    has stored, no longer fits. The sentence says which.
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


def test_a_handler_that_forks_has_one_end_and_leaves_the_worker_s_alone(shop: Lab) -> None:
    """What it leaves behind reports nothing and hurts nothing, also where it goes on in both; what it ends, ends; and
    the worker can end as ever.
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
    lost_claims = {line["pid"] for line in shop.outside.lines() if line["what"] in ("both", "left behind")} - ours
    shop.until(lambda: not any(running(pid) for pid in lost_claims), "what was forked has ended")
    shop.until(lambda: len(shop.happened("left behind")) == 2, "what was left behind has ended")
    worker.terminate()
    assert worker.exit_code() == 0


# ---------------------------------------------------------------- releases
def test_changed_lifecycle_strands_no_live_job(lab: Lab) -> None:
    """`migrate` says how many sit where the new release knows no way; an old worker, beside the new one, carries those
    to their end.
    """
    before, after = build_old(lab.setting), build_new(lab.setting)
    before.migrate()
    stuck = [before.kinds["press"].enqueue(tag=f"stuck-{n}", pauses=True).id for n in range(2)]
    old = start(lab, "old", program="tests.crash.release_apps:old", queues="default,old")
    lab.until(lambda: {lab.job(id).state for id in stuck} == {"PAUSED"}, "both pause")
    notes = lab.store.registry.migrate(lifecycles(after), facts(after)).notes
    assert [note for note in notes if "PAUSED" in note] == [
        (
            "2 live jobs are in state PAUSED, which version 2 of press lacks; only a worker with an older version moves "
            "them"
        )
    ]
    new = start(lab, "new", program="tests.crash.release_apps:new", queues="default,new").ready()
    # By either release, for either worker and for both.
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
def test_two_workers_of_one_name_are_two_workers(shop: Lab) -> None:
    """Neither renews, releases or reports what is the other's: one is killed, and only its jobs run again."""
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
def test_a_wrong_name_of_an_app_is_one_sentence(shop: Lab, name: str, says: str) -> None:
    """And no worker starts, so that what waits is left as it is; no store is asked."""
    id = shop.enqueue("fast", "one")
    said = say(shop, "worker", "-A", name)
    assert (said.code, says in said.text, "Traceback" in said.text) == (2, True, False)
    assert (shop.job(id).state, shop.store.workers.all()) == ("PENDING", [])


def test_the_app_of_another_program_leaves_these_jobs_alone(shop: Lab) -> None:
    """It serves the same database and knows none of these kinds: it moves nothing of theirs, and recovers nothing of
    theirs either.
    """
    ids = [shop.enqueue("slow", tag, queue=tag, seconds=600 if tag == "lost" else 0) for tag in ("waits", "lost")]
    victim = start(shop, "victim", queues="lost")
    until_begun(shop, "lost")
    app = build_new(shop.setting)
    app.migrate()
    app.close()
    other = start(shop, "other", program="tests.crash.release_apps:new", queues="default,waits,lost").ready()
    victim.kill()
    ends = shop.executions(ids[1])[0].lease_expires_at
    shop.until(lambda: (shop.store.inspect.now() - ends).total_seconds() > 2, "the lease has long ended")
    assert [(shop.job(id).state, shop.job(id).attempt) for id in ids] == [("PENDING", 0), ("RUNNING", 1)]
    start(shop, "right", queues="default,waits,lost")
    assert {job.phase for job in shop.until_ended(*ids)} == {"succeeded"}
    assert other.alive
    audited(shop)
