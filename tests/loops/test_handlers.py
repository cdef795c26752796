"""What a handler may answer, and what becomes of its job."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pydantic
import pytest

from interlock import External, Fail, JobFailed, Lifecycle, NotFound, Reject, Retry, Run, Snooze, SyncRun, TransitionRefused
from interlock.events import Measured
from interlock.taxonomy import Verdict
from tests.loops.bench import DELIVERY, DOWNLOAD, IMAGE, STEADY, Bench


class Parcel(pydantic.BaseModel):
    to: str
    grams: int = 0


class HttpError(Exception):
    """As HTTP libraries raise it."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"HTTP {status}")
        self.response = type("Response", (), {"status_code": status, "headers": {name.replace("_", "-"): value for name, value in headers.items()}})()


def raising(bench: Bench, error: BaseException, **options: Any) -> Any:
    """A kind whose handler raises this."""

    @bench.app.job(**{"backoff": STEADY, **options})
    async def work(run: Run) -> None:
        raise error

    return work


# ---------------------------------------------------------------- what it returns
def test_what_an_async_handler_returns_is_the_jobs_result(bench: Bench) -> None:
    """Typed by its signature, both ways."""

    @bench.app.job()
    async def pack(run: Run, parcel: Parcel) -> Parcel:
        return Parcel(to=parcel.to.upper(), grams=parcel.grams + 1)

    job = bench.run_one(pack, Parcel(to="ann", grams=4))
    assert (job.state, job.result) == ("SUCCEEDED", {"to": "ANN", "grams": 5})
    assert pack.result(job.id) == Parcel(to="ANN", grams=5)


def test_a_sync_handler_runs_beside_the_loop_and_returns_the_same_way(bench: Bench) -> None:
    """In a thread of its own, with the facts of its attempt."""

    @bench.app.job()
    def pack(run: SyncRun, grams: int) -> str:
        return f"{run.exec_id == f'{run.job_id}:1'} {run.attempt} {dict(run.payload)} {threading.current_thread() is threading.main_thread()}"

    assert bench.run_one(pack, 5).result == "True 1 {'grams': 5} False"


def test_the_result_is_waited_for_in_both_colours(bench: Bench) -> None:
    """`result` and `aresult` give the value."""

    @bench.app.job()
    async def add(run: Run, a: int, b: int) -> int:
        return a + b

    job = bench.run_one(add, 2, 3)
    assert add.result(job.id) == asyncio.run(add.aresult(job.id)) == 5


def test_the_result_of_a_failed_job_raises_it(bench: Bench) -> None:
    """With the job, and the reason in its sentence."""
    work = raising(bench, Fail("no such user"))
    job = bench.run_one(work)
    for ask in (lambda: work.result(job.id), lambda: asyncio.run(work.aresult(job.id))):
        with pytest.raises(JobFailed, match="ended as FAILED at attempt 1: no such user") as caught:
            ask()
        assert caught.value.job.id == job.id


def test_a_result_that_does_not_come_in_time_is_a_timeout(bench: Bench) -> None:
    """The job goes on; another kind's job is not found."""
    work, other = raising(bench, Fail("never run")), bench.app.job(kind="other")(_none)
    id = bench.add(work)
    for ask in (lambda: work.result(id, timeout=0), lambda: asyncio.run(work.aresult(id, timeout=0))):
        with pytest.raises(TimeoutError, match=r"has not ended within 0 s\. It goes on"):
            ask()
    assert bench.app.get(id).phase == "pending"
    with pytest.raises(NotFound, match="is a work, not a other"):
        other.result(id, timeout=0)


async def _none(run: Run) -> None: ...


# ---------------------------------------------------------------- answers
def test_retry_spends_a_try_and_waits_as_long_as_it_says(bench: Bench) -> None:
    """`after` goes before the kind's backoff."""
    job = bench.run_one(raising(bench, Retry("busy", after=timedelta(minutes=7))))
    assert (job.state, job.phase, job.tries_left, bench.wait_of(job)) == ("PENDING", "pending", 2, 420)
    assert job.last_error == "busy"


