"""The originals in a directory and in a bucket: an image is written once, atomically, and never replaced."""

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

from apps.studio.clients.image_file import InvalidImage
from apps.studio.clients.originals import MIN_FREE, Originals, StoredImage
from apps.studio.errors import BadSettings, NotFound, TemporaryError
from apps.studio.tests.fake_s3 import FakeS3, conflict, denied, half, lost, slow_down

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
    """Open the same storage again, like another process."""
    if request.param == "directory":
        return lambda: Originals.in_directory(tmp_path / "files")
    fake: FakeS3 = request.getfixturevalue("s3")
    return lambda: bucket(fake)


# ---------------------------------------------------------------- both storages
def test_image_is_stored_found_and_read(opened: Callable[[], Originals]) -> None:
    kept = asyncio.run(opened().store(JOB, RED))
    assert kept == StoredImage(PATH, "image/png", len(RED), hashlib.sha256(RED).hexdigest(), 40, 30)
    assert asyncio.run(opened().find(JOB)) == kept
    assert asyncio.run(opened().read(PATH)) == RED


def test_second_image_of_a_job_returns_the_first(opened: Callable[[], Originals]) -> None:
    first = asyncio.run(opened().store(JOB, RED))
    assert asyncio.run(opened().store(JOB, GREY)) == first
    assert asyncio.run(opened().read(PATH)) == RED


def test_concurrent_writes_store_one_image(opened: Callable[[], Originals]) -> None:
    async def race() -> list[StoredImage]:
        places = [opened() for _ in range(4)]
        return await asyncio.gather(*(place.store(JOB, drawn(shade)) for shade in range(8) for place in places))

    kept = set(asyncio.run(race()))
    assert len(kept) == 1
    assert kept == {asyncio.run(opened().find(JOB))}


def test_each_job_has_its_own_image(opened: Callable[[], Originals]) -> None:
    asyncio.run(opened().store("job-1", RED))
    assert asyncio.run(opened().find("job-2")) is None
    asyncio.run(opened().store("job-2", GREY))
    assert asyncio.run(opened().read("originals/job-1")) == RED


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_content_types_are_stored(opened: Callable[[], Originals], kind: str) -> None:
    assert asyncio.run(opened().store(JOB, drawn(9, kind=kind))).content_type == f"image/{kind.lower()}"


def test_invalid_image_is_not_stored(opened: Callable[[], Originals]) -> None:
    for junk in (b"", b"<html>", RED[:-20]):
        with pytest.raises(InvalidImage):
            asyncio.run(opened().store(JOB, junk))
    assert asyncio.run(opened().find(JOB)) is None


def test_missing_image_is_not_found(opened: Callable[[], Originals]) -> None:
    """This holds before the first write and after it."""
    for _ in range(2):
        assert asyncio.run(opened().find("job-1")) is None
        with pytest.raises(NotFound):
            asyncio.run(opened().read("originals/job-1"))
        asyncio.run(opened().store(JOB, RED))


@pytest.mark.parametrize("id", ["", "..", "../x", "a/b", "a#1", "a\0", "a\n", "ä", "x" * 65])
def test_path_must_be_a_job_id(opened: Callable[[], Originals], id: str) -> None:
    with pytest.raises(NotFound):
        asyncio.run(opened().store(id, RED))
    with pytest.raises(NotFound):
        asyncio.run(opened().read(f"../{id}"))


