"""Whoever has lost a job, or died over it, changes nothing any more: the books balance, the image is kept once, and no job is lost."""

import asyncio
import hashlib
import io
import random
from pathlib import Path

import pytest
from PIL import Image

from apps.common.tests.waiting import eventually
from apps.studio.errors import Trouble
from apps.studio.jobs import MAX_RETRIES
from apps.studio.ledger import Balance
from apps.studio.originals import Kept, Originals
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import COMPLETED, Atelier
from apps.studio.tests.scenes import ENOUGH, crash, files, queued, sound, while_asked, wish
from interlock.testing import KitWorker, Point

DYING = [Point.AFTER_CLAIM, Point.IN_PREPARE, Point.BEFORE_COMMIT, Point.IN_COMMIT]
"""Before the commit: whoever dies at one of them has settled nothing."""
ENDS: dict[str, tuple[str, Fault | None, str]] = {
    "image": ("b64", None, "completed"), "link": ("url", None, "completed"), "blocked": ("b64", Fault.blocked(), "rejected"),
    "hopeless": ("b64", Fault.unauthorized(), "dead_letter"),
}
SETTLED = {"completed": "capture", "rejected": "forfeit", "dead_letter": "release"}


def picture(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(file, "PNG")
    return file.getvalue()


def settlements(atelier: Atelier, job: str) -> list[str]:
    return [entry for (entry,) in atelier.rows("SELECT entry FROM studio_entries WHERE job_id = :job AND entry <> 'reserve'", job=job)]


def original(atelier: Atelier, job: str) -> Path:
    return atelier.directory / "originals" / job


# ---------------------------------------------------------------- a lease that was lost
@pytest.mark.parametrize("point", [Point.AFTER_CLAIM, Point.IN_PREPARE, Point.BEFORE_COMMIT])
@pytest.mark.parametrize("end", ["image", "link"])
def test_an_attempt_without_its_lease_captures_nothing(atelier: Atelier, end: str, point: Point) -> None:
    """The next one does, once."""
    atelier.images.answers = ENDS[end][0]
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    atelier.worker.lose_lease(point)
    atelier.run()
    assert (atelier.state(job), atelier.app.get(job).attempt, atelier.worker.unmet()) == ("completed", 2, [])
    assert atelier.balance(user.id) == Balance(granted=1, available=0, reserved=0, captured=1, forfeited=0)
    assert (settlements(atelier, job), list(files(atelier.directory))) == (["capture"], [f"originals/{job}"])
    sound(atelier)


@pytest.mark.parametrize("end", ["blocked", "hopeless"])
def test_an_attempt_without_its_lease_neither_forfeits_nor_releases(atelier: Atelier, end: str) -> None:
    """What it heard was for it alone: the next one asks again, and has its own answer."""
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    _, fault, _ = ENDS[end]
    atelier.images.fail(*[fault] * (fault is not None))
    atelier.worker.lose_lease(Point.BEFORE_COMMIT)
    atelier.run()
    assert (atelier.state(job), atelier.app.get(job).attempt, atelier.worker.unmet()) == ("completed", 2, [])
    assert atelier.balance(user.id) == Balance(granted=1, available=0, reserved=0, captured=1, forfeited=0)
    assert settlements(atelier, job) == ["capture"]
    assert "refused" in {entry.event for entry in atelier.app.history(job) if entry.n > 0}
    sound(atelier)


@pytest.mark.parametrize("end", list(ENDS))
def test_what_was_settled_in_time_stays_settled(atelier: Atelier, end: str) -> None:
    answers, fault, state = ENDS[end]
    atelier.images.answers = answers
    atelier.images.fail(*[fault] * (fault is not None))
    job = queued(atelier)
    atelier.worker.lose_lease(Point.AFTER_COMMIT)
    atelier.run()
    atelier.later(ENOUGH)
    assert (atelier.state(job), atelier.app.get(job).attempt, settlements(atelier, job)) == (state, 1, [SETTLED[state]])
    sound(atelier)


def test_who_lost_the_last_try_captures_nothing_of_what_was_given_back(atelier: Atelier) -> None:
    """The image came too late: the job is buried, and its user has the credits again."""
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    for _ in range(MAX_RETRIES - 1):
        crash(atelier, Point.IN_PREPARE)
    atelier.worker.lose_lease(Point.BEFORE_COMMIT)
    atelier.run()
    assert (atelier.state(job), settlements(atelier, job), atelier.stored()["studio_assets"]) == ("dead_letter", ["release"], 0)
    assert atelier.balance(user.id) == Balance(granted=1, available=1, reserved=0, captured=0, forfeited=0)
    sound(atelier)


# ---------------------------------------------------------------- an image that comes late
def test_an_answer_that_comes_late_does_not_replace_the_image(atelier: Atelier) -> None:
    job, images = queued(atelier), atelier.images

    def other() -> None:
        atelier.worker._rob(atelier.app.get(job))
        images.picture = picture("green")
        # Whoever of the two takes it: the one that was robbed may be quicker.
        KitWorker(atelier.app, atelier.clock).run_until_idle()
        images.wait(lambda: len(images.asked) == 2, 20)
        assert eventually(lambda: atelier.state(job) == "completed")
        images.picture = picture("red")

    while_asked(atelier, other)
    assert (len(images.asked), original(atelier, job).read_bytes()) == (2, picture("green"))
    assert settlements(atelier, job) == ["capture"]
    assert list(files(atelier.directory)) == [f"originals/{job}"]
    sound(atelier)


def keeps(atelier: Atelier, job: str, data: bytes) -> Kept:
    """What a process does that was frozen just before, and goes on now."""
    return asyncio.run(atelier.studio.means.originals.keep(job, data))


def test_whoever_goes_on_after_the_end_finds_the_image_and_leaves_it(atelier: Atelier) -> None:
    atelier.images.picture = picture("green")
    job = queued(atelier)
    atelier.run()
    assert keeps(atelier, job, picture("red")).sha256 == hashlib.sha256(picture("green")).hexdigest()
    assert original(atelier, job).read_bytes() == picture("green")
    sound(atelier)


@pytest.mark.parametrize("answers", ["b64", "url"])
def test_an_image_that_a_lost_attempt_has_kept_is_the_image(atelier: Atelier, answers: str) -> None:
    """It lies there when the second one's answer comes: that one goes nowhere, and the asset is what lies there."""
    job, images = queued(atelier), atelier.images
    images.answers, images.picture = answers, picture("green")
    crash(atelier, Point.IN_PREPARE)
    while_asked(atelier, lambda: keeps(atelier, job, picture("red")))
    assert (atelier.state(job), original(atelier, job).read_bytes()) == ("completed", picture("red"))
    assert (settlements(atelier, job), list(files(atelier.directory))) == (["capture"], [f"originals/{job}"])
    sound(atelier)


def test_an_image_that_was_kept_though_nobody_heard_of_it_is_found_again(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    """In doubt the originals are asked before the provider is."""
    keep = Originals.keep

    async def deaf(self: Originals, job_id: str, data: bytes) -> Kept:
        monkeypatch.setattr(Originals, "keep", keep)
        await keep(self, job_id, data)
        raise Trouble("The line broke after the last byte.")

    monkeypatch.setattr(Originals, "keep", deaf)
    job = queued(atelier)
    atelier.run()
    assert atelier.state(job) == "failed"
    atelier.later(ENOUGH)
    assert (atelier.state(job), len(atelier.images.asked)) == ("completed", 1)
    sound(atelier)


# ---------------------------------------------------------------- a death
@pytest.mark.parametrize("point", [*DYING, Point.AFTER_COMMIT])
@pytest.mark.parametrize("end", list(ENDS))
def test_a_death_at_any_point_loses_no_job_and_settles_once(atelier: Atelier, end: str, point: Point) -> None:
    answers, fault, state = ENDS[end]
    atelier.images.answers = answers
    atelier.images.fail(*[fault] * (0 if fault is None else 2))
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    crash(atelier, point)
    sound(atelier)
    assert settlements(atelier, job) == ([SETTLED[state]] if point is Point.AFTER_COMMIT else [])
    atelier.run()
    assert (atelier.state(job), settlements(atelier, job)) == (state, [SETTLED[state]])
    assert atelier.app.get(job).attempt == (1 if point is Point.AFTER_COMMIT else 2)
    if state == "completed":
        # What was answered once is remembered, so nobody is asked again, and nothing is fetched again.
        assert (len(atelier.images.asked), len(atelier.images.fetched)) == (1, int(answers == "url"))
        assert list(files(atelier.directory)) == [f"originals/{job}"]
    sound(atelier)


@pytest.mark.parametrize("point", DYING)
def test_a_job_over_which_every_worker_dies_is_buried_and_its_credits_are_back(atelier: Atelier, point: Point) -> None:
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    for _ in range(MAX_RETRIES):
        crash(atelier, point)
        sound(atelier)
    atelier.run()
    assert (atelier.state(job), settlements(atelier, job), atelier.stored()["studio_assets"]) == ("dead_letter", ["release"], 0)
    assert atelier.balance(user.id) == Balance(granted=1, available=1, reserved=0, captured=0, forfeited=0)
    assert len(files(atelier.directory)) <= 1
    sound(atelier)


def test_a_keeper_that_dies_while_it_buries_has_buried_nothing(atelier: Atelier) -> None:
    user = atelier.user(credits=1)
    job = atelier.order(user, wish())
    for _ in range(MAX_RETRIES):
        crash(atelier, Point.AFTER_CLAIM)
    crash(atelier, Point.IN_COMMIT)
    assert (atelier.state(job), settlements(atelier, job), atelier.balance(user.id).reserved) == ("running", [], 1)
    sound(atelier)
    atelier.run()
    assert (atelier.state(job), settlements(atelier, job), atelier.balance(user.id).available) == ("dead_letter", ["release"], 1)
    sound(atelier)


def test_a_death_over_one_image_does_not_touch_the_others(atelier: Atelier) -> None:
    user = atelier.user(credits=6)
    jobs = [atelier.order(user, wish()) for _ in range(6)]
    crash(atelier, Point.IN_COMMIT)
    sound(atelier)
    atelier.later(ENOUGH)
    assert {atelier.state(job) for job in jobs} == {"completed"}
    assert atelier.balance(user.id) == Balance(granted=6, available=0, reserved=0, captured=6, forfeited=0)
    assert len(files(atelier.directory)) == 6
    sound(atelier)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_in_whatever_order_every_job_ends_and_the_books_balance(atelier: Atelier, seed: int) -> None:
    draw, user = random.Random(seed), atelier.user(credits=30)
    faults = [Fault.trouble(), Fault.limited(5), Fault.cut(), Fault.blocked(), Fault.unauthorized(), Fault.garbage()]
    jobs = list[str]()
    for _ in range(8):
        atelier.images.answers = draw.choice(["b64", "url"])
        atelier.images.fail(*draw.choices(faults, k=draw.randrange(3)))
        jobs += [atelier.order(user, wish()) for _ in range(draw.randrange(1, 4))]
        atelier.clock.advance(draw.choice([1, 20, ENOUGH]))
        match draw.randrange(3):
            case 0:
                crash(atelier, draw.choice(DYING[:2]))
            case 1:
                atelier.worker.lose_lease(draw.choice([Point.AFTER_CLAIM, Point.IN_PREPARE]))
                atelier.run()
            case _:
                atelier.run()
        sound(atelier)
    for _ in range(MAX_RETRIES + 1):
        atelier.later(ENOUGH)
    assert {atelier.state(job) for job in jobs} <= {"completed", "rejected", "dead_letter"}
    balance = atelier.balance(user.id)
    assert (balance.granted, balance.reserved) == (30, 0)
    assert len(files(atelier.directory)) == atelier.stored()["studio_assets"] == balance.captured
    sound(atelier)


def test_nothing_of_this_is_needed_where_nothing_happens(atelier: Atelier) -> None:
    """One attempt, one question, one image."""
    job = queued(atelier)
    atelier.run()
    assert (atelier.path(job), atelier.app.get(job).attempt, len(atelier.images.asked)) == (COMPLETED, 1, 1)
    sound(atelier)
