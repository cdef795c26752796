"""Transitions B and C of the specification: execution and success. Creation is in `test_creation.py`."""

import pytest

from apps.studio.jobs import BACKOFF, LEASE
from apps.studio.ledger import Balance
from apps.studio.order import Params
from apps.studio.tests.fake_images_api import png
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.scenarios import (
    AFTER_ANY_BACKOFF,
    RETRIED,
    assert_consistent,
    broken,
    during_request,
    files,
    new_prompt,
    queued,
)
from apps.studio.tests.studio_kit import BEGUN, COMPLETED, StudioKit
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


# ---------------------------------------------------------------- B. queued -> running
def test_claim_sets_started_at(kit: StudioKit) -> None:
    job, seen = queued(kit), []
    kit.clock.advance(7)
    during_request(kit, lambda: seen.extend(kit.rows('SELECT status, "startedAt", "createdAt" FROM studio_jobs')))
    [[status, started, created]] = seen
    assert (status, kit.transitions(job)[:2]) == ("running", BEGUN)
    assert str(started) > str(created)
    [execution] = kit.app.executions(job)
    assert execution.started_at == kit.clock.now()
    assert_consistent(kit)


def test_worker_sends_heartbeats_during_a_provider_call(kit: StudioKit) -> None:
    """It therefore keeps the job for longer than one lease."""
    job, beats = queued(kit), []

    def beat() -> None:
        for _ in range(6):
            kit.clock.advance(LEASE / 3)
            kit.worker.heartbeat()
            [execution] = kit.app.executions(job)
            beats.append((execution.heartbeat_at == kit.clock.now(), execution.lease_expires_at > kit.clock.now()))

    during_request(kit, beat)
    assert beats == [(True, True)] * 6
    assert (kit.transitions(job), kit.app.get(job).attempt) == (COMPLETED, 1)
    assert_consistent(kit)


def test_queued_job_has_no_started_at(kit: StudioKit) -> None:
    job = queued(kit)
    assert kit.rows('SELECT "startedAt", "resultUrl" FROM studio_jobs WHERE id = :job', job=job) == [(None, None)]


# ---------------------------------------------------------------- C. running -> completed
@pytest.mark.parametrize("answers", ["b64", "url"])
def test_success_stores_the_image_and_the_asset_and_captures_credits(kit: StudioKit, answers: str) -> None:
    kit.images.answers = answers
    user, params = kit.user(credits=5), Params(size="1536x1024")
    job = kit.orders.create_job(user.id, new_prompt(), params).id
    kit.run()
    assert kit.transitions(job) == COMPLETED
    image = (kit.directory / "originals" / job).read_bytes()
    assert image == png("1536x1024")
    assert kit.rows("SELECT job_id, user_id, path, content_type, bytes, width, height FROM studio_assets") == [
        (
            job if kit.studio.engine.dialect.name == "sqlite" else kit.rows("SELECT id FROM studio_jobs")[0][0],
            user.id,
            f"originals/{job}",
            "image/png",
            len(image),
            1536,
            1024,
        )
    ]
    assert kit.rows(SEEN, job=job) == [("completed", 0, f"originals/{job}")]
    assert kit.rows(ENTRIES, job=job) == [("reserve", 2), ("capture", 2)]
    assert kit.balance(user.id) == Balance(granted=5, available=3, reserved=0, captured=2, forfeited=0)
    assert len(kit.images.fetched) == (answers == "url")
    assert_consistent(kit)


@pytest.mark.parametrize(
    ("table", "when"),
    [
        ("studio_assets", "1 = 1"),
        ("studio_entries", "NEW.entry = 'capture'"),
    ],
    ids=["the asset", "the capture"],
)
def test_asset_result_url_capture_and_state_are_one_transaction(kit: StudioKit, table: str, when: str) -> None:
    """If one write fails, none is stored; the next attempt does all of them without another provider call."""
    user = kit.user(credits=1)
    job = kit.order(user)
    with broken(kit, table, when):
        kit.run()
        assert kit.rows(SEEN, job=job) == [("failed", 1, None)]
        assert (settled(kit, job), kit.stored()["studio_assets"]) == (["reserve"], 0)
        assert kit.balance(user.id) == Balance(granted=1, available=0, reserved=1, captured=0, forfeited=0)
        kept = files(kit.directory)
        assert_consistent(kit)
    kit.run_after(AFTER_ANY_BACKOFF)
    assert kit.transitions(job) == [*RETRIED, ("running", "completed")]
    assert kit.rows(SEEN, job=job) == [("completed", 1, f"originals/{job}")]
    assert (settled(kit, job), kit.stored()["studio_assets"]) == (["reserve", "capture"], 1)
    assert (len(kit.images.asked), files(kit.directory)) == (1, kept)
    assert_consistent(kit)


def test_result_is_not_visible_before_the_image(kit: StudioKit) -> None:
    kit.images.answers = "url"
    kit.images.fail_links(Fault.trouble(503))
    job = queued(kit)
    kit.run()
    assert kit.rows(SEEN, job=job) == [("failed", 1, None)]
    assert files(kit.directory) == {}
    kit.run_after(AFTER_ANY_BACKOFF)
    assert (kit.state(job), len(kit.images.asked), len(kit.images.fetched)) == ("completed", 1, 2)
    assert_consistent(kit)
