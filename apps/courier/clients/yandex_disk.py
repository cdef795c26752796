"""Yandex Disk, as much of it as the courier needs: look into a folder, find a file, and read it to its end."""

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

from .answers import LATER, broken, refused, strange
from .errors import CourierError, Refusal, Trouble
from .tokens import Tokens

CHUNK = 256 * 1024
HOPS = 5
"""Redirects that a download link may take."""
PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each resumption in a row that follows one without a byte. After the last of them the body is given up."""
UNKNOWN = 401
EXPIRED = (UNKNOWN, 403, 404, 410)
"""What a download link answers that is out of date."""
ANSWER = 32 * 1024 * 1024
"""Bytes that an answer of the API has at most. A thousand entries with the longest paths take less."""
LARGEST = 2**63 - 1
"""Bytes of the largest file whose size can be kept."""
FIELDS = ("name", "path", "type", "size", "md5")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Item:
    """A file or a folder on the disk. A folder has no size."""

    name: str
    path: str
    is_folder: bool
    size: int
    md5: str | None


@dataclass(frozen=True)
class Listing:
    """A part of a folder's listing, and how many items the folder has in all."""

    items: list[Item]
    total: int
    left_out: int = 0
    """How many more were in this part that no database could keep, by their size or by what is in their names."""


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
    """Whether an entry of a listing has what is no text to PostgreSQL: NUL, or half of a surrogate pair."""
    told = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    return any(re.search("[\0\ud800-\udfff]", str(told.get(field))) for field in FIELDS)


class _Embedded(BaseModel):
    items: list[Annotated[_Resource | None, BeforeValidator(lambda entry: None if _unreadable(entry) else entry)]]
    total: int


class _Folder(BaseModel):
    embedded: _Embedded | None = Field(None, alias="_embedded")


class _Link(BaseModel):
    href: str