# ---------------------------------------------------------------- a directory
def test_directory_is_created_with_the_first_image_for_its_owner_only(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "files with spaces, 100% ü"
    originals = Originals.in_directory(place)
    assert asyncio.run(originals.find(JOB)) is None
    assert not place.exists()
    asyncio.run(originals.store(JOB, RED))
    assert {stat.S_IMODE(each.stat().st_mode) for each in (place, place / "originals")} == {0o700}
    assert [each.name for each in (place / "originals").iterdir()] == [JOB]
    assert (place / PATH).read_bytes() == RED


def test_late_image_leaves_no_file(tmp_path: Path) -> None:
    for data in (RED, GREY):
        asyncio.run(Originals.in_directory(tmp_path).store(JOB, data))
    assert [each.name for each in (tmp_path / "originals").iterdir()] == [JOB]


def test_directory_does_not_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    originals = Originals.in_directory(Path("files"))
    monkeypatch.chdir("/")
    asyncio.run(originals.store(JOB, RED))
    assert (tmp_path / "files" / PATH).read_bytes() == RED


def test_data_is_synced_before_the_name_and_the_name_before_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure, the image is complete or missing."""
    place, synced, sync = tmp_path / "files", list[tuple[int, bool]](), os.fsync

    def seen(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, (place / PATH).exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    asyncio.run(Originals.in_directory(place).store(JOB, RED))
    above, files, names, image = (each.stat().st_ino for each in (tmp_path, place, place / "originals", place / PATH))
    assert synced == [(above, False), (files, False), (files, False), (image, False), (names, True)]
    asyncio.run(Originals.in_directory(place).find(JOB))
    assert synced[5:] == [(names, True)], "the writer may have crashed before that"


def test_unusable_directory_is_a_temporary_error(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file in its place")
    originals = Originals.in_directory(tmp_path / "files")
    for attempt in (originals.store(JOB, RED), originals.find(JOB), originals.read(PATH)):
        with pytest.raises(TemporaryError, match="The storage failed") as trouble:
            asyncio.run(attempt)
        assert "\n" not in str(trouble.value)


def broken_sync(descriptor: int) -> None:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EIO, "the disk is ill")


def broken_rename(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "the disk is ill")


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [(os, "fsync", broken_sync), (obstore, "rename", broken_rename)],
    ids=["sync", "rename"],
)
def test_failed_write_removes_its_staged_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: object,
    name: str,
    broken: Callable[..., None],
    *,
    stuck: bool,
) -> None:
    """If that fails too, the first error is reported."""

    def immovable(_: Path) -> None:
        raise PermissionError("it stays")

    monkeypatch.setattr(place, name, broken)
    if stuck:
        monkeypatch.setattr(Path, "unlink", immovable)
    with pytest.raises(TemporaryError, match="the disk is ill"):
        asyncio.run(Originals.in_directory(tmp_path).store(JOB, RED))
    assert len([*(tmp_path / "staged").iterdir(), *(tmp_path / "originals").iterdir()]) == stuck


# ---------------------------------------------------------------- free space
@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the free disk space."""
    usage = shutil.disk_usage("/")
    return lambda free: monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))


def test_check_passes_with_enough_space_and_leaves_no_file(tmp_path: Path, free: Callable[[int], None]) -> None:
    originals = Originals.in_directory(tmp_path / "files")
    for _ in range(2):
        free(MIN_FREE)
        asyncio.run(originals.check_writable())
        assert [each.name for each in sorted((tmp_path / "files").rglob("*"))] == ["originals", "staged"]
        free(MIN_FREE - 1)
        with pytest.raises(TemporaryError, match="63 MiB free; at least 64"):
            asyncio.run(originals.check_writable())


