"""Promises about what a user sees: all of their own, nothing of another's, and no word of the provider's."""

import hashlib
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from apps.studio.errors import NotFound
from apps.studio.gallery import INTERRUPTED, MOST, Gallery, Job
from apps.studio.people import User
from apps.studio.signing import LIFE, Expired, Forged
from apps.studio.telling import how_it_stands
from apps.studio.tests.images_api import Fault, png
from apps.studio.tests.kit import PROMPT, Atelier
from apps.studio.tests.scenes import IN_STATE, interrupted

NO_ID = "01900000-0000-7000-8000-000000000000"
STRANGE = (NO_ID, "1", "", "'; DROP TABLE studio_orders", "\x00", "{id}")


@pytest.fixture
def gallery(atelier: Atelier) -> Gallery:
    return atelier.gallery


@pytest.fixture
def ann(atelier: Atelier) -> User:
    return atelier.user(name="ann")


# ---------------------------------------------------------------- jobs
def test_a_job_is_readable_as_soon_as_it_is_made(atelier: Atelier, ann: User) -> None:
    id = atelier.order(ann, size="1536x1024", seed=7)
    job, now = atelier.gallery.job(ann.id, id), atelier.clock.now()
    assert (job.id, job.user_id, job.prompt, job.size, job.seed, job.cost, job.status) == (id, ann.id, PROMPT, "1536x1024", 7, 2, "queued")
    assert (job.retry_count, job.max_retries, job.created_at, job.due_at, job.version) == (0, 4, now, now, 0)
    assert (job.started_at, job.finished_at, job.result_path, job.last_error, job.redrive_of) == (None, None, None, None, None)


def test_a_completed_job_says_when_and_where(atelier: Atelier, ann: User) -> None:
    id = atelier.order(ann)
    atelier.later(60)
    job, now = atelier.gallery.job(ann.id, id), atelier.clock.now()
    assert (job.status, job.started_at, job.result_path, job.retry_count) == ("completed", now, f"originals/{id}", 0)
    assert (job.created_at, job.finished_at) == (now - timedelta(seconds=60), now)


def test_a_failed_one_says_how_often_and_until_when_it_waits(atelier: Atelier, ann: User) -> None:
    atelier.images.fail(Fault.limited(70))
    id = atelier.order(ann)
    atelier.run()
    job = atelier.gallery.job(ann.id, id)
    assert (job.status, job.retry_count, job.due_at) == ("failed", 1, atelier.clock.now() + timedelta(seconds=70))
    assert "429" in (job.last_error or "")


def test_jobs_are_listed_the_newest_first_page_by_page(atelier: Atelier, gallery: Gallery, ann: User) -> None:
    atelier.order(prompt="another's")
    ids = [atelier.order(ann, f"a boat, {n}") for n in range(5)][::-1]
    assert [job.id for job in gallery.jobs(ann.id)] == ids
    pages = [gallery.jobs(ann.id, limit=2), gallery.jobs(ann.id, limit=2, before=ids[1]), gallery.jobs(ann.id, limit=2, before=ids[3])]
    assert [[job.id for job in page] for page in pages] == [ids[:2], ids[2:4], ids[4:]]
    assert gallery.jobs(ann.id, before=ids[4]) == []


@pytest.mark.parametrize("limit", [-1, 0, MOST * 1000, 2**70])
def test_a_limit_that_makes_no_sense_is_bounded(atelier: Atelier, gallery: Gallery, ann: User, limit: int) -> None:
    for n in range(2):
        atelier.order(ann, f"a boat, {n}")
    atelier.run()
    told = 1 if limit < 1 else 2
    assert [len(gallery.jobs(ann.id, limit=limit)), len(gallery.assets(ann.id, limit)), len(gallery.changes(ann.id, limit))] == [told] * 3


def test_every_change_of_a_job_is_later_than_the_one_before(atelier: Atelier, gallery: Gallery, ann: User) -> None:
    """Even while the clock stands still."""
    atelier.order(prompt="another's")
    first, second = atelier.order(ann, "one"), atelier.order(ann, "two")
    before = gallery.changes(ann.id)
    assert before == {first: gallery.job(ann.id, first).updated_at, second: gallery.job(ann.id, second).updated_at}
    assert gallery.changes(ann.id, limit=1) == {second: before[second]}
    atelier.counter.reject(first, by="olga", reason="no")
    after = gallery.changes(ann.id)
    assert (after[first] > before[first], after[second]) == (True, before[second])
    assert gallery.changes_of_unended(ann.id) == {second: before[second]}
    atelier.images.fail(*[Fault.limited(70)] * 2)
    atelier.run()
    failed = gallery.changes(ann.id)[second]
    atelier.order(ann, "two")
    assert before[second] < failed < gallery.changes(ann.id)[second] == gallery.job(ann.id, second).updated_at


