"""The faults under which job systems are compared, S1 to S9: a worker dies, freezes, is stopped, is poisoned; a database goes; many callers want one job."""

import json
import logging
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interlock.job import AuditEntry
from tests.crash import misfits
from tests.crash.command import start
from tests.crash.conftest import Labs
from tests.crash.lab import ROOT, Lab
from tests.crash.server import server
from tests.kit import postgres_place, sqlite_place

_log = logging.getLogger(__name__)
SLOW = bool(os.environ.get("INTERLOCK_TEST_SLOW"))
LEASE = 2.0
CALLERS = 32
RUNNING = 20


def equipped(lab: Lab) -> Lab:
    """The laboratory, with the kinds of the scenarios."""
    lab.app.close()
    lab.app = misfits.build(lab.setting)
    lab.app.migrate()
    return lab


@pytest.fixture
def shop(labs: Labs) -> Lab:
    """A laboratory with leases of two seconds."""
    return equipped(labs(lease=LEASE))


def until_begun(lab: Lab, *tags: str) -> None:
    lab.until(lambda: set(tags) <= set(lab.happened("prepare")), f"the handlers of {', '.join(tags)} have begun")


def audited(lab: Lab) -> None:
    """S7: every attempt, every change and every end of each job is in its audit, in order and without a gap, and `verify` finds nothing."""
    lab.check()
    for job in lab.app.jobs(limit=1000):
        arrows = [entry for entry in lab.app.history(job.id) if entry.n == 0]
        assert [entry.version for entry in arrows] == list(range(job.version + 1))
        assert arrows[-1].to_state == job.state
        for execution in lab.executions(job.id):
            own = [entry.event for entry in arrows if entry.attempt == execution.attempt]
            assert own[0] == "claim"
            assert own[-1] == execution.ended_by
            assert len(own) >= 2


def story(entries: list[AuditEntry]) -> list[tuple[str, str | None, int | None, str]]:
    """What happened, to which state, in which attempt, by whom."""
    return [(entry.event, entry.to_state, entry.attempt, entry.actor.partition("#")[0] + entry.actor.partition("/")[2]) for entry in entries]


# ---------------------------------------------------------------- a worker goes
@pytest.mark.parametrize("lease", [LEASE, 30.0] if SLOW else [LEASE])
def test_s1_what_a_killed_worker_ran_runs_again_within_its_lease_and_two_seconds(labs: Labs, lease: float) -> None:
    """By default settings: nobody tunes anything, nobody tells the other worker, which has stood idle."""
    lab = equipped(labs(lease=lease))
    id = lab.enqueue("full", "one", seconds=600)
    victim = start(lab, "victim")
    until_begun(lab, "one")
    start(lab, "rescuer").ready()
    time.sleep(1)
    victim.kill()
    killed = time.time()
    again = lab.until(lambda: [line for line in lab.outside.lines() if line["tag"] == "one" and line["attempt"] == 2], "it runs again", within=lease + 20)
    first, second = lab.executions(id)
    _log.info("S1 lease %g s: leased again %.2f s and running %.2f s after the kill", lease, second.leased_at.timestamp() - killed, again[0]["at"] - killed)
    assert (second.leased_at - first.lease_expires_at).total_seconds() <= 2.0
    assert second.leased_at.timestamp() - killed <= lease + 2.0
    assert lab.until_ended(id)[0].phase == "succeeded"
    assert lab.effects() == {"one": 1}
    audited(lab)


