"""The originals: private storage of images in a directory or an S3 bucket. Each image is written once, atomically."""

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, S3Store

from ..errors import BadSettings, NotFound, TemporaryError
from .image_file import InvalidImage, inspect_image

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

PREFIX, STAGED = "originals", "staged"
MIN_FREE = 64 * 2**20
"""Bytes that must be free before an image is requested: twice the largest image."""
ABANDONED_AFTER = 86_400.0
"""Seconds after which a staged file counts as abandoned by a crashed process."""
CLIENT: "ClientConfig" = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=60)}
# Jobs are retried anyway, so the client itself retries only briefly.
RETRY: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=60)}


@dataclass(frozen=True)
class StoredImage:
    """A stored image."""

    path: str
    """`originals/<job id>`, within the storage."""
    content_type: str
    bytes: int
    sha256: str
    width: int
    height: int


class Originals:
    """Stores images. It connects on first use and never deletes an image.

    Calls block in threads of this process: obstore's own threads can crash the interpreter when it exits.
    """

    def __init__(self, store: ObjectStore | None, directory: Path | None = None) -> None:
        self._opened_store, self._directory, self._cleaned = store, directory, False

    @classmethod
    def in_directory(cls, directory: Path) -> Self:
        """Use a directory. It is created for the first image, with access for its owner only."""
        return cls(None, directory.absolute())

    @classmethod
    def in_bucket(
        cls,
        bucket: str,
        prefix: str,
        *,
        endpoint: str | None,
        region: str | None,
        access_key: str | None,
        secret_key: str | None,
    ) -> Self:
        """Use a bucket that supports `If-None-Match: *`.

        Arguments that are None come from the usual AWS variables or from the machine's role.
        """
        config: S3Config = {"conditional_put": "etag"}
        if endpoint is not None:
            config["endpoint"] = endpoint
        if region is not None:
            config["region"] = region
        if access_key is not None:
            config["access_key_id"] = access_key
        if secret_key is not None:
            config["secret_access_key"] = secret_key
        client: ClientConfig = {**CLIENT, "allow_http": (endpoint or "").startswith("http://")}
        try:
            return cls(S3Store(bucket, prefix=prefix or None, config=config, client_options=client, retry_config=RETRY))
        except (BaseError, ValueError) as error:
            raise BadSettings(f"Cannot use the bucket: {_first_line(error)}. Check the S3 settings.") from None

    async def check_writable(self) -> None:
        """Raise `TemporaryError` if the directory is not writable or nearly full. A bucket is not checked."""
        if self._directory is not None:
            await asyncio.to_thread(_check_directory, self._directory)

    async def store(self, job_id: str, data: bytes) -> StoredImage:
        """Store an image, or return the one that is already stored. Raises `InvalidImage` for invalid data."""
        return await asyncio.to_thread(self._store_image, _path(job_id), data)

    async def find(self, job_id: str) -> StoredImage | None:
        """The stored image of this job, if there is one."""
        try:
            return await asyncio.to_thread(self._read_stored, _path(job_id))
        except NotFound:
            return None

    async def read(self, path: str) -> bytes:
        """Read the image at this path. Raises `NotFound` if there is none."""
        return await asyncio.to_thread(self._read, path)

    def _store_image(self, path: str, data: bytes) -> StoredImage:
        kept = _describe(path, data)
        with _storage_errors(path):
            try:
                if self._directory is None:
                    obstore.put(
                        self._object_store(), path, data, mode="create", attributes={"Content-Type": kept.content_type}
                    )
                else:
                    self._write_file(self._directory, path, data)
            except AlreadyExistsError:
                return self._read_stored(path)
        return kept

    def _read_stored(self, path: str) -> StoredImage:
        data = self._read(path)
        with _storage_errors(path):
            # The process that wrote it may have crashed before it synced the directory.
            if self._directory is not None:
                _fsync(self._directory / PREFIX)
        try:
            return _describe(path, data)
        except InvalidImage:
            raise TemporaryError(
                f"The stored file {path} is not a complete image and is never replaced. Remove it and redrive the job."
            ) from None

    def _read(self, path: str) -> bytes:
        with _storage_errors(path):
            try:
                return bytes(obstore.get(self._object_store(), path).bytes())
            except (FileNotFoundError, ValueError) as error:
                if "NoSuchBucket" in str(error):
                    raise
        raise NotFound(f"The storage has no file {path[:100]!r}.")

    def _write_file(self, directory: Path, path: str, data: bytes) -> None:
        """Write to a staged file, sync it, then rename it, so that a power failure never leaves a partial image."""
        _make_directories(directory)
        if not self._cleaned:
            _remove_abandoned(directory / STAGED)
            self._cleaned = True
        store, staged = self._object_store(), f"{STAGED}/{secrets.token_hex(8)}"
        try:
            obstore.put(store, staged, data)
            _fsync(directory / staged)
            obstore.rename(store, staged, path, overwrite=False)
        except BaseException:
            with suppress(OSError):
                (directory / staged).unlink()
            raise
        _fsync(directory / PREFIX)

    def _object_store(self) -> ObjectStore:
        if self._opened_store is None:
            if self._directory is None or not self._directory.exists():
                raise FileNotFoundError(self._directory)
            self._opened_store = LocalStore(self._directory)
        return self._opened_store


def _path(job_id: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z-]{1,64}", job_id):
        raise NotFound(f"{job_id[:64]!r} is not a job ID.")
    return f"{PREFIX}/{job_id}"


def _describe(path: str, data: bytes) -> StoredImage:
    facts = inspect_image(data)
    return StoredImage(path, facts.content_type, len(data), hashlib.sha256(data).hexdigest(), facts.width, facts.height)


def _make_directories(directory: Path) -> None:
    """Create missing directories with access for their owner only, and sync their parents."""
    for each in (directory, directory / PREFIX, directory / STAGED):
        if not each.exists():
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            _fsync(each.parent)


def _check_directory(directory: Path) -> None:
    with _storage_errors(PREFIX):
        _make_directories(directory)
        for each in (directory / PREFIX, directory / STAGED):
            # The temporary file has no name where the system supports that, so a crash leaves nothing behind.
            tempfile.TemporaryFile(dir=each).close()
        free = shutil.disk_usage(directory).free
    if free < MIN_FREE:
        raise TemporaryError(
            f"The storage has {free >> 20} MiB free; at least {MIN_FREE >> 20} MiB are required. Free some space."
        )


def _remove_abandoned(staged: Path) -> None:
    """Remove staged files that crashed processes left behind."""
    for left in staged.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > ABANDONED_AFTER:
                left.unlink()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _storage_errors(path: str) -> Generator[None]:
    """Translate errors of the storage into `TemporaryError`."""
    try:
        yield
    except (BaseError, OSError, NotFound) as error:
        raise TemporaryError(
            f"The storage failed for {path}: {_first_line(error)}. Check that it exists, is writable and is not full."
        ) from error


def _first_line(error: Exception) -> str:
    """The first line of an error and the S3 error code, without the library's internal details."""
    text = str(error)
    word = re.search(r"<Code>(\w{1,80})</Code>", text)
    return text.partition("\n")[0].partition("<")[0].strip(" .:")[:300] + (f" ({word[1]})" if word else "")
