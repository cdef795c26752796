"""A redrive of a failed job re-opens what waits for it."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from interlock.core.blocked_jobs import OnFailed
from interlock.errors import UsageError
from tests.loops.pipeline import Pipeline


def test_cancelled_flow_continues_when_its_last_failed_part_is_redriven(pipeline: Pipeline) -> None:
    """The final job and what waits for it run once, with the results of all parts."""
    pipeline.broken = {1, 3}
    with pipeline.app.flow("import") as flow:
        parts = flow.batch("parts", [pipeline.part.request(n) for n in range(5)])
        final = flow.add(pipeline.total.request(), after=[parts])
        flow.add(pipeline.report.request(), after=[final])
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == pipeline.ends("report") == [("CANCELLED", None)]
    first, second = pipeline.failed_parts()
    pipeline.broken = set()
    pipeline.app.redrive(first, by="ann")
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == [("CANCELLED", None)]
    pipeline.app.redrive(second, by="ann")
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == [("CANCELLED", None), ("SUCCEEDED", 10)]
    assert pipeline.ends("report") == [("CANCELLED", None), ("SUCCEEDED", 10)]
    progress = parts.progress()
    assert (progress.total, progress.succeeded, progress.failed) == (5, 5, 0)
    again = pipeline.app.jobs(kind="total", state="SUCCEEDED")[0]
    assert again.redrive_of == final.id
    assert pipeline.app.verify().violations == []


def test_bulk_redrive_reopens_the_flow_once(pipeline: Pipeline) -> None:
    pipeline.broken = {0, 1, 2, 3}
    with pipeline.app.flow("import") as flow:
        parts = flow.batch("parts", [pipeline.part.request(n) for n in range(5)])
        flow.add(pipeline.total.request(), after=[parts])
    pipeline.app.run_until_idle()
    pipeline.broken = set()
    result = pipeline.app.bulk.redrive(kind="part", by="ann")
    assert result.changed == 4
    assert pipeline.app.bulk.redrive(kind="part", by="ann").changed == 0
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == [("CANCELLED", None), ("SUCCEEDED", 10)]


def test_flow_that_fails_again_is_cancelled_again(pipeline: Pipeline) -> None:
    pipeline.broken = {1}
    with pipeline.app.flow("import") as flow:
        bad = flow.add(pipeline.part.request(1))
        flow.add(pipeline.total.request(), after=[bad])
    pipeline.app.run_until_idle()
    pipeline.app.redrive(bad.id, by="ann")
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == [("CANCELLED", None)] * 2
    pipeline.broken = set()
    pipeline.app.redrive(pipeline.failed_parts()[-1], by="ann")
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == [("CANCELLED", None)] * 2 + [("SUCCEEDED", 1)]


@pytest.mark.parametrize("whole_batch", [False, True])
def test_held_dependent_of_a_redriven_job_is_blocked_again(pipeline: Pipeline, whole_batch: bool) -> None:
    """It is the same job, and nobody has to release it."""
    pipeline.broken = {1}
    with pipeline.app.flow("import") as flow:
        parts = flow.batch("parts", [pipeline.part.request(n) for n in range(3)])
        needed = [parts] if whole_batch else [flow.add(pipeline.part.request(1))]
        final = flow.add(pipeline.total.request(), after=needed, on_failed="hold")
    pipeline.app.run_until_idle()
    assert final.job().held_reason is not None
    pipeline.broken = set()
    for id in pipeline.failed_parts():
        pipeline.app.redrive(id, by="ann")
    assert (final.job().held_reason, final.job().blocked_at is None) == (None, False)
    assert "block" in [entry.event for entry in pipeline.app.history(final.id)]
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == [("SUCCEEDED", 3 if whole_batch else 1)]


@pytest.mark.parametrize("policy", ["cancel", "run"])
def test_redriven_dependent_does_not_wait_for_failed_dependencies(pipeline: Pipeline, policy: OnFailed) -> None:
    """An operator who redrives it wants it to run, with the results that there are."""
    pipeline.broken = {1}
    with pipeline.app.flow("import") as flow:
        parts = flow.batch("parts", [pipeline.part.request(n) for n in range(4)])
        final = flow.add(pipeline.total.request(), after=[parts], on_failed=policy)
    pipeline.app.run_until_idle()
    if policy == "run":
        assert pipeline.ends("total") == [("SUCCEEDED", 5)]
        return
    pipeline.app.redrive(final.id, by="ann", reason="go on without it")
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == [("CANCELLED", None), ("SUCCEEDED", 5)]


def test_flow_that_an_operator_cancelled_stays_cancelled(pipeline: Pipeline) -> None:
    pipeline.broken = {1}
    with pipeline.app.flow("import") as flow:
        bad = flow.add(pipeline.part.request(1))
        final = flow.add(pipeline.total.request(), after=[bad], on_failed="hold")
    pipeline.app.run_until_idle()
    pipeline.app.cancel(final.id, by="ann", reason="not needed")
    pipeline.broken = set()
    pipeline.app.redrive(bad.id, by="ann")
    pipeline.app.run_until_idle()
    assert pipeline.ends("total") == [("CANCELLED", None)]


def test_two_operators_reopen_a_flow_once(pipeline: Pipeline) -> None:
    """Each redrives one of two failed parts at the same time; the second one sees the first."""
    for _ in range(5):
        pipeline.broken = {1, 3}
        with pipeline.app.flow("import") as flow:
            parts = flow.batch("parts", [pipeline.part.request(n) for n in range(5)])
            final = flow.add(pipeline.total.request(), after=[parts])
        pipeline.app.run_until_idle()
        failed = [job.id for job in parts.jobs(phase="failed")]
        pipeline.broken = set()
        barrier = Barrier(len(failed))

        def redrive(id: str, barrier: Barrier = barrier) -> None:
            barrier.wait()
            pipeline.app.redrive(id, by="ann")

        with ThreadPoolExecutor(len(failed)) as threads:
            list(threads.map(redrive, failed))
        pipeline.app.run_until_idle()
        again = [job for job in pipeline.app.jobs(kind="total") if job.redrive_of == final.id]
        assert [(job.state, job.result) for job in again] == [("SUCCEEDED", 10)]


def test_delete_says_which_jobs_others_still_wait_for(pipeline: Pipeline) -> None:
    """Also of a job that had ended before the other one was enqueued."""
    first = pipeline.part.enqueue(1)
    pipeline.app.run_until_idle()
    slow = pipeline.report.using(delay=3600).enqueue()
    pipeline.total.using(after=[first, slow]).enqueue()
    result = pipeline.app.bulk.delete(kind="part", by="ann")
    assert (result.changed, result.skipped) == (0, {"another job still waits for it or its batch": 1})
    assert first.job().result == 1


def test_stored_flow_takes_no_more_jobs(pipeline: Pipeline) -> None:
    with pipeline.app.flow("import") as flow:
        flow.add(pipeline.part.request(1))
    with pytest.raises(UsageError, match="The flow import is stored already: add its jobs and dependencies inside"):
        flow.add(pipeline.report.request())


def test_cycle_is_refused_when_the_flow_is_stored(pipeline: Pipeline) -> None:
    """A flow ends after its own jobs, so a job of it that waits for it would wait forever. Nothing is stored."""
    with (
        pytest.raises(UsageError, match=r"The flow import has a cycle.*import.*Nothing was stored"),
        pipeline.app.flow("import") as flow,
    ):
        parts = flow.batch("parts", [pipeline.part.request(1)], after=[flow])
        flow.add(pipeline.total.request(), after=[parts])
    assert pipeline.app.jobs() == []
