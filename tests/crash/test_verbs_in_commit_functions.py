"""Commit functions that call methods of their app, in real workers: the next job is stored with the commit, and no
worker waits for itself.
"""

from collections import Counter

from tests.crash.lab import Lab
from tests.crash.scenario_kit import audited, equipped
from tests.crash.worker_command import start

KINDS = ("chain", "chain_child")


def test_jobs_enqueued_by_commit_functions_survive_a_killed_worker(lab: Lab) -> None:
    """Each job is followed by exactly one job, whichever worker committed it, and whether its handler ran in the worker
    or in its own process.
    """
    shop = equipped(lab)
    tags = [f"{kind}-{n}" for n in range(10) for kind in KINDS]
    for tag in tags:
        shop.enqueue(tag.partition("-")[0], tag)
    first = start(shop, "first")
    shop.until(lambda: len(shop.app.jobs(kind="followed", limit=100)) >= 3, "some are followed")
    first.kill()
    start(shop, "second")
    shop.until(
        lambda: len(shop.app.jobs(kind="followed", phase="succeeded", limit=100)) >= len(tags),
        "all are followed",
        within=60,
    )
    shop.until_ended(within=40)
    assert Counter(job.payload["tag"] for job in shop.app.jobs(kind="followed", limit=100)) == dict.fromkeys(tags, 1)
    assert shop.effects() == dict.fromkeys(tags, 1)
    audited(shop)


def test_forbidden_call_in_a_commit_function_fails_only_its_own_job(lab: Lab) -> None:
    """The worker continues with other jobs at once; it does not treat the error as an unreachable database."""
    shop = equipped(lab)
    meddlers = [shop.enqueue("meddler", f"meddler-{n}") for n in range(3)]
    worker = start(shop, "worker", slots=1)
    good = shop.enqueue("chain", "good")
    jobs = shop.until_ended(*meddlers, good)
    assert [job.state for job in jobs] == ["FAILED"] * 3 + ["SUCCEEDED"]
    sentence = "UsageError: app.cancel cannot run inside a transaction"
    assert all(sentence in (job.last_error or "").splitlines()[-1] for job in jobs[:3])
    shop.until_ended()
    assert worker.alive
    audited(shop)