def test_retry_without_a_delay_waits_for_the_backoff(bench: Bench) -> None:
    """10, then 20 seconds; with the last try the job fails."""
    job = bench.run_one(raising(bench, Retry("busy")))
    assert bench.wait_of(job) == 10
    job = bench.again(job, 9)
    assert job.attempt == 1
    job = bench.again(job, 1)
    assert (job.attempt, bench.wait_of(job)) == (2, 20)
    job = bench.again(job, 20)
    assert (job.state, job.attempt, job.tries_left) == ("FAILED", 3, 0)


def test_full_jitter_spreads_the_delay_below_the_ceiling(bench: Bench) -> None:
    """Never above it, and not all the same."""
    from interlock import Backoff

    work = raising(bench, Retry("busy"), backoff=Backoff(first=1000, cap=1000))
    jobs = [bench.add(work) for _ in range(8)]
    bench.run()
    waits = {bench.wait_of(bench.app.get(id)) for id in jobs}
    assert all(0 <= wait <= 1000 for wait in waits)
    assert len(waits) > 1


def test_fail_ends_the_job_at_once(bench: Bench) -> None:
    """Whatever tries are left."""
    job = bench.run_one(raising(bench, Fail("no such user")))
    assert (job.state, job.tries_left, job.last_error) == ("FAILED", 3, "no such user")


def test_reject_ends_the_job_where_that_is_drawn(bench: Bench) -> None:
    """As rejected, and never again."""
    job = bench.run_one(raising(bench, Reject("not allowed")))
    assert (job.state, job.phase, job.last_error) == ("REJECTED", "failed", "not allowed")


def test_reject_fails_the_job_where_it_is_not_drawn(bench: Bench) -> None:
    """A delivery knows no rejection."""
    job = bench.run_one(raising(bench, Reject("not allowed"), lifecycle=DELIVERY))
    assert (job.state, job.last_error) == ("FAILED", "not allowed")


def test_snooze_comes_back_after_a_while_and_spends_no_try(bench: Bench) -> None:
    """However often."""
    job = bench.run_one(raising(bench, Snooze("not yet", after=90)))
    for attempt in (1, 2, 3, 4, 5):
        assert (job.phase, job.attempt, job.tries_left, bench.wait_of(job)) == ("pending", attempt, 3, 90)
        job = bench.again(job, 90)
    assert job.last_error is None


def test_snooze_until_a_moment_comes_back_then(bench: Bench) -> None:
    """By the clock of the store; a moment that has passed is now, after the others."""
    naps = [timedelta(hours=3), timedelta(hours=-1)]

    @bench.app.job()
    async def work(run: Run) -> str:
        if naps:
            raise Snooze(until=bench.now() + naps.pop(0))
        return "done"

    job = bench.run_one(work)
    assert bench.wait_of(job) == 3 * 3600
    job = bench.again(job, 3 * 3600)
    assert (job.state, job.attempt, job.tries_left) == ("SUCCEEDED", 3, 3)


# ---------------------------------------------------------------- taxonomy
@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("gone"), HttpError(503), HttpError(429), ValueError("who knows")], ids=repr)
def test_errors_that_may_pass_are_tried_again(bench: Bench, error: Exception) -> None:
    """After the backoff, with the error told."""
    job = bench.run_one(raising(bench, error))
    assert (job.phase, job.tries_left, bench.wait_of(job)) == ("pending", 2, 10)
    assert type(error).__name__ in (job.last_error or "")


@pytest.mark.parametrize("error", [HttpError(403), HttpError(404), HttpError(413), TransitionRefused("no")], ids=repr)
def test_errors_that_will_not_pass_fail_the_job(bench: Bench, error: Exception) -> None:
    """At the first attempt."""
    job = bench.run_one(raising(bench, error))
    assert (job.state, job.attempt) == ("FAILED", 1)


@pytest.mark.parametrize(("asked", "waits"), [("77", 77), ("9", 10), ("0", 10)])
def test_retry_after_is_honoured_and_never_shortens_the_backoff(bench: Bench, asked: str, waits: float) -> None:
    """Else a server that says "at once" would have every try spent in a moment."""
    job = bench.run_one(raising(bench, HttpError(429, Retry_After=asked)))
    assert bench.wait_of(job) == waits