class _Lapse(Exception):
    """The body stopped, and can be resumed; with another link, if this one has `expired`. `error` is what it comes to if that does not help."""

    def __init__(self, error: CourierError, *, expired: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.expired = error, expired


class Disk:
    """One account's disk, at `url`. A token that is refused is renewed once in every call; `Refusal("shut_out")` if that does not help.

    The token goes to `url` alone: a download link is signed by itself, and leads to other hosts.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, tokens: Tokens, *, stall: float = 30.0) -> None:
        self._http, self._tokens = http, tokens
        self._resources = f"{url.rstrip('/')}/v1/disk/resources"
        self._schemes = ("https",) if url.startswith("https:") else ("https", "http")
        self._timeout = httpx.Timeout(stall, connect=min(stall, 10.0))

    async def list(self, path: str, *, offset: int, limit: int) -> Listing:
        """What is in a folder, by name, from the item with number `offset` on; `limit` of them at most."""
        fields = ",".join([*(f"_embedded.items.{field}" for field in FIELDS), "_embedded.total"])
        asked = {"path": path, "offset": str(offset), "limit": str(limit), "sort": "name", "fields": fields}
        folder = (await self._ask("", asked, _Folder)).embedded
        if folder is None:
            raise Refusal("not_found", "Yandex Disk has no such folder any more.")
        entries = folder.items[:limit]
        items = [entry.item for entry in entries if entry is not None and entry.size <= LARGEST]
        return Listing(items, folder.total, len(entries) - len(items))

    async def resource(self, path: str) -> Item:
        """What is there now."""
        return (await self._ask("", {"path": path, "fields": ",".join(FIELDS)}, _Resource)).item

    async def link(self, path: str) -> str:
        """Where the file can be read for a while. It is a secret of its own: whoever has it can read the file."""
        return (await self._ask("/download", {"path": path}, _Link)).href

    async def body(self, item: Item, link: str) -> AsyncGenerator[bytes]:
        """Every byte of the file, in chunks of at most CHUNK. The last is given out only if their number and, where it is known, their md5 are right.

        A connection that breaks or stalls is resumed where it stopped, and a link that has expired is taken afresh.
        """
        digest, have, fruitless = hashlib.md5(usedforsecurity=False), 0, 0
        while have < item.size:
            try:
                async with aclosing(self._rest(item, link, have)) as rest:
                    async for chunk in rest:
                        have, fruitless = have + len(chunk), 0
                        digest.update(chunk)
                        if have > item.size or (have == item.size and item.md5 not in (None, digest.hexdigest())):
                            raise Trouble("What Yandex Disk sent is not the file that it has: bytes are wrong. It is tried again from the start.")
                        yield chunk
                        if have == item.size:
                            return
                lapse = _Lapse(Trouble("Yandex Disk sent less than the whole file. It is tried again."))
            except _Lapse as error:
                lapse = error
            except httpx.HTTPError as error:
                lapse = _Lapse(broken(error))
            if fruitless == len(PAUSES):
                raise lapse.error from None
            await sleep(PAUSES[fruitless])
            fruitless += 1
            if lapse.expired:
                link = await self.link(item.path)

    # ---------------------------------------------------------------- the API
    async def _ask(self, where: str, asked: dict[str, str], answer: type[M]) -> M:
        token = await self._tokens.access()
        response, content = await self._get(where, asked, token)
        if response.status_code == 401:
            response, content = await self._get(where, asked, await self._tokens.renewed(token))
        if response.status_code == 401:
            raise Refusal("shut_out", "Yandex Disk refuses the token, though it was just renewed. Give the courier a new one in its settings.")
        if response.status_code != 200:
            raise refused(response)
        try:
            # Not pydantic's own parser: it takes no half of a surrogate pair, and a whole folder would be lost for one name.
            return answer.model_validate(json.loads(content))
        except (ValueError, RecursionError):
            raise strange() from None

    async def _get(self, where: str, asked: dict[str, str], token: str) -> tuple[httpx.Response, bytes]:
        """An answer and its content."""
        headers, content = {"Authorization": f"OAuth {token}"}, bytearray()
        request = self._http.build_request("GET", self._resources + where, params=asked, headers=headers, timeout=self._timeout)
        try:
            response = await self._http.send(request, stream=True, auth=None, follow_redirects=False)
            async with aclosing(response):
                async for data in response.aiter_bytes():
                    content += data
                    if len(content) > ANSWER:
                        raise Trouble("Yandex Disk sent an answer that comes to no end. It is tried again.")
        except httpx.HTTPError as error:
            raise broken(error) from None
        return response, bytes(content)

    # ---------------------------------------------------------------- the content
    async def _rest(self, item: Item, link: str, have: int) -> AsyncGenerator[bytes]:
        """The bytes after the first `have` of them, for as long as the connection lasts."""
        # As they lie there: whatever is packed on the way would be neither resumable nor of the right md5.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        async with self._opened(link, headers) as response:
            superfluous = _superfluous(response, item, have)
            async for data in response.aiter_raw():
                skipped = min(superfluous, len(data))
                superfluous -= skipped
                for start in range(skipped, len(data), CHUNK):
                    yield data[start : start + CHUNK]

    @asynccontextmanager
    async def _opened(self, link: str, headers: dict[str, str]) -> AsyncGenerator[httpx.Response]:
        """What the link leads to in the end, with its body still to be read."""
        try:
            request: httpx.Request | None = self._http.build_request("GET", link, headers=headers, timeout=self._timeout)
        except httpx.InvalidURL:
            raise strange() from None
        for _ in range(HOPS + 1):
            if request is None or request.url.scheme not in self._schemes:
                raise Trouble("Yandex Disk gave a link that is not safe to follow. It is tried again.")
            request.headers.pop("Authorization", None)
            response = await self._http.send(request, stream=True, auth=None, follow_redirects=False)
            try:
                if not response.has_redirect_location:
                    yield response
                    return
                request = response.next_request
            finally:
                await response.aclose()
        raise Trouble("Yandex Disk's link leads from one place to the next without an end. It is tried again.")


def _superfluous(response: httpx.Response, item: Item, have: int) -> int:
    """How many bytes of this answer are had already: none, unless the server takes no notice of ranges and begins anew."""
    status, total = response.status_code, None
    if status in EXPIRED:
        # Of a file that nobody may read or that is gone, every new link says the same.
        error = Trouble("Yandex Disk's link is out of date. It is tried again.", status_code=status) if status == UNKNOWN else refused(response)
        raise _Lapse(error, expired=True)
    if status not in (200, 206, 416):
        error = refused(response)
        # Of a file that is on its way already, much would be lost; one that has not set out can wait as long as it is told to.
        if have and isinstance(error, Trouble) and error.retry_after is None and (status >= 500 or status in LATER):
            raise _Lapse(error)
        raise error
    if status == 200:
        total = response.headers.get("Content-Length", str(item.size))
    elif part := re.fullmatch(rf"bytes {have}-\d+/(\d+)", response.headers.get("Content-Range", "")):
        total = part[1]
    if total != str(item.size):
        raise Trouble("The file on Yandex Disk is no longer what it was when its delivery began. It is tried again from the start.")
    return have if status == 200 else 0