def test_s2_a_zombie_neither_doubles_an_effect_nor_rewrites_a_newer_attempt(shop: Lab) -> None:
    """It stands still past its lease, by SIGSTOP and nothing else; woken, it wants to store what it did, and each of its refusals is in the audit."""
    ids = {tag: shop.enqueue("in_thread", tag, seconds=1.5) for tag in ("a", "b")} | {"c": shop.enqueue("full", "c", seconds=1.5)}
    zombie = start(shop, "zombie")
    until_begun(shop, *ids)
    shop.freeze(zombie)
    start(shop, "rescuer")
    before = {job.id: job for job in shop.until_ended(within=30)}
    zombie.thaw()
    for tag, id in ids.items():
        refused = shop.until(lambda id=id: shop.remarks(id, "refused"), f"the zombie is refused {tag}")  # type: ignore[misc]
        assert [entry.actor.partition("#")[0] for entry in refused] == ["zombie"]
    assert {id: shop.job(id) for id in before} == before
    assert shop.effects() == dict.fromkeys(ids, 1)
    assert {job.phase for job in before.values()} == {"succeeded"}
    assert zombie.alive
    audited(shop)


@pytest.mark.parametrize("drain", [None, 0.5])
def test_s5_a_worker_that_is_told_to_end_finishes_or_gives_back_and_doubles_nothing(shop: Lab, drain: float | None) -> None:
    """Twenty run when SIGTERM comes: they are done and the worker ends as soon as they are; or, past the drain, they are given back and cost no try."""
    seconds, tags = 2.0 if drain is None else 600.0, [str(n) for n in range(RUNNING)]
    for tag in tags:
        shop.enqueue("full", tag, seconds=seconds)
    leaver = start(shop, "leaver", **{} if drain is None else {"LAB_DRAIN": str(drain)})
    until_begun(shop, *tags)
    leaver.terminate()
    begun = time.monotonic()
    assert leaver.exit_code() == 0
    took = time.monotonic() - begun
    _log.info("S5 drain %s: ended %.2f s after SIGTERM", drain, took)
    assert took <= (seconds if drain is None else drain) + 3
    jobs = shop.app.jobs(limit=100)
    assert {job.phase for job in jobs} == {"succeeded" if drain is None else "pending"}
    if drain is not None:
        start(shop, "second")
        jobs = shop.until_ended()
    assert {(job.phase, job.tries_left, job.lease_losses) for job in jobs} == {("succeeded", 3, 0)}
    assert (shop.effects(), shop.happened("prepare")) == (dict.fromkeys(tags, 1), dict.fromkeys(tags, 1 if drain is None else 2))
    audited(shop)


def test_s6_poison_ends_after_its_tries_and_takes_nobody_along(shop: Lab) -> None:
    """`os._exit` in a handler: the first worker dies of it, with all that it held; from then on only a child does. The innocent are charged once at most."""
    poison, innocents = shop.enqueue("poison", "poison"), [f"innocent-{n}" for n in range(5)]
    for tag in innocents:
        shop.enqueue("full", tag, seconds=1.0)
    assert start(shop, "first").exit_code() == 13
    second = start(shop, "second")
    jobs = {str(job.payload["tag"]): job for job in shop.until_ended(within=40)}
    assert second.alive
    dead = jobs.pop("poison")
    assert (dead.state, dead.attempt, dead.tries, dead.tries_left) == ("FAILED", 3, 3, 0)
    assert "exit code 13" in (dead.last_error or "")
    assert [(each.ended_by, each.lease_owner.partition("#")[0]) for each in shop.executions(poison)][1:] == [("retry", "second"), ("fail", "second")]
    assert {(job.phase, job.lease_losses, job.attempt) for job in jobs.values()} == {("succeeded", 1, 2)}
    assert shop.effects() == dict.fromkeys(innocents, 1)
    late = shop.enqueue("full", "late")
    assert shop.until_ended(late)[0].attempt == 1
    audited(shop)