def test_what_the_handler_itself_says_holds_in_place_of_the_backoff(bench: Bench) -> None:
    job = bench.run_one(raising(bench, Retry("soon", after=7)))
    assert (job.phase, bench.wait_of(job)) == ("pending", 7)


def test_a_kinds_own_taxonomy_has_the_first_word(bench: Bench) -> None:
    """And leaves what it does not know to the default."""

    def judge(error: Exception) -> Verdict | None:
        return {KeyError: Verdict(retryable=False), HttpError: Verdict(retryable=True, after=5)}.get(type(error))

    known = bench.run_one(raising(bench, KeyError("x"), kind="known", taxonomy=judge))
    turned = bench.run_one(raising(bench, HttpError(404), kind="turned", taxonomy=judge))
    unknown = bench.run_one(raising(bench, ValueError("x"), kind="unknown", taxonomy=judge))
    assert known.state == "FAILED"
    assert (turned.phase, bench.wait_of(turned)) == ("pending", 5)
    assert (unknown.phase, bench.wait_of(unknown)) == ("pending", 10)


def test_an_error_is_told_with_the_users_own_frames(bench: Bench) -> None:
    """And none of the engine's."""
    job = bench.run_one(raising(bench, ValueError("odd")))
    text = job.last_error or ""
    assert text.endswith("ValueError: odd")
    assert "test_handlers.py" in text
    assert "worker/attempt.py" not in text


def test_no_error_is_retried_where_no_retry_is_drawn(bench: Bench) -> None:
    """A lifecycle without a way back fails at once."""
    once = Lifecycle("once", transitions=[("new", "claim", "busy"), ("busy", "succeed", "done"), ("busy", "fail", "broken"), ("busy", "lose", "new")])
    job = bench.run_one(raising(bench, TimeoutError("slow"), lifecycle=once))
    assert (job.state, job.attempt) == ("broken", 1)


# ---------------------------------------------------------------- stages
def test_stages_are_audited_as_they_come(bench: Bench) -> None:
    """A delivery from its queue to its user; the present stage again is no step."""

    @bench.app.job(lifecycle=DELIVERY)
    async def deliver(run: Run) -> str:
        await run.advance("DOWNLOADING")
        await run.advance("STREAMING")
        return bench.app.get(run.job_id).state

    job = bench.run_one(deliver)
    assert job.result == "STREAMING"
    assert bench.walk(job) == ["claim CLAIMED", "start DOWNLOADING", "advance STREAMING", "succeed DELIVERED"]


def test_a_sync_handler_advances_too(bench: Bench) -> None:
    """The same verbs, without await."""

    @bench.app.job(lifecycle=DELIVERY)
    def deliver(run: SyncRun) -> None:
        run.advance("STREAMING")

    assert bench.run_one(deliver).state == "DELIVERED"


@pytest.mark.parametrize("caught", [True, False])
def test_a_stage_that_is_not_drawn_is_refused_where_it_is_asked_for(bench: Bench, caught: bool) -> None:
    """The handler may go on; if it does not, the job fails with that sentence."""

    @bench.app.job(lifecycle=DELIVERY)
    async def deliver(run: Run) -> None:
        try:
            await run.advance("DELIVERED")
        except TransitionRefused:
            if not caught:
                raise
            await run.advance("STREAMING")

    job = bench.run_one(deliver)
    assert job.state == ("DELIVERED" if caught else "FAILED")
    if not caught:
        assert "advances to STREAMING, not to DELIVERED" in (job.last_error or "")
        assert job.attempt == 1


def test_a_value_returned_where_no_succeed_is_drawn_fails_the_job_before_its_commit(bench: Bench) -> None:
    """With a sentence that says from where it could succeed."""
    committed: list[str] = []

    @bench.app.job(lifecycle=DELIVERY)
    async def deliver(run: Run) -> int:
        return 1

    @deliver.commit
    def record(tx: Any, job: Any, value: int) -> None:
        committed.append("committed")

    job = bench.run_one(deliver)
    assert (job.state, committed) == ("FAILED", [])
    assert "A value was returned in DOWNLOADING, which draws no `succeed`: a job of delivery succeeds from STREAMING" in (job.last_error or "")


