"""`interlock status` always reports held jobs, queues without a worker, and failures of the last day."""

from dataclasses import replace

import pytest

from interlock.core.lifecycle import builtin
from interlock.core.outcome import FailedFinally, Held, Rejected
from interlock.store import OpenStore
from interlock.store import types as records
from interlock.store.flow_types import Dependency
from interlock.store.types import Lease, NewJob, WorkerFacts
from interlock.worker import heartbeat as leases
from tests.contract.kit import claim_rules, make, settle, taken
from tests.kit import Place
from tests.surface.cli_kit import Call

pytestmark = pytest.mark.usefixtures("here")
STANDARD = builtin("standard")
WORKER = WorkerFacts("ann#1", "host", 17, "Polling", 10, 3, ("greet",), ("default",))


@pytest.fixture
def store(shop: str, place: Place) -> OpenStore:
    """Another process on the shop's database, in real time, with a worker that serves `greet` in `default`."""
    store = place.open(real_time=True)
    store.workers.report(WORKER)
    return store


def greeting(**fields: object) -> NewJob:
    made = make("mail", lifecycle=STANDARD, payload='{"name":"ann"}')
    return replace(made, kind="greet", **fields)  # type: ignore[arg-type]


def claimed(store: OpenStore, queue: str = "default") -> Lease:
    (id,) = [one.id for one in store.queue.enqueue([greeting(queue=queue, priority=9)])]
    (lease,) = store.queue.claim("ann#1", claim_rules("greet", lifecycle=STANDARD), (queue,), 1)
    assert lease.job.id == id
    return lease


def test_held_job_is_listed_among_a_thousand_newer_jobs(call: Call, store: OpenStore) -> None:
    """It is counted and named, and the exit code is 1, however many jobs wait."""
    lease = claimed(store)
    settle(store, lease, Held("did it happen?"))
    store.queue.enqueue([greeting() for _ in range(1001)])
    answer = call("status")
    assert "1 job is held until someone decides" in answer.out
    assert f"{lease.job.id} greet PENDING" in " ".join(answer.out.split())
    assert answer.code == 1
    told = call("status", "--json").json
    assert ([job["id"] for job in told["held"]], told["held_count"], told["healthy"]) == ([lease.job.id], 1, False)


def test_held_jobs_of_one_kind_do_not_hide_those_of_another(call: Call, store: OpenStore) -> None:
    """Each kind and queue is named; the count is the total."""
    for _ in range(25):
        settle(store, claimed(store), Held("look"))
    other = claimed(store, queue="slow")
    settle(store, other, Held("look at this, too"))
    answer = call("status")
    assert "26 jobs are held until someone decides" in answer.out
    assert other.job.id in answer.out
    assert "and 6 more" in answer.out


def test_due_job_in_a_queue_that_no_worker_serves_is_named(call: Call, store: OpenStore) -> None:
    """Its kind is served in another queue: the exit code is 1 until a worker serves this one."""
    store.queue.enqueue([greeting(queue="slow"), greeting(queue="slow"), greeting(queue="later", delay=600.0)])
    answer = call("status")
    assert answer.code == 1
    said = "No live worker serves greet in the queue slow, where 2 are due: start one with --queues slow."
    assert said in answer.lines
    told = call("status", "--json").json
    assert [(one["kind"], one["queue"], one["due"]) for one in told["orphaned_queues"]] == [("greet", "slow", 2)]
    assert told["orphaned_kinds"] == []
    store.workers.report(replace(WORKER, name="bob#1", queues=("slow",)))
    assert call("status").code == 0


def test_kind_and_queue_must_be_served_by_one_worker(call: Call, store: OpenStore) -> None:
    """One worker has the kind and another the queue: neither can claim the job."""
    store.queue.enqueue([greeting(queue="slow")])
    store.workers.report(replace(WORKER, name="bob#1", kinds=("send",), queues=("slow",)))
    assert call("status").code == 1


