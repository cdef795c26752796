"""The transitions of an image, from its pickup on: what triggers each, and what is done in its transaction. Its creation is in `test_creation.py`."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from apps.studio.jobs import BACKOFF, LEASE, LONGEST_WAIT, MAX_RETRIES, SAFE_BLOCK
from apps.studio.ledger import Balance
from apps.studio.order import Params
from apps.studio.tests.images_api import png
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import BEGUN, COMPLETED, QUEUED, Atelier
from apps.studio.tests.scenes import BURIED, ENOUGH, FAILED, RETRIED, broken, files, queued, sound, while_asked, wish
from interlock import Backoff

ENTRIES = "SELECT entry, amount FROM studio_entries WHERE job_id = :job ORDER BY id"
SEEN = 'SELECT status, "retryCount", "resultUrl" FROM studio_jobs WHERE id = :job'


def settled(atelier: Atelier, job: str) -> list[str]:
    """What became of a job's credits, in order."""
    return [entry for entry, _ in atelier.rows(ENTRIES, job=job)]


@pytest.fixture
def unlucky(atelier: Atelier) -> None:
    """The chance in a backoff always comes out at its longest."""
    atelier.studio.image.declaration.backoff = Backoff(BACKOFF.first, factor=BACKOFF.factor, cap=BACKOFF.cap, jitter=False)


# ---------------------------------------------------------------- B. queued -> running
def test_a_worker_that_picks_a_job_up_stamps_when(atelier: Atelier) -> None:
    job, seen = queued(atelier), []
    atelier.clock.advance(7)
    while_asked(atelier, lambda: seen.extend(atelier.rows('SELECT status, "startedAt", "createdAt" FROM studio_jobs')))
    [[status, started, created]] = seen
    assert (status, atelier.path(job)[:2]) == ("running", BEGUN)
    assert str(started) > str(created)
    [execution] = atelier.app.executions(job)
    assert execution.started_at == atelier.clock.now()
    sound(atelier)


def test_a_worker_sends_heartbeats_for_as_long_as_the_provider_takes(atelier: Atelier) -> None:
    """So that nobody takes the job away from it, however many leases it takes."""
    job, beats = queued(atelier), []

    def beat() -> None:
        for _ in range(6):
            atelier.clock.advance(LEASE / 3)
            atelier.worker.beat()
            [execution] = atelier.app.executions(job)
            beats.append((execution.heartbeat_at == atelier.clock.now(), execution.lease_expires_at > atelier.clock.now()))

    while_asked(atelier, beat)
    assert beats == [(True, True)] * 6
    assert (atelier.path(job), atelier.app.get(job).attempt) == (COMPLETED, 1)
    sound(atelier)


def test_a_job_that_nobody_has_picked_up_has_no_start(atelier: Atelier) -> None:
    job = queued(atelier)
    assert atelier.rows('SELECT "startedAt", "resultUrl" FROM studio_jobs WHERE id = :job', job=job) == [(None, None)]


# ---------------------------------------------------------------- C. running -> completed
@pytest.mark.parametrize("answers", ["b64", "url"])
def test_success_keeps_the_image_makes_the_asset_and_captures_the_credits(atelier: Atelier, answers: str) -> None:
    atelier.images.answers = answers
    user, params = atelier.user(credits=5), Params(size="1536x1024")
    job = atelier.counter.create_job(user.id, wish(), params).id
    atelier.run()
    assert atelier.path(job) == COMPLETED
    image = (atelier.directory / "originals" / job).read_bytes()
    assert image == png("1536x1024")
    assert atelier.rows("SELECT job_id, user_id, path, content_type, bytes, width, height FROM studio_assets") == [
        (job if atelier.studio.engine.dialect.name == "sqlite" else atelier.rows("SELECT id FROM studio_jobs")[0][0],
         user.id, f"originals/{job}", "image/png", len(image), 1536, 1024)]
    assert atelier.rows(SEEN, job=job) == [("completed", 0, f"originals/{job}")]
    assert atelier.rows(ENTRIES, job=job) == [("reserve", 2), ("capture", 2)]
    assert atelier.balance(user.id) == Balance(granted=5, available=3, reserved=0, captured=2, forfeited=0)
    assert len(atelier.images.fetched) == (answers == "url")
    sound(atelier)


