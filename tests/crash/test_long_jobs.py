"""Jobs longer than their lease: a healthy worker keeps them, even if a handler blocks its event loop; a hanging worker
gives them up.
"""

from tests.crash.lab import Lab


def test_job_longer_than_three_leases_runs_once(lab: Lab) -> None:
    """A separate thread renews the lease, even while the handler blocks the event loop. A second, idle worker gets no
    job.
    """
    seconds = 3 * lab.setting.lease
    ids = {
        block: lab.enqueue("full", str(block), queue=str(block), seconds=seconds, block=block)
        for block in (False, True)
    }
    for block in ids:
        lab.worker(f"first-{block}", queues=(str(block),))
    lab.until(lambda: len(lab.happened("prepare")) == 2, "both jobs run")
    lab.worker("second", queues=tuple(str(block) for block in ids))
    assert {job.phase for job in lab.until_ended()} == {"succeeded"}
    for id in ids.values():
        (execution,) = lab.executions(id)
        assert (execution.holder, execution.status) == (1, "DONE")
        assert execution.committed_at is not None
        assert (execution.committed_at - execution.leased_at).total_seconds() >= seconds
    once = {"False": 1, "True": 1}
    assert (lab.happened("prepare"), lab.effects(), lab.happened("finish")) == (once, once, once)
    lab.check()


def test_hanging_worker_exits_and_another_takes_over(lab: Lab) -> None:
    """After the hang timeout it renews no lease and exits with 70: a worker process at once, an embedded worker as soon
    as its event loop responds.
    """
    ids = {dies: lab.enqueue("full", str(dies), queue=str(dies), seconds=4, block=True) for dies in (False, True)}
    hung = {dies: lab.worker(f"hung-{dies}", queues=(str(dies),), hang_timeout=1.5, dies=dies) for dies in ids}
    lab.until(lambda: len(lab.happened("prepare")) == 2, "both jobs run")
    assert hung[True].exit_code(within=4) == 70
    assert [(each.status, each.holder) for each in lab.executions(ids[True])] == [("IN_PROGRESS", 1)]
    assert hung[False].exit_code(within=8) == 70
    assert "The event loop has not responded" in hung[False].log
    assert "crash_app.py" in hung[False].log
    late = lab.enqueue("fast", "late", queue="False")
    lab.worker("second", queues=("False", "True"))
    jobs = lab.until_ended(*ids.values(), late)
    assert {job.phase for job in jobs} == {"succeeded"}
    assert lab.effects() == {"False": 1, "True": 1}
    lab.check()