def test_s7_the_audit_tells_every_attempt_every_change_and_every_refusal(shop: Lab) -> None:
    """One job, killed, frozen and finished: its history says so, line by line, and that the frozen one came back."""
    id = shop.enqueue("in_thread", "one", seconds=1.0)
    victim = start(shop, "victim")
    until_begun(shop, "one")
    victim.kill()
    zombie = start(shop, "zombie")
    shop.until(lambda: shop.happened("prepare")["one"] == 2, "it runs again")
    shop.freeze(zombie)
    start(shop, "rescuer")
    shop.until_ended(id, within=30)
    zombie.thaw()
    shop.until(lambda: shop.remarks(id, "refused"), "the zombie is refused")
    assert story(shop.app.history(id)) == [
        ("enqueue", "PENDING", None, "app"),
        ("claim", "RUNNING", 1, "victim"), ("lose", "PENDING", 1, "zombiekeeper"),
        ("claim", "RUNNING", 2, "zombie"), ("lose", "PENDING", 2, "rescuerkeeper"),
        ("claim", "RUNNING", 3, "rescuer"), ("succeed", "SUCCEEDED", 3, "rescuer"),
        ("refused", None, 2, "zombie"),
    ]
    audited(shop)


def test_a_frozen_keeper_stops_nobody_s_recovery(shop: Lab) -> None:
    """No leader, no lock of a session: of two idle workers one stands still, a third is killed at work, and the other takes over in time."""
    ids = [shop.enqueue("full", str(n), queue="third", seconds=3) for n in range(3)]
    third = start(shop, "third", queues="third")
    frozen, awake = (start(shop, name, queues="default,third", slots=1) for name in ("frozen", "awake"))
    until_begun(shop, *map(str, range(3)))
    frozen.ready(), awake.ready()
    shop.freeze(frozen)
    third.kill()
    ends = {id: shop.executions(id)[0].lease_expires_at for id in ids}
    lost = {id: shop.until(lambda id=id: [e for e in shop.app.history(id) if e.event == "lose"], "it is recovered")[0] for id in ids}  # type: ignore[misc]
    late = max((lost[id].at - ends[id]).total_seconds() for id in ids)
    _log.info("frozen keeper: recovered %.2f s after the end of the lease", late)
    assert late <= 2.0
    assert {entry.actor.partition("#")[0] for entry in lost.values()} == {"awake"}
    assert {job.phase for job in shop.until_ended(within=30)} == {"succeeded"}
    assert shop.effects() == dict.fromkeys(["0", "1", "2"], 1)
    audited(shop)


# ---------------------------------------------------------------- long jobs
def test_s8_a_healthy_job_of_three_leases_runs_once(shop: Lab) -> None:
    """Whether it takes its time in a thread or in a process of its own; another worker stands by, and gets nothing."""
    for kind in ("in_thread", "in_child"):
        shop.enqueue(kind, kind, seconds=3 * LEASE)
    start(shop, "first")
    until_begun(shop, "in_thread", "in_child")
    start(shop, "second")
    once = {"in_thread": 1, "in_child": 1}
    assert {(job.phase, job.attempt) for job in shop.until_ended()} == {("succeeded", 1)}
    assert (shop.happened("prepare"), shop.effects()) == (once, once)
    audited(shop)


def test_s9_a_handler_that_keeps_its_event_loop_to_itself_runs_once(shop: Lab) -> None:
    """It computes for three leases, so that no other thread gets much of the processor either; what runs beside it runs once, too."""
    for n in range(3):
        shop.enqueue("full", f"beside-{n}", seconds=0.5)
    shop.enqueue("in_loop", "busy", seconds=3 * LEASE)
    start(shop, "first")
    until_begun(shop, "busy", "beside-0")
    start(shop, "second")
    once = dict.fromkeys(["busy", "beside-0", "beside-1", "beside-2"], 1)
    assert {(job.phase, job.attempt) for job in shop.until_ended(within=30)} == {("succeeded", 1)}
    assert (shop.happened("prepare"), shop.effects()) == (once, once)
    audited(shop)


# ---------------------------------------------------------------- the database goes
Away = Callable[[float], None]