@pytest.mark.parametrize(("table", "when"), [
    ("studio_assets", "1 = 1"), ("studio_entries", "NEW.entry = 'capture'"),
], ids=["the asset", "the capture"])
def test_asset_result_url_capture_and_state_are_one_transaction(atelier: Atelier, table: str, when: str) -> None:
    """Where one of them fails none of them is there; the next attempt does all of them, once, and asks nobody again."""
    user = atelier.user(credits=1)
    job = atelier.order(user)
    with broken(atelier, table, when):
        atelier.run()
        assert atelier.rows(SEEN, job=job) == [("failed", 1, None)]
        assert (settled(atelier, job), atelier.stored()["studio_assets"]) == (["reserve"], 0)
        assert atelier.balance(user.id) == Balance(granted=1, available=0, reserved=1, captured=0, forfeited=0)
        kept = files(atelier.directory)
        sound(atelier)
    atelier.later(ENOUGH)
    assert atelier.path(job) == [*RETRIED, ("running", "completed")]
    assert atelier.rows(SEEN, job=job) == [("completed", 1, f"originals/{job}")]
    assert (settled(atelier, job), atelier.stored()["studio_assets"]) == (["reserve", "capture"], 1)
    assert (len(atelier.images.asked), files(atelier.directory)) == (1, kept)
    sound(atelier)


def test_the_result_is_not_there_before_the_image_is(atelier: Atelier) -> None:
    atelier.images.answers = "url"
    atelier.images.fail_links(Fault.trouble(503))
    job = queued(atelier)
    atelier.run()
    assert atelier.rows(SEEN, job=job) == [("failed", 1, None)]
    assert files(atelier.directory) == {}
    atelier.later(ENOUGH)
    assert (atelier.state(job), len(atelier.images.asked), len(atelier.images.fetched)) == ("completed", 1, 2)
    sound(atelier)


# ---------------------------------------------------------------- D. running -> failed
TROUBLES = {
    "500": Fault.trouble(500), "502": Fault.trouble(502), "503": Fault.trouble(503), "429": Fault.limited(3), "408": Fault.trouble(408),
    "time-out": Fault.hang(), "cut": Fault.cut(), "torn": Fault.torn(), "garbage": Fault.garbage(), "no image": Fault.no_image(),
    "no base64": Fault.no_base64(), "no picture": Fault.wrong_type(),
}
HOPELESS = {"401": Fault.unauthorized(), "404": Fault.trouble(404), "400": Fault.trouble(400), "billing": Fault(403, "billing_hard_limit_reached")}