# ---------------------------------------------------------------- progress and measures
@pytest.mark.parametrize("ends_well", [True, False])
def test_progress_and_measures_are_stored_also_for_a_job_that_ends_before_its_first_beat(bench: Bench, ends_well: bool) -> None:
    """They travel with its last move."""

    @bench.app.job()
    async def work(run: Run) -> None:
        run.progress(1, 4, "one")
        run.progress(3, 4, "three")
        run.measure("pages", 2)
        run.measure("pages", 3)
        run.measure("seconds", 0.5)
        if not ends_well:
            raise Fail("paper is out")

    job = bench.run_one(work)
    last = bench.last(job)
    assert last.progress == (3, 4, "three")
    assert last.usage == {"pages": 5, "seconds": 0.5}
    assert [(event.name, event.value) for event in bench.heard(Measured)] == [("pages", 2), ("pages", 3), ("seconds", 0.5)]


# ---------------------------------------------------------------- the lifecycles of the documents
def test_an_image_that_fails_rests_and_is_buried_after_its_last_try(bench: Bench) -> None:
    """It rests in `failed`, the claim walks both arrows, and its end is `dead_letter`."""
    job = bench.run_one(raising(bench, ValueError("no gpu"), lifecycle=IMAGE, tries=2))
    assert (job.state, job.phase, bench.wait_of(job)) == ("failed", "pending", 10)
    job = bench.again(job, 10)
    assert (job.state, job.phase) == ("dead_letter", "failed")
    assert bench.walk(job) == ["claim running", "fail failed", "retry queued", "claim running", "fail failed", "bury dead_letter"]


def test_an_image_completes_or_is_rejected(bench: Bench) -> None:
    """The other two ends."""

    @bench.app.job(lifecycle=IMAGE)
    async def paint(run: Run, safe: bool) -> str:
        if not safe:
            raise Reject("unsafe prompt")
        return "image.png"

    assert bench.run_one(paint, True).state == "completed"
    assert bench.run_one(paint, False).state == "rejected"


def test_a_delivery_is_retried_from_its_stage(bench: Bench) -> None:
    """Back to its queue, and then all the way."""
    tried: list[int] = []

    @bench.app.job(lifecycle=DELIVERY, backoff=STEADY)
    async def deliver(run: Run) -> None:
        tried.append(run.attempt)
        await run.advance("STREAMING")
        if run.attempt == 1:
            raise ConnectionResetError("the user's phone is off")

    job = bench.again(bench.run_one(deliver), 10)
    assert (job.state, tried) == ("DELIVERED", [1, 2])
    assert "retry QUEUED" in bench.walk(job)


def test_a_download_that_a_handler_does_itself_walks_its_arrows(bench: Bench) -> None:
    """It starts, and completes; an error on the way finds no way back."""

    @bench.app.job(lifecycle=DOWNLOAD)
    async def fetch(run: Run, good: bool) -> None:
        if not good:
            raise TimeoutError("slow")

    assert bench.walk(bench.run_one(fetch, True)) == ["start downloading", "succeed completed"]
    assert bench.walk(bench.run_one(fetch, False)) == ["start downloading", "fail failed"]


def test_a_download_that_goes_on_elsewhere_stays_queued_until_its_reconciler_says_that_it_began(bench: Bench) -> None:
    """An error before it was handed over leaves it where it waits; then it is handed over, and no worker's lease is on it."""
    fails = [TimeoutError("slow")]

    @bench.app.job(lifecycle=DOWNLOAD, backoff=STEADY)
    async def fetch(run: Run) -> External[str]:
        if fails:
            raise fails.pop()
        return External("hash-1")

    @fetch.reconcile(every=15)
    async def ask(ids: Any) -> Any:
        return {}

    job = bench.run_one(fetch)
    assert (job.state, job.phase, bench.wait_of(job)) == ("queued", "pending", 10)
    job = bench.again(job, 10)
    last = bench.last(job)
    assert (job.state, job.phase, last.status, last.external_id, last.lease_owner) == ("queued", "running", "IN_PROGRESS", "hash-1", "external:fetch")
    assert bench.walk(job) == []
