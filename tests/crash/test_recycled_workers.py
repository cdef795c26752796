"""`interlock worker --processes 2 --max-jobs N`: real workers that are replaced again and again while jobs run."""

import re

from tests.crash import supervised_app
from tests.crash.conftest import Labs
from tests.crash.supervised import Supervised, live, until_gone

RECYCLED, AGAIN, BATCH = re.compile(r"the recycled worker sup-\d has ended \(exit code 0\)"), 6, 50
LEASE = 20.0
"""Longer than any delay of a busy machine, so that no lease has to be lost."""


def test_recycled_workers_lose_and_double_no_job(labs: Labs) -> None:
    """Each job has run once, with one effect and all its tries, however often its workers were replaced. There is no
    pause, and a worker retires only when its replacement is ready.
    """
    lab = labs(lease=LEASE)
    app = supervised_app.build(lab.setting)
    app.migrate()
    supervised = Supervised(lab, 2, "--max-jobs", "20", "--slots", "5").ready()
    count, plain = 0, app.kinds["plain"]

    def recycled_again() -> bool:
        nonlocal count
        if lab.happened("prepare").total() > count - BATCH:
            app.enqueue_many(plain.request(tag=str(n), seconds=0.15) for n in range(count, count + BATCH))
            count += BATCH
        return len(RECYCLED.findall(supervised.log)) >= AGAIN

    lab.until(recycled_again, f"workers were recycled {AGAIN} times", within=60)
    lab.until_ended(within=60)
    jobs = app.jobs(limit=count + 1)
    supervised.terminate()
    assert supervised.exit_code() == 0, supervised.log
    assert len(jobs) == count >= 300
    assert {(job.phase, job.attempt, job.tries_left, job.lease_losses) for job in jobs} == {("succeeded", 1, 3, 0)}
    tags = {str(n): 1 for n in range(count)}
    assert (lab.effects(), lab.happened("prepare")) == (tags, tags)
    assert "starts it again" not in supervised.log
    ready = [found.start() for found in re.finditer("the workers are ready", supervised.log)]
    retired = [found.start() for found in re.finditer(r"\] recycled: it has started", supervised.log)]
    assert len(retired) >= AGAIN
    assert all(before < at for before, at in zip(ready[1:], retired, strict=False))
    assert live(lab) == []
    until_gone(supervised.pids)
    lab.check()
    app.close()
