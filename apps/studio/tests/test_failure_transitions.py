"""Transitions D and E of the specification: failures, dead letters and rejections."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from apps.studio.jobs import BACKOFF, MAX_RETRIES, MAX_RETRY_AFTER, SAFE_BLOCK
from apps.studio.ledger import Balance
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.scenarios import (
    AFTER_ANY_BACKOFF,
    BURIED,
    FAILED,
    RETRIED,
    assert_consistent,
    broken,
    queued,
)
from apps.studio.tests.studio_kit import BEGUN, QUEUED, StudioKit
from interlock import Backoff

ENTRIES = "SELECT entry, amount FROM studio_entries WHERE job_id = :job ORDER BY id"
SEEN = 'SELECT status, "retryCount", "resultUrl" FROM studio_jobs WHERE id = :job'


def settled(kit: StudioKit, job: str) -> list[str]:
    """The settlement entries of a job, in order."""
    return [entry for entry, _ in kit.rows(ENTRIES, job=job)]


@pytest.fixture
def unlucky(kit: StudioKit) -> None:
    """Use the longest random backoff."""
    kit.studio.image.spec.backoff = Backoff(BACKOFF.first, factor=BACKOFF.factor, cap=BACKOFF.cap, jitter=False)


# ---------------------------------------------------------------- D. running -> failed
ERRORS = {
    "500": Fault.trouble(500),
    "502": Fault.trouble(502),
    "503": Fault.trouble(503),
    "429": Fault.limited(3),
    "408": Fault.trouble(408),
    "time-out": Fault.hang(),
    "cut": Fault.cut(),
    "torn": Fault.torn(),
    "garbage": Fault.garbage(),
    "no image": Fault.no_image(),
    "no base64": Fault.no_base64(),
    "no picture": Fault.wrong_type(),
}
HOPELESS = {
    "401": Fault.unauthorized(),
    "404": Fault.trouble(404),
    "400": Fault.trouble(400),
    "billing": Fault(403, "billing_hard_limit_reached"),
}


@pytest.mark.parametrize("fault", list(ERRORS.values()), ids=list(ERRORS))
def test_temporary_error_counts_a_failure_and_queues_the_job(
    kit: StudioKit, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.images.fail(fault)
    user = kit.user(credits=1)
    job = kit.order(user)
    # Only the first attempt has a short timeout: on a busy machine, the second one would fail by it.
    with monkeypatch.context() as short:
        short.setattr(kit.studio.dependencies.provider, "_timeout", 0.5)
        kit.run()
    assert (kit.transitions(job), kit.rows(SEEN, job=job)) == (FAILED, [("failed", 1, None)])
    assert kit.balance(user.id) == Balance(granted=1, available=0, reserved=1, captured=0, forfeited=0)
    assert kit.app.get(job).last_error
    assert kit.app.get(job).due_at > kit.clock.now()
    kit.check()
    kit.run_after(AFTER_ANY_BACKOFF)
    assert (kit.transitions(job), len(kit.images.asked)) == ([*RETRIED, ("running", "completed")], 2)
    assert kit.rows(SEEN, job=job) == [("completed", 1, f"originals/{job}")]
    assert_consistent(kit)


def test_unreachable_api_counts_a_failure(kit: StudioKit) -> None:
    job = queued(kit)
    kit.images.down()
    kit.run()
    assert kit.rows(SEEN, job=job) == [("failed", 1, None)]
    kit.images.up()
    kit.run_after(AFTER_ANY_BACKOFF)
    assert kit.state(job) == "completed"
    assert_consistent(kit)


@contextmanager
def full(_: StudioKit) -> Iterator[None]:
    usage = shutil.disk_usage("/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
        yield


@contextmanager
def unwritable(kit: StudioKit) -> Iterator[None]:
    kit.directory.mkdir()
    (kit.directory / "staged").write_text("a file in its place")
    yield
    (kit.directory / "staged").unlink()


@pytest.mark.parametrize("storage", [full, unwritable], ids=lambda storage: storage.__name__)
def test_provider_is_not_called_without_storage(
    kit: StudioKit, storage: Callable[[StudioKit], AbstractContextManager[None]]
) -> None:
    """Otherwise each attempt would pay for a lost image."""
    job = queued(kit)
    with storage(kit):
        kit.run()
        assert (kit.transitions(job), kit.rows(SEEN, job=job)) == (FAILED, [("failed", 1, None)])
        assert "The storage" in (kit.app.get(job).last_error or "")
        kit.run_after(AFTER_ANY_BACKOFF)
        assert (kit.rows(SEEN, job=job), kit.images.asked) == ([("failed", 2, None)], [])
    kit.run_after(AFTER_ANY_BACKOFF)
    assert (kit.state(job), len(kit.images.asked)) == ("completed", 1)
    assert_consistent(kit)


@pytest.mark.usefixtures("unlucky")
def test_backoff_is_exponential_and_is_respected(kit: StudioKit) -> None:
    kit.images.fail(*[Fault.trouble()] * MAX_RETRIES)
    job, pauses = queued(kit), []
    kit.run()
    for failure in range(1, MAX_RETRIES):
        assert kit.rows(SEEN, job=job) == [("failed", failure, None)]
        pause = (kit.app.get(job).due_at - kit.clock.now()).total_seconds()
        pauses.append(pause)
        kit.run_after(pause - 1)
        assert len(kit.images.asked) == failure
        kit.run_after(1)
        assert len(kit.images.asked) == failure + 1
    assert pauses == [BACKOFF.first * BACKOFF.factor**n for n in range(MAX_RETRIES - 1)]
    assert all(after > 2 * before for before, after in itertools.pairwise(pauses))
    assert kit.state(job) == "dead_letter"
    assert_consistent(kit)


@pytest.mark.parametrize(("asked", "waits"), [(BACKOFF.first, BACKOFF.first), (250, 250.0), (7200, MAX_RETRY_AFTER)])
def test_retry_after_is_respected(kit: StudioKit, asked: float, waits: float) -> None:
    """It counts only if it is longer than the backoff."""
    kit.images.fail(Fault.limited(asked))
    job = queued(kit)
    kit.run()
    assert (kit.app.get(job).due_at - kit.clock.now()).total_seconds() == waits
    kit.run_after(waits - 1)
    assert len(kit.images.asked) == 1
    kit.run_after(1)
    assert kit.state(job) == "completed"
    assert_consistent(kit)


@pytest.mark.parametrize("failures", range(1, MAX_RETRIES + 1))
def test_job_is_buried_at_max_retries(kit: StudioKit, failures: int) -> None:
    user = kit.user(credits=1)
    job = kit.order(user)
    kit.images.fail(*[Fault.trouble()] * failures)
    for _ in range(MAX_RETRIES + 1):
        kit.run_after(AFTER_ANY_BACKOFF)
    buried = failures == MAX_RETRIES
    assert kit.state(job) == ("dead_letter" if buried else "completed")
    assert kit.rows('SELECT "retryCount", "maxRetries" FROM studio_jobs') == [(failures, MAX_RETRIES)]
    assert len(kit.images.asked) == (failures if buried else failures + 1)
    assert settled(kit, job) == ["reserve", "release" if buried else "capture"]
    assert kit.balance(user.id).available == int(buried)
    assert_consistent(kit)


@pytest.mark.parametrize("fault", list(HOPELESS.values()), ids=list(HOPELESS))
def test_permanent_error_buries_the_job_and_releases_its_credits(kit: StudioKit, fault: Fault) -> None:
    kit.images.fail(fault)
    user = kit.user(credits=1)
    job = kit.order(user)
    kit.run()
    assert (kit.transitions(job), settled(kit, job)) == (BURIED, ["reserve", "release"])
    assert kit.rows(SEEN, job=job) == [("dead_letter", 1, None)]
    assert kit.balance(user.id) == Balance(granted=1, available=1, reserved=0, captured=0, forfeited=0)
    kit.run_after(AFTER_ANY_BACKOFF)
    assert len(kit.images.asked) == 1
    assert_consistent(kit)


@pytest.mark.parametrize("before", range(1, MAX_RETRIES))
def test_permanent_error_counts_a_failure(kit: StudioKit, before: int) -> None:
    kit.images.fail(*[Fault.trouble()] * before, Fault.unauthorized())
    job = queued(kit)
    for _ in range(before + 1):
        kit.run_after(AFTER_ANY_BACKOFF)
    assert kit.rows(SEEN, job=job) == [("dead_letter", before + 1, None)]
    assert kit.transitions(job).count(("running", "failed")) == before + 1
    assert_consistent(kit)


def test_failed_release_rolls_back_the_burial(kit: StudioKit) -> None:
    """The next recovery does both."""
    user = kit.user(credits=1)
    job = kit.order(user)
    kit.images.fail(Fault.unauthorized())
    with broken(kit, "studio_entries", "NEW.entry = 'release'"), pytest.raises(TimeoutError):
        kit.worker.run_until_idle(timeout=1)
    assert (kit.state(job) in {"running", "failed"}, settled(kit, job)) == (True, ["reserve"])
    kit.check()
    kit.images.fail(*[Fault.unauthorized()] * MAX_RETRIES)
    kit.run_after(AFTER_ANY_BACKOFF)
    assert (kit.state(job), settled(kit, job)) == ("dead_letter", ["reserve", "release"])
    assert_consistent(kit)


# ---------------------------------------------------------------- E. running -> rejected, queued -> rejected
@pytest.mark.parametrize(
    "fault",
    [
        Fault.blocked(),
        Fault.blocked("moderation_blocked"),
        Fault.blocked("content_filter"),
        Fault.said("It goes against our content policy."),
        Fault.held_back(),
    ],
    ids=lambda fault: fault.code or fault.kind,
)
def test_safety_filter_rejects_without_a_refund(kit: StudioKit, fault: Fault) -> None:
    kit.images.fail(fault)
    user = kit.user(credits=3)
    job = kit.order(user)
    kit.run()
    assert kit.transitions(job) == [*BEGUN, ("running", "rejected")]
    assert kit.rows(SEEN, job=job) == [("rejected", 0, None)]
    penalised(kit, user.id, job)
    kit.run_after(AFTER_ANY_BACKOFF)
    assert len(kit.images.asked) == 1
    assert_consistent(kit)


def test_administrator_rejects_without_a_refund(kit: StudioKit) -> None:
    user = kit.user(credits=3)
    job = kit.order(user)
    kit.orders.reject(job, by="olga", reason="a face that must not be shown")
    assert kit.transitions(job) == [*QUEUED, ("queued", "rejected")]
    penalised(kit, user.id, job)
    last = kit.app.history(job)[-1]
    assert (last.actor, last.reason) == ("operator:olga", f"{SAFE_BLOCK}: a face that must not be shown")
    kit.run_after(AFTER_ANY_BACKOFF)
    assert kit.images.asked == []
    assert_consistent(kit)


def penalised(kit: StudioKit, user_id: int, job: str) -> None:
    """Assert that the credits are forfeited, and that the ledger and the audit say why."""
    assert kit.balance(user_id) == Balance(granted=3, available=2, reserved=0, captured=0, forfeited=1)
    assert kit.rows("SELECT entry, note FROM studio_entries WHERE job_id = :job ORDER BY id", job=job) == [
        ("reserve", None),
        ("forfeit", SAFE_BLOCK),
    ]
    said = [entry.reason for entry in kit.app.history(job) if entry.to_state == "rejected"]
    assert [str(reason).partition(":")[0] for reason in said] == [SAFE_BLOCK]


def test_failed_forfeit_rolls_back_the_rejection(kit: StudioKit) -> None:
    user = kit.user(credits=3)
    job = kit.order(user)
    with broken(kit, "studio_entries", "NEW.entry = 'forfeit'"), pytest.raises(Exception, match="the disk is full"):
        kit.orders.reject(job, by="olga", reason="not here")
    assert (kit.transitions(job), settled(kit, job)) == (QUEUED, ["reserve"])
    kit.orders.reject(job, by="olga", reason="not here")
    penalised(kit, user.id, job)
    assert_consistent(kit)
