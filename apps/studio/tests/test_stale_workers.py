"""A worker that has lost a job changes nothing: credits balance, one image is stored, and no job is lost."""

import asyncio
import hashlib
import io
import random
from pathlib import Path

import pytest
from PIL import Image

from apps.common.tests.waiting import wait_until
from apps.studio.clients.originals import Originals, StoredImage
from apps.studio.errors import TemporaryError
from apps.studio.jobs import MAX_RETRIES
from apps.studio.ledger import Balance
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.scenarios import (
    AFTER_ANY_BACKOFF,
    assert_consistent,
    crash,
    during_request,
    files,
    new_prompt,
    queued,
)
from apps.studio.tests.studio_kit import COMPLETED, StudioKit
from interlock.testing import Failpoint, KitWorker

DYING = [Failpoint.AFTER_CLAIM, Failpoint.IN_PREPARE, Failpoint.BEFORE_COMMIT, Failpoint.IN_COMMIT]
"""Before the commit: whoever dies at one of them has settled nothing."""
ENDS: dict[str, tuple[str, Fault | None, str]] = {
    "image": ("b64", None, "completed"),
    "link": ("url", None, "completed"),
    "blocked": ("b64", Fault.blocked(), "rejected"),
    "hopeless": ("b64", Fault.unauthorized(), "dead_letter"),
}
SETTLED = {"completed": "capture", "rejected": "forfeit", "dead_letter": "release"}


