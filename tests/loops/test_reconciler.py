"""The reconciler asks the external system about a batch of jobs and moves each job according to the answer."""

from typing import Any

import pytest

from interlock import Completed, Fail, Failed, Gone, InProgress, Job, Lifecycle, Reject, Retry, Snooze
from interlock.telemetry.events import AttemptEnded, ExternalCheckSucceeded, WorkerError
from tests.loops.handler_bench import DELIVERY, IMAGE
from tests.loops.reconciler_bench import MINE, ExternalWork, HandoverBench

STANDARD = Lifecycle(
    "plain", transitions=[("waiting", "claim", "doing"), ("doing", "succeed", "done"), ("doing", "fail", "broken")]
)


# ---------------------------------------------------------------- requests
def test_one_request_for_a_batch_contains_each_id_once(harbour: HandoverBench) -> None:
    """Two jobs may wait for the same external id; both get the answer."""
    first, second, third = harbour.hand("same", "other", "same")
    harbour.outside.known = {"same": Completed("v"), "other": InProgress()}
    assert harbour.once() == 3
    assert [sorted(ids) for ids in harbour.outside.asked] == [["other", "same"]]
    assert [harbour.state(id) for id in (first, second, third)] == ["completed", "queued", "completed"]
    assert [(event.kind, event.count) for event in harbour.told(ExternalCheckSucceeded)] == [("fetch", 2)]


def test_job_is_checked_only_when_it_is_due(harbour: HandoverBench) -> None:
    """The next check is due one interval after the last request."""
    (id,) = harbour.hand("a", check_in=10.0)
    harbour.outside.known = {"a": InProgress()}
    looked = [harbour.once(after=seconds) for seconds in (0.0, 9.9, 0.1, 14.9, 0.1)]
    assert (looked, len(harbour.outside.asked), harbour.next_check(id)) == ([0, 0, 1, 0, 1], 2, 15.0)


def test_slow_answer_does_not_delay_the_next_check(harbour: HandoverBench) -> None:
    """The response time is part of the interval."""
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": InProgress()}
    harbour.outside.meanwhile = [lambda: harbour.advance(4)]
    harbour.once()
    assert harbour.next_check(id) == 11.0


def test_each_kind_asks_its_own_external_system(harbour: HandoverBench) -> None:
    """Protocol 4: a reconciler ignores executions of other kinds."""
    ran_elsewhere = ExternalWork()
    upload = harbour.declare("upload", outside=ran_elsewhere)
    (mine,), (theirs,) = harbour.hand("a"), harbour.hand("b", kind=upload)
    harbour.outside.known, ran_elsewhere.known = {"a": Completed("v"), "b": Completed("wrong")}, {"b": InProgress(1, 2)}
    assert harbour.once() == 1
    assert (harbour.state(mine), harbour.state(theirs), harbour.outside.asked, ran_elsewhere.asked) == (
        "completed",
        "queued",
        [["a"]],
        [],
    )
    assert harbour.once(harbour.reconciler(upload)) == 1
    assert (harbour.state(theirs), ran_elsewhere.asked) == ("downloading", [["b"]])


# ---------------------------------------------------------------- work in progress
def test_work_in_progress_takes_start_once_and_stores_its_progress(harbour: HandoverBench) -> None:
    """The second check makes no transition and stores the new progress."""
    (id,) = harbour.hand("a")
    for done in (1.0, 2.0):
        harbour.outside.known = {"a": InProgress(done, 4, "seeds: 3")}
        harbour.once(after=15)
        assert harbour.last(id).progress == (done, 4.0, "seeds: 3")
    assert (harbour.state(id), harbour.walk(id)) == ("downloading", ["start downloading"])
    assert harbour.store.inspect.history(id)[-1].actor == MINE
    assert (harbour.get(id).phase, harbour.next_check(id)) == ("running", 15.0)


def test_known_work_without_progress_keeps_its_state(harbour: HandoverBench) -> None:
    """No progress is stored either."""
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": InProgress()}
    harbour.once()
    assert (harbour.state(id), harbour.walk(id), harbour.last(id).progress, harbour.next_check(id)) == (
        "queued",
        [],
        None,
        15.0,
    )


def test_only_progress_is_stored_if_the_lifecycle_has_no_start(harbour: HandoverBench) -> None:
    """A progress of 0 is stored too."""
    (id,) = harbour.hand("a", kind=(plain := harbour.declare("plain", STANDARD)))
    harbour.outside.known = {"a": InProgress(0)}
    harbour.once(harbour.reconciler(plain))
    assert (harbour.state(id), harbour.walk(id), harbour.last(id).progress) == (
        "doing",
        ["claim doing"],
        (0.0, None, ""),
    )


