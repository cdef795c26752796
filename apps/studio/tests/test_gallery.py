"""The gallery: users see all of their own jobs and images, nothing of other users, and no provider messages."""

import hashlib
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from apps.studio.errors import NotFound
from apps.studio.formatting import format_status
from apps.studio.gallery import INTERRUPTED, MAX_ROWS, Gallery, Job
from apps.studio.signed_links import LIFETIME, ExpiredLink, InvalidLink
from apps.studio.tests.fake_images_api import Fault, png
from apps.studio.tests.scenarios import JOB_IN_STATE, interrupted
from apps.studio.tests.studio_kit import PROMPT, StudioKit
from apps.studio.users import User

NO_ID = "01900000-0000-7000-8000-000000000000"
STRANGE = (NO_ID, "1", "", "'; DROP TABLE studio_orders", "\x00", "{id}")


@pytest.fixture
def gallery(kit: StudioKit) -> Gallery:
    return kit.gallery


@pytest.fixture
def ann(kit: StudioKit) -> User:
    return kit.user(name="ann")


# ---------------------------------------------------------------- jobs
def test_job_is_readable_as_soon_as_it_is_created(kit: StudioKit, ann: User) -> None:
    id = kit.order(ann, size="1536x1024", seed=7)
    job, now = kit.gallery.job(ann.id, id), kit.clock.now()
    assert (job.id, job.user_id, job.prompt, job.size, job.seed, job.cost, job.status) == (
        id,
        ann.id,
        PROMPT,
        "1536x1024",
        7,
        2,
        "queued",
    )
    assert (job.retry_count, job.max_retries, job.created_at, job.due_at, job.version) == (0, 4, now, now, 0)
    assert (job.started_at, job.finished_at, job.result_path, job.last_error, job.redrive_of) == (
        None,
        None,
        None,
        None,
        None,
    )


def test_completed_job_has_times_and_result(kit: StudioKit, ann: User) -> None:
    id = kit.order(ann)
    kit.run_after(60)
    job, now = kit.gallery.job(ann.id, id), kit.clock.now()
    assert (job.status, job.started_at, job.result_path, job.retry_count) == ("completed", now, f"originals/{id}", 0)
    assert (job.created_at, job.finished_at) == (now - timedelta(seconds=60), now)


def test_failed_job_has_its_failures_and_due_time(kit: StudioKit, ann: User) -> None:
    kit.images.fail(Fault.limited(70))
    id = kit.order(ann)
    kit.run()
    job = kit.gallery.job(ann.id, id)
    assert (job.status, job.retry_count, job.due_at) == ("failed", 1, kit.clock.now() + timedelta(seconds=70))
    assert "429" in (job.last_error or "")


def test_jobs_are_listed_newest_first_in_pages(kit: StudioKit, gallery: Gallery, ann: User) -> None:
    kit.order(prompt="another's")
    ids = [kit.order(ann, f"a boat, {n}") for n in range(5)][::-1]
    assert [job.id for job in gallery.jobs(ann.id)] == ids
    pages = [
        gallery.jobs(ann.id, limit=2),
        gallery.jobs(ann.id, limit=2, before=ids[1]),
        gallery.jobs(ann.id, limit=2, before=ids[3]),
    ]
    assert [[job.id for job in page] for page in pages] == [ids[:2], ids[2:4], ids[4:]]
    assert gallery.jobs(ann.id, before=ids[4]) == []


@pytest.mark.parametrize("limit", [-1, 0, MAX_ROWS * 1000, 2**70])
def test_limit_is_clamped(kit: StudioKit, gallery: Gallery, ann: User, limit: int) -> None:
    for n in range(2):
        kit.order(ann, f"a boat, {n}")
    kit.run()
    told = 1 if limit < 1 else 2
    assert [
        len(gallery.jobs(ann.id, limit=limit)),
        len(gallery.assets(ann.id, limit)),
        len(gallery.changes(ann.id, limit)),
    ] == [told] * 3


def test_each_change_of_a_job_is_later_than_the_previous(kit: StudioKit, gallery: Gallery, ann: User) -> None:
    """This holds even while the clock is stopped."""
    kit.order(prompt="another's")
    first, second = kit.order(ann, "one"), kit.order(ann, "two")
    before = gallery.changes(ann.id)
    assert before == {first: gallery.job(ann.id, first).updated_at, second: gallery.job(ann.id, second).updated_at}
    assert gallery.changes(ann.id, limit=1) == {second: before[second]}
    kit.orders.reject(first, by="olga", reason="no")
    after = gallery.changes(ann.id)
    assert (after[first] > before[first], after[second]) == (True, before[second])
    assert gallery.changes_of_open_jobs(ann.id) == {second: before[second]}
    kit.images.fail(*[Fault.limited(70)] * 2)
    kit.run()
    failed = gallery.changes(ann.id)[second]
    kit.order(ann, "two")
    assert before[second] < failed < gallery.changes(ann.id)[second] == gallery.job(ann.id, second).updated_at