@pytest.fixture
def impatient(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider is not waited for for long."""
    monkeypatch.setattr(atelier.studio.means.provider, "_timeout", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", list(TROUBLES.values()), ids=list(TROUBLES))
def test_trouble_counts_a_retry_and_queues_the_job_again(atelier: Atelier, fault: Fault) -> None:
    atelier.images.fail(fault)
    user = atelier.user(credits=1)
    job = atelier.order(user)
    atelier.run()
    assert (atelier.path(job), atelier.rows(SEEN, job=job)) == (FAILED, [("failed", 1, None)])
    assert atelier.balance(user.id) == Balance(granted=1, available=0, reserved=1, captured=0, forfeited=0)
    assert atelier.app.get(job).last_error
    assert atelier.app.get(job).due_at > atelier.clock.now()
    atelier.check()
    atelier.later(ENOUGH)
    assert (atelier.path(job), len(atelier.images.asked)) == ([*RETRIED, ("running", "completed")], 2)
    assert atelier.rows(SEEN, job=job) == [("completed", 1, f"originals/{job}")]
    sound(atelier)


def test_the_api_out_of_reach_is_trouble_too(atelier: Atelier) -> None:
    job = queued(atelier)
    atelier.images.down()
    atelier.run()
    assert atelier.rows(SEEN, job=job) == [("failed", 1, None)]
    atelier.images.up()
    atelier.later(ENOUGH)
    assert atelier.state(job) == "completed"
    sound(atelier)


@contextmanager
def full(_: Atelier) -> Iterator[None]:
    usage = shutil.disk_usage("/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
        yield


@contextmanager
def unwritable(atelier: Atelier) -> Iterator[None]:
    atelier.directory.mkdir()
    (atelier.directory / "staged").write_text("a file in its place")
    yield
    (atelier.directory / "staged").unlink()


@pytest.mark.parametrize("storage", [full, unwritable], ids=lambda storage: storage.__name__)
def test_without_room_for_an_image_nobody_is_asked_for_it(atelier: Atelier, storage: Callable[[Atelier], AbstractContextManager[None]]) -> None:
    """It would be paid for at each attempt, and lost."""
    job = queued(atelier)
    with storage(atelier):
        atelier.run()
        assert (atelier.path(job), atelier.rows(SEEN, job=job)) == (FAILED, [("failed", 1, None)])
        assert "The storage" in (atelier.app.get(job).last_error or "")
        atelier.later(ENOUGH)
        assert (atelier.rows(SEEN, job=job), atelier.images.asked) == ([("failed", 2, None)], [])
    atelier.later(ENOUGH)
    assert (atelier.state(job), len(atelier.images.asked)) == ("completed", 1)
    sound(atelier)


@pytest.mark.usefixtures("unlucky")
def test_the_backoff_is_exponential_and_a_job_is_never_tried_before_it_is_over(atelier: Atelier) -> None:
    atelier.images.fail(*[Fault.trouble()] * MAX_RETRIES)
    job, pauses = queued(atelier), []
    atelier.run()
    for failure in range(1, MAX_RETRIES):
        assert atelier.rows(SEEN, job=job) == [("failed", failure, None)]
        pause = (atelier.app.get(job).due_at - atelier.clock.now()).total_seconds()
        pauses.append(pause)
        atelier.later(pause - 1)
        assert len(atelier.images.asked) == failure
        atelier.later(1)
        assert len(atelier.images.asked) == failure + 1
    assert pauses == [BACKOFF.first * BACKOFF.factor**n for n in range(MAX_RETRIES - 1)]
    assert all(after > 2 * before for before, after in itertools.pairwise(pauses))
    assert atelier.state(job) == "dead_letter"
    sound(atelier)


@pytest.mark.parametrize(("asked", "waits"), [(BACKOFF.first, BACKOFF.first), (250, 250.0), (7200, LONGEST_WAIT)])
def test_a_provider_that_says_when_is_not_asked_before(atelier: Atelier, asked: float, waits: float) -> None:
    """For as long as it says, where that is longer than our own pause."""
    atelier.images.fail(Fault.limited(asked))
    job = queued(atelier)
    atelier.run()
    assert (atelier.app.get(job).due_at - atelier.clock.now()).total_seconds() == waits
    atelier.later(waits - 1)
    assert len(atelier.images.asked) == 1
    atelier.later(1)
    assert atelier.state(job) == "completed"
    sound(atelier)


@pytest.mark.parametrize("failures", range(1, MAX_RETRIES + 1))
def test_below_the_maximum_it_is_queued_again_and_at_it_buried(atelier: Atelier, failures: int) -> None:
    user = atelier.user(credits=1)
    job = atelier.order(user)
    atelier.images.fail(*[Fault.trouble()] * failures)
    for _ in range(MAX_RETRIES + 1):
        atelier.later(ENOUGH)
    buried = failures == MAX_RETRIES
    assert atelier.state(job) == ("dead_letter" if buried else "completed")
    assert atelier.rows('SELECT "retryCount", "maxRetries" FROM studio_jobs') == [(failures, MAX_RETRIES)]
    assert len(atelier.images.asked) == (failures if buried else failures + 1)
    assert settled(atelier, job) == ["reserve", "release" if buried else "capture"]
    assert atelier.balance(user.id).available == int(buried)
    sound(atelier)


@pytest.mark.parametrize("fault", list(HOPELESS.values()), ids=list(HOPELESS))
def test_what_no_retry_can_help_is_buried_at_once_and_the_credits_are_back(atelier: Atelier, fault: Fault) -> None:
    atelier.images.fail(fault)
    user = atelier.user(credits=1)
    job = atelier.order(user)
    atelier.run()
    assert (atelier.path(job), settled(atelier, job)) == (BURIED, ["reserve", "release"])
    assert atelier.rows(SEEN, job=job) == [("dead_letter", 1, None)]
    assert atelier.balance(user.id) == Balance(granted=1, available=1, reserved=0, captured=0, forfeited=0)
    atelier.later(ENOUGH)
    assert len(atelier.images.asked) == 1
    sound(atelier)


@pytest.mark.parametrize("before", range(1, MAX_RETRIES))
def test_every_failure_counts_a_retry_also_one_that_no_retry_can_help(atelier: Atelier, before: int) -> None:
    atelier.images.fail(*[Fault.trouble()] * before, Fault.unauthorized())
    job = queued(atelier)
    for _ in range(before + 1):
        atelier.later(ENOUGH)
    assert atelier.rows(SEEN, job=job) == [("dead_letter", before + 1, None)]
    assert atelier.path(job).count(("running", "failed")) == before + 1
    sound(atelier)


def test_a_burial_whose_credits_cannot_be_given_back_is_not_made(atelier: Atelier) -> None:
    """It is made with them, as soon as both can be written."""
    user = atelier.user(credits=1)
    job = atelier.order(user)
    atelier.images.fail(Fault.unauthorized())
    with broken(atelier, "studio_entries", "NEW.entry = 'release'"), pytest.raises(TimeoutError):
        atelier.worker.run_until_idle(timeout=1)
    assert (atelier.state(job) in {"running", "failed"}, settled(atelier, job)) == (True, ["reserve"])
    atelier.check()
    atelier.images.fail(*[Fault.unauthorized()] * MAX_RETRIES)
    atelier.later(ENOUGH)
    assert (atelier.state(job), settled(atelier, job)) == ("dead_letter", ["reserve", "release"])
    sound(atelier)


# ---------------------------------------------------------------- E. running -> rejected, queued -> rejected
@pytest.mark.parametrize("fault", [
    Fault.blocked(), Fault.blocked("moderation_blocked"), Fault.blocked("content_filter"), Fault.said("It goes against our content policy."), Fault.held_back(),
], ids=lambda fault: fault.code or fault.kind)
def test_the_safety_filter_rejects_for_good_and_refunds_nothing(atelier: Atelier, fault: Fault) -> None:
    atelier.images.fail(fault)
    user = atelier.user(credits=3)
    job = atelier.order(user)
    atelier.run()
    assert atelier.path(job) == [*BEGUN, ("running", "rejected")]
    assert atelier.rows(SEEN, job=job) == [("rejected", 0, None)]
    penalised(atelier, user.id, job)
    atelier.later(ENOUGH)
    assert len(atelier.images.asked) == 1
    sound(atelier)


def test_an_administrator_rejects_what_is_queued_with_the_same_penalty(atelier: Atelier) -> None:
    user = atelier.user(credits=3)
    job = atelier.order(user)
    atelier.counter.reject(job, by="olga", reason="a face that must not be shown")
    assert atelier.path(job) == [*QUEUED, ("queued", "rejected")]
    penalised(atelier, user.id, job)
    last = atelier.app.history(job)[-1]
    assert (last.actor, last.reason) == ("operator:olga", f"{SAFE_BLOCK}: a face that must not be shown")
    atelier.later(ENOUGH)
    assert atelier.images.asked == []
    sound(atelier)


def penalised(atelier: Atelier, user_id: int, job: str) -> None:
    """No refund, the credits are forfeited, and both books say why."""
    assert atelier.balance(user_id) == Balance(granted=3, available=2, reserved=0, captured=0, forfeited=1)
    assert atelier.rows("SELECT entry, note FROM studio_entries WHERE job_id = :job ORDER BY id", job=job) == [("reserve", None), ("forfeit", SAFE_BLOCK)]
    said = [entry.reason for entry in atelier.app.history(job) if entry.to_state == "rejected"]
    assert [str(reason).partition(":")[0] for reason in said] == [SAFE_BLOCK]


def test_a_rejection_whose_penalty_cannot_be_written_is_not_made(atelier: Atelier) -> None:
    user = atelier.user(credits=3)
    job = atelier.order(user)
    with broken(atelier, "studio_entries", "NEW.entry = 'forfeit'"), pytest.raises(Exception, match="the disk is full"):
        atelier.counter.reject(job, by="olga", reason="not here")
    assert (atelier.path(job), settled(atelier, job)) == (QUEUED, ["reserve"])
    atelier.counter.reject(job, by="olga", reason="not here")
    penalised(atelier, user.id, job)
    sound(atelier)