def picture(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(file, "PNG")
    return file.getvalue()


def settlements(kit: StudioKit, job: str) -> list[str]:
    return [
        entry
        for (entry,) in kit.rows("SELECT entry FROM studio_entries WHERE job_id = :job AND entry <> 'reserve'", job=job)
    ]


def original(kit: StudioKit, job: str) -> Path:
    return kit.directory / "originals" / job


# ---------------------------------------------------------------- lost leases
@pytest.mark.parametrize("point", [Failpoint.AFTER_CLAIM, Failpoint.IN_PREPARE, Failpoint.BEFORE_COMMIT])
@pytest.mark.parametrize("end", ["image", "link"])
def test_attempt_without_its_lease_captures_nothing(kit: StudioKit, end: str, point: Failpoint) -> None:
    """The next attempt captures once."""
    kit.images.answers = ENDS[end][0]
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    kit.worker.lose_lease(point)
    kit.run()
    assert (kit.state(job), kit.app.get(job).attempt, kit.worker.unmet()) == ("completed", 2, [])
    assert kit.balance(user.id) == Balance(granted=1, available=0, reserved=0, captured=1, forfeited=0)
    assert (settlements(kit, job), list(files(kit.directory))) == (["capture"], [f"originals/{job}"])
    assert_consistent(kit)


@pytest.mark.parametrize("end", ["blocked", "hopeless"])
def test_attempt_without_its_lease_neither_forfeits_nor_releases(kit: StudioKit, end: str) -> None:
    """The next attempt calls the provider again and uses its own response."""
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    _, fault, _ = ENDS[end]
    kit.images.fail(*[fault] * (fault is not None))
    kit.worker.lose_lease(Failpoint.BEFORE_COMMIT)
    kit.run()
    assert (kit.state(job), kit.app.get(job).attempt, kit.worker.unmet()) == ("completed", 2, [])
    assert kit.balance(user.id) == Balance(granted=1, available=0, reserved=0, captured=1, forfeited=0)
    assert settlements(kit, job) == ["capture"]
    assert "refused" in {entry.event for entry in kit.app.history(job) if entry.n > 0}
    assert_consistent(kit)


@pytest.mark.parametrize("end", list(ENDS))
def test_settlement_before_the_lease_expired_is_final(kit: StudioKit, end: str) -> None:
    answers, fault, state = ENDS[end]
    kit.images.answers = answers
    kit.images.fail(*[fault] * (fault is not None))
    job = queued(kit)
    kit.worker.lose_lease(Failpoint.AFTER_COMMIT)
    kit.run()
    kit.run_after(AFTER_ANY_BACKOFF)
    assert (kit.state(job), kit.app.get(job).attempt, settlements(kit, job)) == (state, 1, [SETTLED[state]])
    assert_consistent(kit)


def test_late_attempt_does_not_capture_released_credits(kit: StudioKit) -> None:
    """The image came too late: the job is a dead letter and its credits were released."""
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    for _ in range(MAX_RETRIES - 1):
        crash(kit, Failpoint.IN_PREPARE)
    kit.worker.lose_lease(Failpoint.BEFORE_COMMIT)
    kit.run()
    assert (kit.state(job), settlements(kit, job), kit.stored()["studio_assets"]) == (
        "dead_letter",
        ["release"],
        0,
    )
    assert kit.balance(user.id) == Balance(granted=1, available=1, reserved=0, captured=0, forfeited=0)
    assert_consistent(kit)


# ---------------------------------------------------------------- late images
def test_late_response_does_not_replace_the_image(kit: StudioKit) -> None:
    job, images = queued(kit), kit.images

    def other() -> None:
        kit.worker._take_over(kit.app.get(job))
        images.picture = picture("green")
        # Either worker may store it first.
        KitWorker(kit.app, kit.clock).run_until_idle()
        images.wait(lambda: len(images.asked) == 2, 20)
        assert wait_until(lambda: kit.state(job) == "completed")
        images.picture = picture("red")

    during_request(kit, other)
    assert (len(images.asked), original(kit, job).read_bytes()) == (2, picture("green"))
    assert settlements(kit, job) == ["capture"]
    assert list(files(kit.directory)) == [f"originals/{job}"]
    assert_consistent(kit)


def keeps(kit: StudioKit, job: str, data: bytes) -> StoredImage:
    """A frozen process that continues and stores its image."""
    return asyncio.run(kit.studio.dependencies.originals.store(job, data))


def test_frozen_worker_does_not_replace_the_image(kit: StudioKit) -> None:
    kit.images.picture = picture("green")
    job = queued(kit)
    kit.run()
    assert keeps(kit, job, picture("red")).sha256 == hashlib.sha256(picture("green")).hexdigest()
    assert original(kit, job).read_bytes() == picture("green")
    assert_consistent(kit)


@pytest.mark.parametrize("answers", ["b64", "url"])
def test_image_of_a_lost_attempt_is_used(kit: StudioKit, answers: str) -> None:
    """The second attempt's image is discarded, and the asset describes the stored one."""
    job, images = queued(kit), kit.images
    images.answers, images.picture = answers, picture("green")
    crash(kit, Failpoint.IN_PREPARE)
    during_request(kit, lambda: keeps(kit, job, picture("red")))
    assert (kit.state(job), original(kit, job).read_bytes()) == ("completed", picture("red"))
    assert (settlements(kit, job), list(files(kit.directory))) == (["capture"], [f"originals/{job}"])
    assert_consistent(kit)


def test_stored_image_of_a_crashed_attempt_is_found(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The originals are checked before the provider is called again."""
    keep = Originals.store

    async def deaf(self: Originals, job_id: str, data: bytes) -> StoredImage:
        monkeypatch.setattr(Originals, "store", keep)
        await keep(self, job_id, data)
        raise TemporaryError("The line broke after the last byte.")

    monkeypatch.setattr(Originals, "store", deaf)
    job = queued(kit)
    kit.run()
    assert kit.state(job) == "failed"
    kit.run_after(AFTER_ANY_BACKOFF)
    assert (kit.state(job), len(kit.images.asked)) == ("completed", 1)
    assert_consistent(kit)


# ---------------------------------------------------------------- crashes
@pytest.mark.parametrize("point", [*DYING, Failpoint.AFTER_COMMIT])
@pytest.mark.parametrize("end", list(ENDS))
def test_crash_at_any_point_loses_no_job_and_settles_once(kit: StudioKit, end: str, point: Failpoint) -> None:
    answers, fault, state = ENDS[end]
    kit.images.answers = answers
    kit.images.fail(*[fault] * (0 if fault is None else 2))
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    crash(kit, point)
    assert_consistent(kit)
    assert settlements(kit, job) == ([SETTLED[state]] if point is Failpoint.AFTER_COMMIT else [])
    kit.run()
    assert (kit.state(job), settlements(kit, job)) == (state, [SETTLED[state]])
    assert kit.app.get(job).attempt == (1 if point is Failpoint.AFTER_COMMIT else 2)
    if state == "completed":
        # The receipt is stored, so neither the provider call nor the download is repeated.
        assert (len(kit.images.asked), len(kit.images.fetched)) == (1, int(answers == "url"))
        assert list(files(kit.directory)) == [f"originals/{job}"]
    assert_consistent(kit)


@pytest.mark.parametrize("point", DYING)
def test_job_that_crashes_every_worker_is_buried_and_refunded(kit: StudioKit, point: Failpoint) -> None:
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    for _ in range(MAX_RETRIES):
        crash(kit, point)
        assert_consistent(kit)
    kit.run()
    assert (kit.state(job), settlements(kit, job), kit.stored()["studio_assets"]) == (
        "dead_letter",
        ["release"],
        0,
    )
    assert kit.balance(user.id) == Balance(granted=1, available=1, reserved=0, captured=0, forfeited=0)
    assert len(files(kit.directory)) <= 1
    assert_consistent(kit)


def test_crash_during_a_recovery_changes_nothing(kit: StudioKit) -> None:
    user = kit.user(credits=1)
    job = kit.order(user, new_prompt())
    for _ in range(MAX_RETRIES):
        crash(kit, Failpoint.AFTER_CLAIM)
    crash(kit, Failpoint.IN_COMMIT)
    assert (kit.state(job), settlements(kit, job), kit.balance(user.id).reserved) == ("running", [], 1)
    assert_consistent(kit)
    kit.run()
    assert (kit.state(job), settlements(kit, job), kit.balance(user.id).available) == (
        "dead_letter",
        ["release"],
        1,
    )
    assert_consistent(kit)


def test_crash_of_one_job_does_not_affect_others(kit: StudioKit) -> None:
    user = kit.user(credits=6)
    jobs = [kit.order(user, new_prompt()) for _ in range(6)]
    crash(kit, Failpoint.IN_COMMIT)
    assert_consistent(kit)
    kit.run_after(AFTER_ANY_BACKOFF)
    assert {kit.state(job) for job in jobs} == {"completed"}
    assert kit.balance(user.id) == Balance(granted=6, available=0, reserved=0, captured=6, forfeited=0)
    assert len(files(kit.directory)) == 6
    assert_consistent(kit)


@pytest.mark.parametrize("seed", range(2))
def test_every_random_walk_ends_with_a_consistent_ledger(kit: StudioKit, seed: int) -> None:
    draw, user = random.Random(seed), kit.user(credits=30)
    faults = [Fault.trouble(), Fault.limited(5), Fault.cut(), Fault.blocked(), Fault.unauthorized(), Fault.garbage()]
    jobs = list[str]()
    for _ in range(8):
        kit.images.answers = draw.choice(["b64", "url"])
        kit.images.fail(*draw.choices(faults, k=draw.randrange(3)))
        jobs += [kit.order(user, new_prompt()) for _ in range(draw.randrange(1, 4))]
        kit.clock.advance(draw.choice([1, 20, AFTER_ANY_BACKOFF]))
        match draw.randrange(3):
            case 0:
                crash(kit, draw.choice(DYING[:2]))
            case 1:
                kit.worker.lose_lease(draw.choice([Failpoint.AFTER_CLAIM, Failpoint.IN_PREPARE]))
                kit.run()
            case _:
                kit.run()
        assert_consistent(kit)
    for _ in range(MAX_RETRIES + 1):
        kit.run_after(AFTER_ANY_BACKOFF)
    assert {kit.state(job) for job in jobs} <= {"completed", "rejected", "dead_letter"}
    balance = kit.balance(user.id)
    assert (balance.granted, balance.reserved) == (30, 0)
    assert len(files(kit.directory)) == kit.stored()["studio_assets"] == balance.captured
    assert_consistent(kit)


def test_normal_job_needs_one_attempt_and_one_call(kit: StudioKit) -> None:
    job = queued(kit)
    kit.run()
    assert (kit.transitions(job), kit.app.get(job).attempt, len(kit.images.asked)) == (COMPLETED, 1, 1)
    assert_consistent(kit)