def test_unreadable_progress_stops_no_other_job(harbour: HandoverBench) -> None:
    """The answer still proves that the work exists."""
    good, bad = harbour.hand("good", "bad")
    harbour.outside.known = {"good": InProgress(1, 2), "bad": InProgress("half of it")}  # type: ignore[dict-item] - what a careless function answers
    harbour.once()
    assert (harbour.state(good), harbour.state(bad), harbour.next_check(bad), harbour.last(bad).missing_since) == (
        "downloading",
        "queued",
        15.0,
        None,
    )
    assert [bad in event.where for event in harbour.told(WorkerError)] == [True]


# ---------------------------------------------------------------- ended work
def test_completed_work_is_committed_in_the_transaction_of_its_success(harbour: HandoverBench) -> None:
    """A queued job takes two transitions. Both are in the audit, and the hooks of both states run."""

    @harbour.fetch.commit
    def record(tx: Any, job: Job, value: str) -> None:
        harbour.ledger.write(tx, job, f"{value} from {job.state}")

    for state in ("downloading", "completed"):
        harbour.fetch.on_enter(state)(lambda tx, job: harbour.ledger.write(tx, job, f"in {job.state}"))
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed("film")}
    harbour.once()
    assert (harbour.get(id).state, harbour.get(id).result, harbour.last(id).status) == ("completed", "film", "DONE")
    assert harbour.walk(id) == ["start downloading", "succeed completed"]
    assert [entry.actor for entry in harbour.store.inspect.history(id)[-2:]] == [MINE, MINE]
    assert harbour.ledger.rows == ["film from queued", "in completed", "in downloading"]
    assert [(event.outcome, event.waited, event.ran) for event in harbour.told(AttemptEnded)] == [
        ("succeed", None, None)
    ]


def test_work_seen_in_progress_takes_only_the_remaining_transition(harbour: HandoverBench) -> None:
    """Each answer adds one transition."""
    (id,) = harbour.hand("a")
    for answer in (InProgress(1, 2), Completed("film")):
        harbour.outside.known = {"a": answer}
        harbour.once(after=15)
    assert harbour.walk(id) == ["start downloading", "succeed completed"]


def test_value_of_a_wrong_type_fails_the_job(harbour: HandoverBench) -> None:
    """The error names the expected type, and nothing is committed."""
    harbour.fetch.commit(lambda tx, job, value: pytest.fail("it was committed"))
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed(7)}
    harbour.once()
    assert harbour.state(id) == "failed"
    assert "str" in (harbour.get(id).last_error or "")


@pytest.mark.parametrize(
    ("answer", "lifecycle", "state", "reason"),
    [
        (Failed("tracker: gone"), None, "failed", "tracker: gone"),
        (Gone("by hand"), None, "canceled", "by hand"),
        (Gone(), None, "canceled", "cancelled in the external system"),
        (Gone("by hand"), STANDARD, "broken", "by hand"),
        (Failed("no"), IMAGE, "dead_letter", "no"),
    ],
    ids=repr,
)
def test_work_that_ended_in_the_external_system_ends_the_job(
    harbour: HandoverBench, answer: Any, lifecycle: Lifecycle | None, state: str, reason: str
) -> None:
    """Work cancelled there cancels the job if the lifecycle allows it, and otherwise fails it."""
    kind = harbour.declare("other", lifecycle) if lifecycle else harbour.fetch
    (id,) = harbour.hand("a", kind=kind)
    harbour.outside.known = {"a": answer}
    harbour.once(harbour.reconciler(kind))
    job = harbour.get(id)
    assert (job.state, job.phase, job.tries_left, harbour.store.inspect.history(id)[-1].reason) == (
        state,
        "failed",
        3,
        reason,
    )
    assert [event.outcome for event in harbour.told(AttemptEnded)] == [harbour.last(id).ended_by]


def test_value_fails_the_job_if_its_state_does_not_allow_succeed(harbour: HandoverBench) -> None:
    """The job fails before its commit function runs."""
    kind = harbour.declare("deliver", DELIVERY)
    (id,) = harbour.hand("a", kind=kind)
    harbour.outside.known = {"a": Completed("v")}
    harbour.once(harbour.reconciler(kind))
    assert (harbour.state(id), harbour.last(id).status) == ("FAILED", "ABORTED")


# ---------------------------------------------------------------- missing work
def test_missing_work_fails_the_job_after_the_grace(harbour: HandoverBench) -> None:
    """The start of the grace is stored once, and the state does not change during it."""
    (id,) = harbour.hand("a")
    since = harbour.store.inspect.now()
    for _ in range(4):
        harbour.once()
        assert (harbour.state(id), harbour.last(id).missing_since, harbour.next_check(id)) == ("queued", since, 15.0)
        harbour.advance(15)
    harbour.once()
    job = harbour.get(id)
    assert (
        job.state,
        job.last_error,
        harbour.store.inspect.history(id)[-1].reason,
        harbour.last(id).missing_since,
    ) == (
        "failed",
        "missing_external_job",
        "missing_external_job",
        since,
    )