@pytest.mark.parametrize("file", ["files", "files/originals", "files/staged"])
def test_check_fails_for_a_read_only_directory(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("a file in its place")
    with pytest.raises(TemporaryError, match="The storage failed"):
        asyncio.run(Originals.in_directory(tmp_path / "files").check_writable())


def test_check_does_not_query_a_bucket(s3: FakeS3, free: Callable[[int], None]) -> None:
    free(0)
    asyncio.run(bucket(s3).check_writable())
    assert s3.asked == []


def test_damaged_file_is_an_error_and_is_not_replaced(tmp_path: Path) -> None:
    originals = Originals.in_directory(tmp_path)
    asyncio.run(originals.store(JOB, RED))
    (tmp_path / PATH).write_bytes(RED[:60])
    for attempt in (originals.find(JOB), originals.store(JOB, GREY)):
        with pytest.raises(TemporaryError, match=f"The stored file {PATH} is not a complete image"):
            asyncio.run(attempt)
    assert (tmp_path / PATH).read_bytes() == RED[:60]


# ---------------------------------------------------------------- a bucket
def test_bucket_writes_are_conditional_and_typed(s3: FakeS3) -> None:
    asyncio.run(bucket(s3).store(JOB, RED))
    key = f"pictures/of us/{PATH}"
    assert [(asked.key, asked.if_none_match) for asked in s3.of("PUT")] == [(key, "*")]
    assert s3.objects[key].content_type == "image/png"


def test_large_image_is_one_conditional_write(s3: FakeS3) -> None:
    """A multipart upload would have no condition."""
    to = io.BytesIO()
    Image.frombytes("RGB", (1600, 1400), os.urandom(1600 * 1400 * 3)).save(to, "PNG")
    asyncio.run(bucket(s3).store(JOB, to.getvalue()))
    assert len(to.getvalue()) > 6 * 2**20
    assert [(asked.method, asked.if_none_match) for asked in s3.asked] == [("PUT", "*")]


def test_brief_bucket_failure_is_retried(s3: FakeS3) -> None:
    s3.fail(slow_down())
    asyncio.run(bucket(s3).store(JOB, RED))
    s3.fail(half())
    assert asyncio.run(bucket(s3).read(PATH)) == RED


def test_write_with_a_lost_response_counts_as_done(s3: FakeS3) -> None:
    """The retry finds the stored image."""
    s3.fail(lost())
    assert asyncio.run(bucket(s3).store(JOB, RED)).sha256 == hashlib.sha256(RED).hexdigest()
    assert len(s3.of("PUT")) == 2


@pytest.mark.parametrize(
    ("fault", "word"), [(slow_down(), "SlowDown"), (denied(), "AccessDenied"), (lost(), "request")]
)
def test_failing_bucket_is_a_temporary_error(s3: FakeS3, fault: object, word: str) -> None:
    asyncio.run(bucket(s3).store(JOB, RED))
    for attempt in (bucket(s3).store("job-1", RED), bucket(s3).find(JOB), bucket(s3).read(PATH)):
        s3.fail(*[fault] * 3)
        with pytest.raises(TemporaryError, match=word) as trouble:
            asyncio.run(attempt)
        assert "\n" not in str(trouble.value)
        s3.mend()


def test_conflicting_conditional_writes_are_retried(s3: FakeS3) -> None:
    s3.fail(conflict())
    with pytest.raises(TemporaryError):
        asyncio.run(bucket(s3).store(JOB, RED))
    assert asyncio.run(bucket(s3).store(JOB, RED)).path == PATH


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"secret_key": "another"}, "SignatureDoesNotMatch"),
        ({"access_key": "another"}, "InvalidAccessKeyId"),
        ({"region": "us-west-1"}, "AuthorizationHeaderMalformed"),
        ({"bucket": "another"}, "NoSuchBucket"),
        ({"endpoint": "http://127.0.0.1:9"}, "sending request"),
    ],
)
def test_unreachable_bucket_is_an_error_and_not_a_missing_image(s3: FakeS3, given: dict[str, str], word: str) -> None:
    """Otherwise the provider would be called again."""
    asyncio.run(bucket(s3).store(JOB, RED))
    originals = bucket(s3, **given)
    for attempt in (originals.find(JOB), originals.read(PATH), originals.store(JOB, GREY)):
        with pytest.raises(TemporaryError, match=word) as trouble:
            asyncio.run(attempt)
        assert s3.secret_key not in str(trouble.value)


def test_access_key_without_a_secret_is_refused(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(BadSettings, match="S3 settings"):
        bucket(s3, secret_key=None)