def test_any_number_of_jobs_is_asked_for_by_their_ids(atelier: Atelier, gallery: Gallery, ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.studio.gallery.MOST", 2)
    ids = [atelier.order(ann, f"a boat, {n}") for n in range(5)]
    asked = {*ids, NO_ID}
    assert [job.id for job in gallery.these(ann.id, asked)] == ids
    assert set(gallery.changes_of(ann.id, asked)) == set(ids)
    assert (gallery.these(ann.id, []), gallery.changes_of(ann.id, [])) == ([], {})


# ---------------------------------------------------------------- another's
def test_anothers_job_is_not_found_as_one_that_does_not_exist(atelier: Atelier, gallery: Gallery, ann: User) -> None:
    id, bob = atelier.order(ann), atelier.user(name="bob")
    atelier.run()
    for strange in (id, id.upper(), *STRANGE):
        with pytest.raises(NotFound) as missing:
            gallery.job(bob.id, strange)
        assert str(missing.value) == f"You have no image {strange}: look at the list of yours."
    assert (gallery.jobs(bob.id), gallery.assets(bob.id), gallery.these(bob.id, [id])) == ([], [], [])
    assert (gallery.changes(bob.id), gallery.changes_of(bob.id, [id]), gallery.changes_of_unended(bob.id)) == ({}, {}, {})


def test_what_is_no_id_ends_no_page(gallery: Gallery, ann: User) -> None:
    for strange in STRANGE[1:]:
        for list_them in (gallery.jobs, gallery.assets):
            with pytest.raises(NotFound):
                list_them(ann.id, before=strange)


# ---------------------------------------------------------------- why
def test_only_a_job_that_is_not_made_has_a_reason(atelier: Atelier, gallery: Gallery) -> None:
    jobs = [come_to(atelier) for come_to in IN_STATE.values()]
    told = {}
    for id in jobs:
        job = seen(atelier, id)
        told[job.status] = gallery.reason(job)
        assert job.last_error is None or job.last_error not in (told[job.status] or "")
    assert set(told) == set(IN_STATE)
    assert {state for state, reason in told.items() if reason is None} == {"queued", "running", "completed"}
    assert "credits are not given back" in (told["rejected"] or "")
    assert "credits are back" in (told["dead_letter"] or "")
    assert "again" in (told["failed"] or "")


def seen(atelier: Atelier, id: str) -> Job:
    return atelier.gallery.job(atelier.rows("SELECT user_id FROM studio_orders WHERE job_id = :id", id=id)[0][0], id)


def test_what_was_only_interrupted_is_not_said_to_have_gone_wrong(atelier: Atelier, gallery: Gallery) -> None:
    job = seen(atelier, interrupted(atelier))
    assert (job.status, job.retry_count, job.last_error, job.due_at <= atelier.clock.now()) == ("failed", 0, None, True)
    assert (gallery.reason(job), how_it_stands(job)) == (INTERRUPTED, f"failed: {INTERRUPTED}")
    atelier.run()
    assert (atelier.state(job.id), gallery.reason(seen(atelier, job.id))) == ("completed", None)
    atelier.check()


def test_what_has_failed_before_is_said_to_have_failed(atelier: Atelier, gallery: Gallery) -> None:
    job = seen(atelier, IN_STATE["failed"](atelier))
    assert (job.interrupted, gallery.reason(job)) == (False, "A try went wrong. It is tried again by itself.")
    assert how_it_stands(job).startswith(f"failed: {job.last_error} (failure 1 of 4, on it goes at ")


# ---------------------------------------------------------------- images
def test_an_image_is_in_the_library_of_its_user(atelier: Atelier, gallery: Gallery, ann: User) -> None:
    ids = [atelier.order(ann, f"a boat, {n}", size="1024x1536") for n in range(3)][::-1]
    atelier.run()
    data = png("1024x1536")
    assert [(each.job_id, each.prompt, each.content_type, each.width, each.height, each.bytes) for each in gallery.assets(ann.id)] == [
        (id, f"a boat, {2 - n}", "image/png", 1024, 1536, len(data)) for n, id in enumerate(ids)]
    assert [each.job_id for each in gallery.assets(ann.id, limit=1)] == ids[:1]
    assert [each.job_id for each in gallery.assets(ann.id, before=ids[0])] == ids[1:]
    file = gallery.asset(ids[0])
    assert (file.path, file.content_type, file.bytes, file.sha256) == (f"originals/{ids[0]}", "image/png", len(data), hashlib.sha256(data).hexdigest())


def test_there_is_no_image_of_a_job_that_is_not_completed(atelier: Atelier, gallery: Gallery, ann: User) -> None:
    job = gallery.job(ann.id, atelier.order(ann))
    assert (gallery.result_url(job), gallery.assets(ann.id)) == (None, [])
    for id in (job.id, *STRANGE):
        with pytest.raises(NotFound):
            gallery.asset(id)


def test_the_link_to_an_image_is_signed_and_expires(atelier: Atelier, gallery: Gallery, ann: User) -> None:
    id = atelier.order(ann)
    atelier.run()
    link, now = urlsplit(gallery.result_url(gallery.job(ann.id, id)) or ""), atelier.clock.now()
    [expires], [signature] = parse_qs(link.query)["expires"], parse_qs(link.query)["signature"]
    assert link.path == f"/images/{id}"
    gallery.signer.check(id, expires, signature, now)
    # Another process signs alike: the secret is the database's.
    Gallery(atelier.studio).signer.check(id, expires, signature, now + timedelta(seconds=LIFE - 1))
    with pytest.raises(Expired):
        gallery.signer.check(id, expires, signature, now + timedelta(seconds=2 * LIFE))
    with pytest.raises(Forged):
        gallery.signer.check(NO_ID, expires, signature, now)