@pytest.fixture(params=["sqlite", "postgres"])
def outage(request: pytest.FixtureRequest, quick_path: Path, tmp_path: Path) -> Iterator[tuple[Lab, Away]]:
    """A laboratory whose database can be away for so many seconds: a server that is stopped, or a file that another process keeps to itself."""
    if request.param == "sqlite":
        place = sqlite_place(quick_path)
        lab = equipped(Lab(place, tmp_path, lease=1.0))

        def away(seconds: float) -> None:
            file = sqlite3.connect(place.url.removeprefix("sqlite:///"), timeout=20, isolation_level=None)
            file.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            file.execute("ROLLBACK")
            file.close()

        yield lab, away
        lab.close()
        place.close()
        return
    with server() as own:
        place = postgres_place(own.url)
        lab = equipped(Lab(place, tmp_path, lease=1.0))

        def stopped(seconds: float) -> None:
            own.stop()
            time.sleep(seconds)
            own.start()
            place.raw.close()
            place._raw = None

        yield lab, stopped
        lab.close()
        place.close()


def test_s3_a_database_that_goes_and_comes_back_costs_nothing(outage: tuple[Lab, Away]) -> None:
    """Away for two leases, with jobs running, finishing and waiting: the worker stays, none is lost, none is doubled, and none has failed."""
    lab, away = outage
    tags = {f"{seconds:g}-{n}": seconds for seconds in (0.1, 1.0, 3.0) for n in range(20)}
    for tag, seconds in tags.items():
        lab.enqueue("full", tag, seconds=seconds)
    worker = start(lab, "worker", slots=40)
    until_begun(lab, "1-0")
    away(2 * lab.setting.lease)
    back = time.monotonic()
    jobs = lab.until_ended(within=60)
    _log.info("S3: all done %.1f s after it came back; attempts %s", time.monotonic() - back, sorted(job.attempt for job in jobs)[-3:])
    assert worker.alive
    assert {job.phase for job in jobs} == {"succeeded"}
    assert lab.effects() == dict.fromkeys(tags, 1)
    assert max(job.attempt for job in jobs) <= 2
    audited(lab)


# ---------------------------------------------------------------- one key
CALLER = """
import json, sys, threading
from tests.crash.program import app

def call(found, barrier):
    barrier.wait()
    try:
        made = app.kinds["full"].using(idempotency_key="one").enqueue(tag="one")
        found.append([made.id, made.created])
    except BaseException as error:
        found.append([repr(error), None])

app.jobs()
print("ready", flush=True)
for line in sys.stdin:
    found, barrier = [], threading.Barrier(8)
    threads = [threading.Thread(target=call, args=(found, barrier)) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps(found), flush=True)
"""


@pytest.fixture
def callers(shop: Lab) -> Iterator[Callable[[], list[tuple[str, bool]]]]:
    """Thirty-two callers in four processes, who ask for one job at once: what each of them was answered."""
    environment = os.environ | shop.setting.environment()
    processes = [
        subprocess.Popen([sys.executable, "-c", CALLER], cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    pipes = [(process.stdin, process.stdout) for process in processes if process.stdin and process.stdout]
    assert [out.readline() for _, out in pipes] == ["ready\n"] * 4

    def ask() -> list[tuple[str, bool]]:
        for into, _ in pipes:
            into.write("go\n")
            into.flush()
        return [(id, created) for _, out in pipes for id, created in json.loads(out.readline())]

    yield ask
    for process in processes:
        process.communicate(timeout=20)


def test_s4_callers_with_one_key_get_one_job(shop: Lab, callers: Callable[[], list[tuple[str, bool]]]) -> None:
    """One job, the same id to all, an error to none; and the same again when it has long been done."""
    answers = callers()
    (id,) = {id for id, _ in answers}
    assert [created for _, created in answers].count(True) == 1
    start(shop, "worker")
    assert shop.until_ended(id)[0].phase == "succeeded"
    assert callers() == [(id, False)] * CALLERS
    assert [job.id for job in shop.app.jobs()] == [id]
    assert shop.effects() == {"one": 1}
    audited(shop)
