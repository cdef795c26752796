"""The client of Yandex Disk: lists a folder, looks up a file, and reads its content."""

import hashlib
import json
import re
from asyncio import sleep
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, cast

import httpx
from pydantic import BaseModel, BeforeValidator, Field

from ..errors import CourierError, PermanentError, TemporaryError
from .yandex_errors import TEMPORARY_STATUSES, connection_error, response_error, unreadable_response
from .yandex_tokens import Tokens

CHUNK = 256 * 1024
MAX_REDIRECTS = 5
"""Redirects of a download link, at most."""
RESUME_DELAYS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each resumption in a row that brings no byte. After the last one the download fails."""
UNAUTHORIZED = 401
EXPIRED_LINK = (UNAUTHORIZED, 403, 404, 410)
"""Statuses of an expired download link."""
MAX_RESPONSE = 32 * 1024 * 1024
"""Bytes of an API response, at most. A thousand entries with the longest paths take less."""
MAX_SIZE = 2**63 - 1
"""Bytes of the largest file whose size can be stored."""
FIELDS = ("name", "path", "type", "size", "md5")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Item:
    """A file or a folder on the disk. The size of a folder is zero."""

    name: str
    path: str
    is_folder: bool
    size: int
    md5: str | None


@dataclass(frozen=True)
class Listing:
    """A part of a folder's listing, and the total number of items in the folder."""

    items: list[Item]
    total: int
    left_out: int = 0
    """Items in this part that the databases cannot store, because of their size or name."""


class _Resource(BaseModel):
    name: str
    path: str = Field(pattern="^disk:/")
    type: Literal["dir", "file"]
    size: int = Field(0, ge=0)
    md5: str | None = None

    @property
    def item(self) -> Item:
        return Item(self.name, self.path, self.type == "dir", self.size, self.md5)


def _unreadable(entry: object) -> bool:
    """Return whether an entry has text that PostgreSQL cannot store: NUL or a lone surrogate."""
    fields = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    return any(re.search("[\0\ud800-\udfff]", str(fields.get(field))) for field in FIELDS)


class _Embedded(BaseModel):
    items: list[Annotated[_Resource | None, BeforeValidator(lambda entry: None if _unreadable(entry) else entry)]]
    total: int


class _Folder(BaseModel):
    embedded: _Embedded | None = Field(None, alias="_embedded")


class _Link(BaseModel):
    href: str