@pytest.mark.parametrize(
    ("seconds", "state"), [(59.0, "queued"), (59.999, "queued"), (60.0, "failed"), (600.0, "failed")]
)
def test_grace_is_exact(harbour: HandoverBench, seconds: float, state: str) -> None:
    """The job fails after 60 seconds and not after 59."""
    (id,) = harbour.hand("a")
    harbour.once()
    harbour.once(after=seconds)
    assert (len(harbour.outside.asked), harbour.state(id)) == (2, state)


def test_work_that_reappears_has_its_full_grace_again(harbour: HandoverBench) -> None:
    """The grace starts again when the work goes missing again."""
    (id,) = harbour.hand("a")
    harbour.once()
    harbour.outside.known = {"a": InProgress()}
    harbour.once(after=59)
    assert harbour.last(id).missing_since is None
    harbour.outside.known = {}
    harbour.once(after=59)
    since = harbour.store.inspect.now()
    assert (harbour.state(id), harbour.last(id).missing_since) == ("queued", since)
    harbour.once(after=59)
    assert (harbour.state(id), harbour.last(id).missing_since) == ("queued", since)
    harbour.once(after=15)
    assert harbour.state(id) == "failed"


def test_missing_work_affects_no_other_job(harbour: HandoverBench) -> None:
    """Each job has its own grace."""
    gone, there = harbour.hand("gone", "there")
    harbour.outside.known = {"there": InProgress(1, 2)}
    harbour.once()
    harbour.once(after=60)
    assert [harbour.state(id) for id in (gone, there)] == ["failed", "downloading"]


# ---------------------------------------------------------------- failing commit functions and hooks
@pytest.mark.parametrize(
    ("error", "tries", "wait"),
    [
        (ConnectionResetError("no disk"), 2, 10),
        (Retry("no disk", after=33), 2, 33),
        (Snooze("no disk", after=44), 3, 44),
    ],
    ids=repr,
)
def test_failed_commit_function_is_retried_after_another_check(
    harbour: HandoverBench, error: Exception, tries: int, wait: float
) -> None:
    """The external work is not repeated; only the commit is, and it costs a try unless it raised `Snooze`.

    A failed commit is rolled back completely.
    """
    errors = [error]

    @harbour.fetch.commit
    def record(tx: Any, job: Job, value: str) -> None:
        harbour.ledger.write(tx, job, value)
        if errors:
            raise errors.pop()

    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed("film")}
    harbour.once()
    job = harbour.get(id)
    assert (job.state, job.tries_left, harbour.next_check(id), harbour.ledger.rows, harbour.walk(id)) == (
        "queued",
        tries,
        wait,
        [],
        [],
    )
    assert ("no disk" in (job.last_error or ""), harbour.remarks(id)) == (
        (True, ["commit_failed"]) if tries == 2 else (False, [])
    )
    assert harbour.told(AttemptEnded) == []
    harbour.once(after=wait)
    assert (harbour.state(id), harbour.get(id).attempt, harbour.ledger.rows) == ("completed", 1, ["film"])


@pytest.mark.parametrize(
    ("error", "looks"), [(ConnectionResetError("no disk"), 3), (Fail("no disk"), 1), (Reject("no disk"), 1)], ids=repr
)
def test_commit_function_that_always_raises_fails_the_job(harbour: HandoverBench, error: Exception, looks: int) -> None:
    """The job fails after its tries, or at once for `Fail` and `Reject`, and emits one `AttemptEnded`."""
    harbour.fetch.commit(lambda tx, job, value: _throw(error))
    (id,) = harbour.hand("a")
    harbour.outside.known = {"a": Completed("film")}
    for _ in range(5):
        harbour.once(after=60)
    job = harbour.get(id)
    assert (job.state, len(harbour.outside.asked), harbour.last(id).status) == ("failed", looks, "ABORTED")
    assert "no disk" in (job.last_error or "")
    assert [event.outcome for event in harbour.told(AttemptEnded)] == ["fail"]


def _throw(error: Exception) -> None:
    raise error


def test_failing_hook_keeps_the_state_and_stops_no_other_job(harbour: HandoverBench) -> None:
    """The transition is retried with the next check."""
    broken = ["bad"]

    @harbour.fetch.on_enter("downloading")
    def enter(tx: Any, job: Job) -> None:
        if job.payload["name"] in broken:
            raise RuntimeError("the hook is broken")

    bad, good = harbour.hand("bad", "good")
    harbour.outside.known = {"bad": InProgress(1, 2), "good": InProgress(1, 2)}
    harbour.once()
    assert (harbour.state(bad), harbour.state(good)) == ("queued", "downloading")
    broken.clear()
    harbour.once(after=15)
    assert harbour.state(bad) == "downloading"
