"""The originals: private storage of the images, in a directory or an S3-compatible bucket. Each is written once, whole, and addressed by its job."""

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

from .errors import BadSettings, NotFound, Trouble
from .picture import BadPicture, examined

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

PREFIX, STAGED = "originals", "staged"
ROOM = 64 * 2**20
"""Bytes that must be free before an image is asked for: twice the largest."""
ABANDONED = 86_400.0
"""Seconds after which what is staged is nobody's any more: no write takes that long."""
CLIENT: "ClientConfig" = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=60)}
# A job that fails is tried again anyway: only a hiccup is bridged here.
RETRY: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=60)}


@dataclass(frozen=True)
class Kept:
    """An image in its place."""

    path: str
    """`originals/<job id>`, within the storage."""
    content_type: str
    bytes: int
    sha256: str
    width: int
    height: int


class Originals:
    """Where the images are. It opens nothing until it is first used, and what it has once, it has for ever.

    The library blocks, in threads of ours: its own would still reach for Python when a process ends, which then dies of it.
    """

    def __init__(self, store: ObjectStore | None, directory: Path | None = None) -> None:
        self._given, self._directory, self._swept = store, directory, False

    @classmethod
    def in_directory(cls, directory: Path) -> Self:
        """In a directory, which is made when the first image is wanted, for its owner alone."""
        return cls(None, directory.absolute())

    @classmethod
    def in_bucket(
            cls, bucket: str, prefix: str, *, endpoint: str | None, region: str | None, access_key: str | None, secret_key: str | None) -> Self:
        """In a bucket that refuses to replace when it is told `If-None-Match: *`. What is None here comes from the usual AWS variables, or from the machine."""
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
            raise BadSettings(f"The bucket cannot be used: {_short(error)}. Look at the S3 settings.") from None

    async def ready(self) -> None:
        """An image could be kept now, as far as one can know: `Trouble` for a directory that cannot be written or is nearly full. A bucket is not asked."""
        if self._directory is not None:
            await asyncio.to_thread(_writable, self._directory)

    async def keep(self, job_id: str, data: bytes) -> Kept:
        """This image, in its place for good; or the one that is there already. `BadPicture` for what is none."""
        return await asyncio.to_thread(self._keep, _path(job_id), data)

    async def find(self, job_id: str) -> Kept | None:
        """The image of this job, if it is in its place."""
        try:
            return await asyncio.to_thread(self._there, _path(job_id))
        except NotFound:
            return None

    async def read(self, path: str) -> bytes:
        """The image at this path. `NotFound` if it is not there."""
        return await asyncio.to_thread(self._read, path)

    def _keep(self, path: str, data: bytes) -> Kept:
        kept = _described(path, data)
        with _troubled(path):
            try:
                if self._directory is None:
                    obstore.put(self._store(), path, data, mode="create", attributes={"Content-Type": kept.content_type})
                else:
                    self._link(self._directory, path, data)
            except AlreadyExistsError:
                return self._there(path)
        return kept

    def _there(self, path: str) -> Kept:
        data = self._read(path)
        with _troubled(path):
            # Whoever wrote it may have died before its name was made to last.
            if self._directory is not None:
                _synced(self._directory / PREFIX)
        try:
            return _described(path, data)
        except BadPicture:
            raise Trouble(f"What is kept as {path} is no whole picture, and it is never replaced: remove it, and drive the job again.") from None

    def _read(self, path: str) -> bytes:
        with _troubled(path):
            try:
                return bytes(obstore.get(self._store(), path).bytes())
            except (FileNotFoundError, ValueError) as error:
                if "NoSuchBucket" in str(error):
                    raise
        raise NotFound(f"There is no {path[:100]!r} in the storage.")

    def _link(self, directory: Path, path: str, data: bytes) -> None:
        """On a disk a name may outlive a power failure that its bytes do not: they are made to last first, and named then."""
        _made(directory)
        if not self._swept:
            _sweep(directory / STAGED)
            self._swept = True
        store, staged = self._store(), f"{STAGED}/{secrets.token_hex(8)}"
        try:
            obstore.put(store, staged, data)
            _synced(directory / staged)
            obstore.rename(store, staged, path, overwrite=False)
        except BaseException:
            with suppress(OSError):
                (directory / staged).unlink()
            raise
        _synced(directory / PREFIX)

    def _store(self) -> ObjectStore:
        if self._given is None:
            if self._directory is None or not self._directory.exists():
                raise FileNotFoundError(self._directory)
            self._given = LocalStore(self._directory)
        return self._given


def _path(job_id: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z-]{1,64}", job_id):
        raise NotFound(f"{job_id[:64]!r} is no job's id.")
    return f"{PREFIX}/{job_id}"


def _described(path: str, data: bytes) -> Kept:
    facts = examined(data)
    return Kept(path, facts.content_type, len(data), hashlib.sha256(data).hexdigest(), facts.width, facts.height)


def _made(directory: Path) -> None:
    """The directories, if they are not there: for their owner alone, and to last."""
    for each in (directory, directory / PREFIX, directory / STAGED):
        if not each.exists():
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            _synced(each.parent)


def _writable(directory: Path) -> None:
    with _troubled(PREFIX):
        _made(directory)
        for each in (directory / PREFIX, directory / STAGED):
            # It has no name, where the system can do that: whoever dies here leaves nothing.
            tempfile.TemporaryFile(dir=each).close()
        free = shutil.disk_usage(directory).free
    if free < ROOM:
        raise Trouble(f"The storage has {free >> 20} MiB free, where at least {ROOM >> 20} are wanted before an image is asked for: make room.")


def _sweep(staged: Path) -> None:
    """Remove what processes have left that died amid a write."""
    for left in staged.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _troubled(path: str) -> Generator[None]:
    """Whatever the storage says, as the studio's own."""
    try:
        yield
    except (BaseError, OSError, NotFound) as error:
        raise Trouble(f"The storage cannot be used for {path}: {_short(error)}. See that it is there, writable and not full.") from error


def _short(error: Exception) -> str:
    """The first line of it, and the storage's own word for it: below, the library shows its insides."""
    text = str(error)
    word = re.search(r"<Code>(\w{1,80})</Code>", text)
    return text.partition("\n")[0].partition("<")[0].strip(" .:")[:300] + (f" ({word[1]})" if word else "")