class _Interrupted(Exception):
    """The download stopped. It can be resumed, with a new link if this one has `expired`, or fails with `error`."""

    def __init__(self, error: CourierError, *, expired: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.expired = error, expired


class Disk:
    """The disk of one account, at `url`. A rejected token is renewed once per call.

    Raises `PermanentError("disk_token_rejected")` if the renewed token is rejected too. The token is sent to `url`
    only: download links carry their own signature and lead to other hosts.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, tokens: Tokens, *, stall: float = 30.0) -> None:
        self._http, self._tokens = http, tokens
        self._resources = f"{url.rstrip('/')}/v1/disk/resources"
        self._schemes = ("https",) if url.startswith("https:") else ("https", "http")
        self._timeout = httpx.Timeout(stall, connect=min(stall, 10.0))

    async def list_folder(self, path: str, *, offset: int, limit: int) -> Listing:
        """List at most `limit` items of a folder by name, starting at `offset`."""
        fields = ",".join([*(f"_embedded.items.{field}" for field in FIELDS), "_embedded.total"])
        params = {"path": path, "offset": str(offset), "limit": str(limit), "sort": "name", "fields": fields}
        folder = (await self._call_api("", params, _Folder)).embedded
        if folder is None:
            raise PermanentError("not_found", "The folder is no longer on Yandex Disk.")
        entries = folder.items[:limit]
        items = [entry.item for entry in entries if entry is not None and entry.size <= MAX_SIZE]
        return Listing(items, folder.total, len(entries) - len(items))

    async def get_item(self, path: str) -> Item:
        """Look up a file or a folder."""
        return (await self._call_api("", {"path": path, "fields": ",".join(FIELDS)}, _Resource)).item

    async def download_link(self, path: str) -> str:
        """Return a temporary download link. It is a secret: anyone with the link can read the file."""
        return (await self._call_api("/download", {"path": path}, _Link)).href

    async def read_content(self, item: Item, link: str) -> AsyncGenerator[bytes]:
        """Read the file in chunks of at most CHUNK. The last chunk is returned only if the size and the MD5 are right.

        A broken or stalled connection is resumed, and an expired link is replaced.
        """
        digest, received, failures = hashlib.md5(usedforsecurity=False), 0, 0
        while received < item.size:
            try:
                async with aclosing(self._stream_from(item, link, received)) as rest:
                    async for chunk in rest:
                        received, failures = received + len(chunk), 0
                        digest.update(chunk)
                        if received > item.size or (
                            received == item.size and item.md5 not in (None, digest.hexdigest())
                        ):
                            raise TemporaryError(
                                "Yandex Disk sent wrong bytes. The courier will download the file again."
                            )
                        yield chunk
                        if received == item.size:
                            return
                interruption = _Interrupted(
                    TemporaryError("Yandex Disk sent an incomplete file. The courier will try again.")
                )
            except _Interrupted as error:
                interruption = error
            except httpx.HTTPError as error:
                interruption = _Interrupted(connection_error(error))
            if failures == len(RESUME_DELAYS):
                raise interruption.error from None
            await sleep(RESUME_DELAYS[failures])
            failures += 1
            if interruption.expired:
                link = await self.download_link(item.path)

    # ---------------------------------------------------------------- API
    async def _call_api(self, endpoint: str, params: dict[str, str], model: type[M]) -> M:
        token = await self._tokens.get_token()
        response, content = await self._fetch(endpoint, params, token)
        if response.status_code == 401:
            response, content = await self._fetch(endpoint, params, await self._tokens.renew(token))
        if response.status_code == 401:
            raise PermanentError(
                "disk_token_rejected",
                "Yandex Disk rejects the renewed token. Set new secrets in the settings.",
            )
        if response.status_code != 200:
            raise response_error(response)
        try:
            # Not pydantic's parser: it rejects lone surrogates, and one such name would hide the whole folder.
            return model.model_validate(json.loads(content))
        except (ValueError, RecursionError):
            raise unreadable_response() from None

    async def _fetch(self, endpoint: str, params: dict[str, str], token: str) -> tuple[httpx.Response, bytes]:
        """Send a request. Return the response and its content."""
        headers, content = {"Authorization": f"OAuth {token}"}, bytearray()
        request = self._http.build_request(
            "GET", self._resources + endpoint, params=params, headers=headers, timeout=self._timeout
        )
        try:
            response = await self._http.send(request, stream=True, auth=None, follow_redirects=False)
            async with aclosing(response):
                async for data in response.aiter_bytes():
                    content += data
                    if len(content) > MAX_RESPONSE:
                        raise TemporaryError("The answer of Yandex Disk is too large. The courier will try again.")
        except httpx.HTTPError as error:
            raise connection_error(error) from None
        return response, bytes(content)

    # ---------------------------------------------------------------- content
    async def _stream_from(self, item: Item, link: str, received: int) -> AsyncGenerator[bytes]:
        """Stream the bytes after the first `received` of them, until the connection ends."""
        # Without compression, which could not be resumed and would change the MD5.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={received}-"} if received else {})
        async with self._open_link(link, headers) as response:
            to_skip = _bytes_to_skip(response, item, received)
            async for data in response.aiter_raw():
                skipped = min(to_skip, len(data))
                to_skip -= skipped
                for start in range(skipped, len(data), CHUNK):
                    yield data[start : start + CHUNK]

    @asynccontextmanager
    async def _open_link(self, link: str, headers: dict[str, str]) -> AsyncGenerator[httpx.Response]:
        """Follow the link's redirects and open the final response, with its body unread."""
        try:
            request: httpx.Request | None = self._http.build_request(
                "GET", link, headers=headers, timeout=self._timeout
            )
        except httpx.InvalidURL:
            raise unreadable_response() from None
        for _ in range(MAX_REDIRECTS + 1):
            if request is None or request.url.scheme not in self._schemes:
                raise TemporaryError("The download link of Yandex Disk is not secure. The courier will try again.")
            request.headers.pop("Authorization", None)
            response = await self._http.send(request, stream=True, auth=None, follow_redirects=False)
            try:
                if not response.has_redirect_location:
                    yield response
                    return
                request = response.next_request
            finally:
                await response.aclose()
        raise TemporaryError("The download link of Yandex Disk has too many redirects. The courier will try again.")


def _bytes_to_skip(response: httpx.Response, item: Item, received: int) -> int:
    """Return how many bytes of this response to skip: none, unless the server ignores ranges and starts from the
    beginning."""
    status, total = response.status_code, None
    if status in EXPIRED_LINK:
        # If the file is forbidden or gone, a new link gives the same status.
        error = (
            TemporaryError(
                "The download link of Yandex Disk has expired. The courier will try again.", status_code=status
            )
            if status == UNAUTHORIZED
            else response_error(response)
        )
        raise _Interrupted(error, expired=True)
    if status not in (200, 206, 416):
        error = response_error(response)
        # Resume a file that is partly sent, to keep that work. A file that has not started waits as long as the server
        # asks.
        if (
            received
            and isinstance(error, TemporaryError)
            and error.retry_after is None
            and (status >= 500 or status in TEMPORARY_STATUSES)
        ):
            raise _Interrupted(error)
        raise error
    if status == 200:
        total = response.headers.get("Content-Length", str(item.size))
    elif part := re.fullmatch(rf"bytes {received}-\d+/(\d+)", response.headers.get("Content-Range", "")):
        total = part[1]
    if total != str(item.size):
        raise TemporaryError(
            "The file on Yandex Disk has changed during the delivery. The courier will download it again."
        )
    return received if status == 200 else 0
