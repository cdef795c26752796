"""The originals, in a directory and in a bucket: an image is written once, whole, under its job's id, and never replaced."""

import asyncio
import errno
import hashlib
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pytest
from PIL import Image

from apps.studio.errors import BadSettings, NotFound, Trouble
from apps.studio.originals import ROOM, Kept, Originals
from apps.studio.picture import BadPicture
from apps.studio.tests.s3_api import FakeS3, conflict, denied, half, lost, slow_down

JOB = "0190a6f0-0000-7000-8000-000000000001"
PATH = f"originals/{JOB}"


def drawn(shade: int, size: tuple[int, int] = (40, 30), kind: str = "PNG") -> bytes:
    to = io.BytesIO()
    Image.new("RGB", size, (shade, 99, 99)).save(to, kind)
    return to.getvalue()


RED, GREY = drawn(250), drawn(99)


def bucket(s3: FakeS3, **given: str | None) -> Originals:
    usual = {"endpoint": s3.url, "region": s3.region, "access_key": s3.access_key, "secret_key": s3.secret_key}
    return Originals.in_bucket(given.pop("bucket", None) or s3.bucket, "pictures/of us", **{**usual, **given})


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with FakeS3() as fake:
        yield fake


@pytest.fixture(params=["directory", "bucket"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Originals]:
    """Opens the same storage anew, as another process would."""
    if request.param == "directory":
        return lambda: Originals.in_directory(tmp_path / "files")
    fake: FakeS3 = request.getfixturevalue("s3")
    return lambda: bucket(fake)


# ---------------------------------------------------------------- both
def test_an_image_is_kept_and_found_and_read(opened: Callable[[], Originals]) -> None:
    kept = asyncio.run(opened().keep(JOB, RED))
    assert kept == Kept(PATH, "image/png", len(RED), hashlib.sha256(RED).hexdigest(), 40, 30)
    assert asyncio.run(opened().find(JOB)) == kept
    assert asyncio.run(opened().read(PATH)) == RED


def test_what_is_there_stays_and_is_the_answer(opened: Callable[[], Originals]) -> None:
    """Whoever comes second, with another image, is told of the first."""
    first = asyncio.run(opened().keep(JOB, RED))
    assert asyncio.run(opened().keep(JOB, GREY)) == first
    assert asyncio.run(opened().read(PATH)) == RED


def test_of_many_at_once_one_is_kept_and_all_are_told_of_that_one(opened: Callable[[], Originals]) -> None:
    async def race() -> list[Kept]:
        places = [opened() for _ in range(4)]
        return await asyncio.gather(*(place.keep(JOB, drawn(shade)) for shade in range(8) for place in places))

    kept = set(asyncio.run(race()))
    assert len(kept) == 1
    assert kept == {asyncio.run(opened().find(JOB))}


def test_each_job_has_its_own(opened: Callable[[], Originals]) -> None:
    asyncio.run(opened().keep("job-1", RED))
    assert asyncio.run(opened().find("job-2")) is None
    asyncio.run(opened().keep("job-2", GREY))
    assert asyncio.run(opened().read("originals/job-1")) == RED


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_other_formats_are_kept_as_what_they_are(opened: Callable[[], Originals], kind: str) -> None:
    assert asyncio.run(opened().keep(JOB, drawn(9, kind=kind))).content_type == f"image/{kind.lower()}"


def test_what_is_no_picture_is_not_kept(opened: Callable[[], Originals]) -> None:
    for junk in (b"", b"<html>", RED[:-20]):
        with pytest.raises(BadPicture):
            asyncio.run(opened().keep(JOB, junk))
    assert asyncio.run(opened().find(JOB)) is None


def test_what_is_not_there_is_not_found(opened: Callable[[], Originals]) -> None:
    """Before anything was written, and after."""
    for _ in range(2):
        assert asyncio.run(opened().find("job-1")) is None
        with pytest.raises(NotFound):
            asyncio.run(opened().read("originals/job-1"))
        asyncio.run(opened().keep(JOB, RED))


@pytest.mark.parametrize("id", ["", "..", "../x", "a/b", "a#1", "a\0", "a\n", "ä", "x" * 65])
def test_only_an_id_names_an_image(opened: Callable[[], Originals], id: str) -> None:
    with pytest.raises(NotFound):
        asyncio.run(opened().keep(id, RED))
    with pytest.raises(NotFound):
        asyncio.run(opened().read(f"../{id}"))


# ---------------------------------------------------------------- a directory
def test_the_directory_is_made_with_the_first_image_and_for_its_owner_alone(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "files with spaces, 100% ü"
    originals = Originals.in_directory(place)
    assert asyncio.run(originals.find(JOB)) is None
    assert not place.exists()
    asyncio.run(originals.keep(JOB, RED))
    assert {stat.S_IMODE(each.stat().st_mode) for each in (place, place / "originals")} == {0o700}
    assert [each.name for each in (place / "originals").iterdir()] == [JOB]
    assert (place / PATH).read_bytes() == RED


def test_an_image_that_came_too_late_leaves_nothing(tmp_path: Path) -> None:
    for data in (RED, GREY):
        asyncio.run(Originals.in_directory(tmp_path).keep(JOB, data))
    assert [each.name for each in (tmp_path / "originals").iterdir()] == [JOB]


def test_a_directory_is_the_same_wherever_the_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    originals = Originals.in_directory(Path("files"))
    monkeypatch.chdir("/")
    asyncio.run(originals.keep(JOB, RED))
    assert (tmp_path / "files" / PATH).read_bytes() == RED


def test_the_bytes_last_before_the_name_does_and_the_name_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure there is the whole image under its name, or none."""
    place, synced, sync = tmp_path / "files", list[tuple[int, bool]](), os.fsync

    def seen(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, (place / PATH).exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    asyncio.run(Originals.in_directory(place).keep(JOB, RED))
    above, files, names, image = (each.stat().st_ino for each in (tmp_path, place, place / "originals", place / PATH))
    assert synced == [(above, False), (files, False), (files, False), (image, False), (names, True)]
    asyncio.run(Originals.in_directory(place).find(JOB))
    assert synced[5:] == [(names, True)], "whoever wrote it may have died before that"


def test_a_directory_that_cannot_be_used_is_trouble_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file in its place")
    originals = Originals.in_directory(tmp_path / "files")
    for attempt in (originals.keep(JOB, RED), originals.find(JOB), originals.read(PATH)):
        with pytest.raises(Trouble, match="The storage cannot be used") as trouble:
            asyncio.run(attempt)
        assert "\n" not in str(trouble.value)


def broken_sync(descriptor: int) -> None:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EIO, "the disk is ill")


def broken_rename(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "the disk is ill")


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize(("place", "name", "broken"), [(os, "fsync", broken_sync), (obstore, "rename", broken_rename)], ids=["sync", "rename"])
def test_a_write_that_fails_takes_what_it_has_staged_away(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, name: str, broken: Callable[..., None], *, stuck: bool) -> None:
    """If it can; either way the first trouble is what is told."""
    def immovable(_: Path) -> None:
        raise PermissionError("it stays")

    monkeypatch.setattr(place, name, broken)
    if stuck:
        monkeypatch.setattr(Path, "unlink", immovable)
    with pytest.raises(Trouble, match="the disk is ill"):
        asyncio.run(Originals.in_directory(tmp_path).keep(JOB, RED))
    assert len([*(tmp_path / "staged").iterdir(), *(tmp_path / "originals").iterdir()]) == stuck


# ---------------------------------------------------------------- room
@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many bytes are free on every disk."""
    usage = shutil.disk_usage("/")
    return lambda free: monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))