def test_any_number_of_jobs_can_be_read_by_id(
    kit: StudioKit, gallery: Gallery, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.studio.gallery.MAX_ROWS", 2)
    ids = [kit.order(ann, f"a boat, {n}") for n in range(5)]
    asked = {*ids, NO_ID}
    assert [job.id for job in gallery.jobs_by_id(ann.id, asked)] == ids
    assert set(gallery.changes_by_id(ann.id, asked)) == set(ids)
    assert (gallery.jobs_by_id(ann.id, []), gallery.changes_by_id(ann.id, [])) == ([], {})


# ---------------------------------------------------------------- other users
def test_job_of_another_user_is_not_found(kit: StudioKit, gallery: Gallery, ann: User) -> None:
    id, bob = kit.order(ann), kit.user(name="bob")
    kit.run()
    for strange in (id, id.upper(), *STRANGE):
        with pytest.raises(NotFound) as missing:
            gallery.job(bob.id, strange)
        assert str(missing.value) == f"You have no image {strange}. Check the list of your images."
    assert (gallery.jobs(bob.id), gallery.assets(bob.id), gallery.jobs_by_id(bob.id, [id])) == ([], [], [])
    assert (gallery.changes(bob.id), gallery.changes_by_id(bob.id, [id]), gallery.changes_of_open_jobs(bob.id)) == (
        {},
        {},
        {},
    )


def test_malformed_before_id_is_not_found(gallery: Gallery, ann: User) -> None:
    for strange in STRANGE[1:]:
        for list_them in (gallery.jobs, gallery.assets):
            with pytest.raises(NotFound):
                list_them(ann.id, before=strange)


# ---------------------------------------------------------------- reasons
def test_only_unfinished_jobs_have_a_reason(kit: StudioKit, gallery: Gallery) -> None:
    jobs = [come_to(kit) for come_to in JOB_IN_STATE.values()]
    told = {}
    for id in jobs:
        job = seen(kit, id)
        told[job.status] = gallery.reason(job)
        assert job.last_error is None or job.last_error not in (told[job.status] or "")
    assert set(told) == set(JOB_IN_STATE)
    assert {state for state, reason in told.items() if reason is None} == {"queued", "running", "completed"}
    assert "credits are not refunded" in (told["rejected"] or "")
    assert "credits were refunded" in (told["dead_letter"] or "")
    assert "retried" in (told["failed"] or "")


def seen(kit: StudioKit, id: str) -> Job:
    return kit.gallery.job(kit.rows("SELECT user_id FROM studio_orders WHERE job_id = :id", id=id)[0][0], id)


def test_interrupted_job_is_not_reported_as_failed(kit: StudioKit, gallery: Gallery) -> None:
    job = seen(kit, interrupted(kit))
    assert (job.status, job.retry_count, job.last_error, job.due_at <= kit.clock.now()) == ("failed", 0, None, True)
    assert (gallery.reason(job), format_status(job)) == (INTERRUPTED, f"failed: {INTERRUPTED}")
    kit.run()
    assert (kit.state(job.id), gallery.reason(seen(kit, job.id))) == ("completed", None)
    kit.check()


def test_job_with_a_failure_is_reported_as_failed(kit: StudioKit, gallery: Gallery) -> None:
    job = seen(kit, JOB_IN_STATE["failed"](kit))
    assert (job.interrupted, gallery.reason(job)) == (False, "An attempt failed. It is retried automatically.")
    assert format_status(job).startswith(f"failed: {job.last_error} (failure 1 of 4, next attempt at ")


# ---------------------------------------------------------------- images
def test_image_is_in_the_library_of_its_user(kit: StudioKit, gallery: Gallery, ann: User) -> None:
    ids = [kit.order(ann, f"a boat, {n}", size="1024x1536") for n in range(3)][::-1]
    kit.run()
    data = png("1024x1536")
    assert [
        (each.job_id, each.prompt, each.content_type, each.width, each.height, each.bytes)
        for each in gallery.assets(ann.id)
    ] == [(id, f"a boat, {2 - n}", "image/png", 1024, 1536, len(data)) for n, id in enumerate(ids)]
    assert [each.job_id for each in gallery.assets(ann.id, limit=1)] == ids[:1]
    assert [each.job_id for each in gallery.assets(ann.id, before=ids[0])] == ids[1:]
    file = gallery.asset(ids[0])
    assert (file.path, file.content_type, file.bytes, file.sha256) == (
        f"originals/{ids[0]}",
        "image/png",
        len(data),
        hashlib.sha256(data).hexdigest(),
    )


def test_unfinished_job_has_no_image(kit: StudioKit, gallery: Gallery, ann: User) -> None:
    job = gallery.job(ann.id, kit.order(ann))
    assert (gallery.result_url(job), gallery.assets(ann.id)) == (None, [])
    for id in (job.id, *STRANGE):
        with pytest.raises(NotFound):
            gallery.asset(id)


def test_image_link_is_signed_and_expires(kit: StudioKit, gallery: Gallery, ann: User) -> None:
    id = kit.order(ann)
    kit.run()
    link, now = urlsplit(gallery.result_url(gallery.job(ann.id, id)) or ""), kit.clock.now()
    [expires], [signature] = parse_qs(link.query)["expires"], parse_qs(link.query)["signature"]
    assert link.path == f"/images/{id}"
    gallery.signer.check(id, expires, signature, now)
    # Another process creates the same signature: the secret is in the database.
    Gallery(kit.studio).signer.check(id, expires, signature, now + timedelta(seconds=LIFETIME - 1))
    with pytest.raises(ExpiredLink):
        gallery.signer.check(id, expires, signature, now + timedelta(seconds=2 * LIFETIME))
    with pytest.raises(InvalidLink):
        gallery.signer.check(NO_ID, expires, signature, now)