def test_failed_jobs_of_the_last_day_are_counted_by_kind(call: Call, store: OpenStore) -> None:
    """With the newest ids and the last line of their errors; cancelled and rejected jobs have not failed."""
    failed = [claimed(store) for _ in range(5)]
    for number, lease in enumerate(failed):
        settle(
            store,
            lease,
            FailedFinally(f"Traceback (most recent call last):\n  File x\nValueError: no paper {number}\n"),
        )
    settle(store, claimed(store), Rejected("not today"))
    waiting = store.queue.enqueue([greeting()])[0].id
    assert store.transitions.take([taken(store.inspect.get(waiting))]) == []
    answer = call("status")
    assert answer.code == 1
    assert "5 jobs of greet failed in the last 24 hours; the newest:" in answer.lines
    named = [line.split()[0] for line in answer.lines if "ValueError: no paper" in line]
    assert named == [lease.job.id for lease in failed[:1:-1]]
    assert "Traceback" not in answer.out
    (told,) = call("status", "--json").json["failures"]
    assert (told["kind"], told["count"], len(told["newest"])) == ("greet", 5, 3)


def test_status_finds_no_problem_after_a_redrive(call: Call, store: OpenStore) -> None:
    """A redriven job needs no attention."""
    lease = claimed(store)
    settle(store, lease, FailedFinally("broken"))
    assert call("status").code == 1
    assert call("redrive", lease.job.id).code == 0
    assert call("status").code == 0


def test_list_of_stuck_jobs_ends_at_a_hundred(call: Call, store: OpenStore) -> None:
    """The output says that there are more."""
    store.queue.enqueue([greeting() for _ in range(101)])
    store.queue.claim("ann#1", claim_rules("greet", lease=0.001, lifecycle=STANDARD), ("default",), 101)
    answer = call("status")
    assert answer.code == 1
    assert "and at least 80 more" in answer.out


def test_stuck_jobs_of_one_kind_do_not_hide_those_of_another(call: Call, store: OpenStore) -> None:
    """The oldest of each kind is listed."""
    store.queue.enqueue([greeting() for _ in range(101)])
    store.queue.claim("ann#1", claim_rules("greet", lease=0.001, lifecycle=STANDARD), ("default",), 101)
    (other,) = store.queue.enqueue([replace(greeting(), kind="call")])
    store.queue.claim("ann#1", claim_rules("call", lease=0.001, lifecycle=STANDARD), ("default",), 1)
    assert other.id in call("status").out
    told = call("status", "--json").json["stuck"]
    assert (len(told), told[-1]["job_id"]) == (101, other.id)


def test_silent_worker_counts_as_alive_for_three_heartbeats() -> None:
    """A worker sends a heartbeat at least every ten seconds, so after thirty seconds it counts as dead."""
    assert records.SILENT == 3 * leases.LONGEST_INTERVAL


def test_pauses_are_named_and_are_no_problem(call: Call, store: OpenStore) -> None:
    store.limits.pause("queue", "mail", by="ann", reason="the provider is down")
    store.limits.pause("kind", "greet", by="olga", reason=None)
    answer = call("status")
    assert "The kind greet was paused at" in answer.out
    assert " UTC by ann: the provider is down" in " ".join(answer.out.split())
    assert answer.code == 0
    told = call("status", "--json").json["paused"]
    assert [(one["scope"], one["name"], one["paused_by"], one["pause_reason"]) for one in told] == [
        ("kind", "greet", "olga", None),
        ("queue", "mail", "ann", "the provider is down"),
    ]


def test_blocked_jobs_are_counted_if_there_are_any(call: Call, store: OpenStore) -> None:
    first = greeting()
    store.queue.enqueue([first])
    assert "blocked" not in call("status").out
    store.queue.enqueue([greeting(after=(Dependency(first.id),))])
    counted = [line.split() for line in call("status").out.splitlines() if line.startswith(("kind", "greet"))]
    assert dict(zip(*counted, strict=False))["blocked"] == "1"