def test_a_directory_is_ready_while_there_is_room_and_is_left_as_it_was(tmp_path: Path, free: Callable[[int], None]) -> None:
    originals = Originals.in_directory(tmp_path / "files")
    for _ in range(2):
        free(ROOM)
        asyncio.run(originals.ready())
        assert [each.name for each in sorted((tmp_path / "files").rglob("*"))] == ["originals", "staged"]
        free(ROOM - 1)
        with pytest.raises(Trouble, match="63 MiB free, where at least 64"):
            asyncio.run(originals.ready())


@pytest.mark.parametrize("file", ["files", "files/originals", "files/staged"])
def test_a_directory_that_cannot_be_written_is_not_ready(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("a file in its place")
    with pytest.raises(Trouble, match="The storage cannot be used"):
        asyncio.run(Originals.in_directory(tmp_path / "files").ready())


def test_a_bucket_is_ready_without_being_asked(s3: FakeS3, free: Callable[[int], None]) -> None:
    free(0)
    asyncio.run(bucket(s3).ready())
    assert s3.asked == []


def test_what_a_disk_has_damaged_is_trouble_and_not_replaced(tmp_path: Path) -> None:
    originals = Originals.in_directory(tmp_path)
    asyncio.run(originals.keep(JOB, RED))
    (tmp_path / PATH).write_bytes(RED[:60])
    for attempt in (originals.find(JOB), originals.keep(JOB, GREY)):
        with pytest.raises(Trouble, match=f"What is kept as {PATH} is no whole picture"):
            asyncio.run(attempt)
    assert (tmp_path / PATH).read_bytes() == RED[:60]


# ---------------------------------------------------------------- a bucket
def test_every_write_to_a_bucket_is_conditional_and_says_its_type(s3: FakeS3) -> None:
    asyncio.run(bucket(s3).keep(JOB, RED))
    key = f"pictures/of us/{PATH}"
    assert [(asked.key, asked.if_none_match) for asked in s3.of("PUT")] == [(key, "*")]
    assert s3.objects[key].content_type == "image/png"


def test_a_large_image_goes_to_a_bucket_in_one_conditional_write(s3: FakeS3) -> None:
    """In parts, it would be put together without a condition."""
    to = io.BytesIO()
    Image.frombytes("RGB", (1600, 1400), os.urandom(1600 * 1400 * 3)).save(to, "PNG")
    asyncio.run(bucket(s3).keep(JOB, to.getvalue()))
    assert len(to.getvalue()) > 6 * 2**20
    assert [(asked.method, asked.if_none_match) for asked in s3.asked] == [("PUT", "*")]


def test_a_hiccup_of_the_bucket_is_bridged(s3: FakeS3) -> None:
    s3.fail(slow_down())
    asyncio.run(bucket(s3).keep(JOB, RED))
    s3.fail(half())
    assert asyncio.run(bucket(s3).read(PATH)) == RED


def test_a_write_whose_answer_was_lost_is_found_to_be_done(s3: FakeS3) -> None:
    """Asked again, the bucket refuses to replace, and what is there is ours."""
    s3.fail(lost())
    assert asyncio.run(bucket(s3).keep(JOB, RED)).sha256 == hashlib.sha256(RED).hexdigest()
    assert len(s3.of("PUT")) == 2


@pytest.mark.parametrize(("fault", "word"), [(slow_down(), "SlowDown"), (denied(), "AccessDenied"), (lost(), "request")])
def test_a_bucket_in_trouble_is_trouble_in_a_sentence(s3: FakeS3, fault: object, word: str) -> None:
    asyncio.run(bucket(s3).keep(JOB, RED))
    for attempt in (bucket(s3).keep("job-1", RED), bucket(s3).find(JOB), bucket(s3).read(PATH)):
        s3.fail(*[fault] * 3)
        with pytest.raises(Trouble, match=word) as trouble:
            asyncio.run(attempt)
        assert "\n" not in str(trouble.value)
        s3.mend()


def test_two_conditional_writes_at_once_may_be_tried_again(s3: FakeS3) -> None:
    s3.fail(conflict())
    with pytest.raises(Trouble):
        asyncio.run(bucket(s3).keep(JOB, RED))
    assert asyncio.run(bucket(s3).keep(JOB, RED)).path == PATH


@pytest.mark.parametrize(("given", "word"), [
    ({"secret_key": "another"}, "SignatureDoesNotMatch"), ({"access_key": "another"}, "InvalidAccessKeyId"),
    ({"region": "us-west-1"}, "AuthorizationHeaderMalformed"), ({"bucket": "another"}, "NoSuchBucket"), ({"endpoint": "http://127.0.0.1:9"}, "sending request"),
])
def test_a_bucket_that_cannot_be_reached_is_trouble_and_not_an_absence(s3: FakeS3, given: dict[str, str], word: str) -> None:
    """An image that is there must never look as if it were not: the provider would be asked again."""
    asyncio.run(bucket(s3).keep(JOB, RED))
    originals = bucket(s3, **given)
    for attempt in (originals.find(JOB), originals.read(PATH), originals.keep(JOB, GREY)):
        with pytest.raises(Trouble, match=word) as trouble:
            asyncio.run(attempt)
        assert s3.secret_key not in str(trouble.value)


def test_half_a_key_is_a_bad_setting(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(BadSettings, match="S3 settings"):
        bucket(s3, secret_key=None)
