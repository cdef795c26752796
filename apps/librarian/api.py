"""The librarian over HTTP: a few addresses, JSON in and out, and a user's token at every one but /health."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import cast

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from typing_extensions import override

from apps.common.database import now as clock
from apps.common.health import Recent
from apps.common.telling import as_json
from interlock import InterlockError

from . import form
from .errors import BadSource, Conflict, NotFound, UnknownMedia
from .jobs import Librarian
from .library import Library, User

LARGEST = 11 * 2**20
"""Bytes of a request: a .torrent of the largest size, and the form around it."""
DROPPED = 64 * 2**20
"""Bytes beyond that which are read and dropped: most clients hear why they are refused only when they have sent everything."""
FIELDS = ("book_id", "media_type", "source")
STATUS: dict[type[Exception], int] = {BadSource: 400, UnknownMedia: 400, NotFound: 404, Conflict: 409}
_log = logging.getLogger("librarian")


class Told(Response):
    """A value as JSON."""

    media_type = "application/json"

    @override
    def render(self, content: object) -> bytes:
        return as_json(content).encode()


def api(librarian: Librarian, *, now: Callable[[], datetime] = clock) -> Starlette:
    """The interface to this librarian. It runs no worker."""
    desk = Api(librarian, now)
    routes = [
        Route("/downloads", desk.start, methods=["POST"]),
        Route("/downloads", desk.downloads),
        Route("/downloads/{id}", desk.download),
        Route("/downloads/{id}", desk.cancel, methods=["DELETE"]),
        Route("/books", desk.books),
        Route("/books/{id}/assets", desk.assets),
        Route("/health", desk.health),
    ]
    away = dict.fromkeys((InterlockError, DBAPIError, NoConnection), _away)
    made = Starlette(routes=routes, exception_handlers={HTTPException: _refused, **dict.fromkeys(STATUS, _wrong), **away, Exception: _broken})
    made.router.redirect_slashes = False
    return made


class Api:
    """What each address answers. Functions that are no coroutines run in threads, as the library's verbs must."""

    def __init__(self, librarian: Librarian, now: Callable[[], datetime]) -> None:
        self._app, self._kind, self._recent = librarian.app, librarian.fetch.name, Recent(self._health, now)
        self._library = Library(librarian)

    async def start(self, request: Request) -> Response:
        """201 with a new download, or 200 with the one that is active already."""
        user = await run_in_threadpool(self._user, request)
        body = await _body(request)
        return await run_in_threadpool(self._start, user, request.headers.get("content-type", ""), body)

    def _start(self, user: User, content_type: str, body: bytes) -> Response:
        book, media_type, source = _wanted(content_type, body)
        started = self._library.start_download(user.id, book, media_type, source)
        found = self._library.download(user.id, started.id)
        return Told(found, 201 if started.created else 200, {"Location": f"/downloads/{started.id}"})

    def downloads(self, request: Request) -> Response:
        return Told({"downloads": self._library.downloads(self._user(request).id)})

    def download(self, request: Request) -> Response:
        return Told(self._library.download(self._user(request).id, request.path_params["id"]))

    def cancel(self, request: Request) -> Response:
        """200 if it is canceled, 202 if it will be within a moment."""
        ended = self._library.cancel(self._user(request).id, request.path_params["id"])
        return Told(ended, 202 if ended.active else 200)

    def books(self, request: Request) -> Response:
        self._user(request)
        return Told({"books": self._library.books()})

    def assets(self, request: Request) -> Response:
        self._user(request)
        id = request.path_params["id"]
        if not (id.isascii() and id.isdecimal() and len(id) < 20):
            raise NotFound("There is no such book: GET /books lists them with their ids.")
        return Told({"assets": self._library.assets(int(id))})

    async def health(self, _: Request) -> Response:
        """Whether downloads move, for anybody: so neither an address nor a name is in it. 503 if they do not, since monitors look no further."""
        told = await self._recent.get()
        return Told(told, 200 if told["ok"] else 503)

    def _health(self) -> dict[str, object]:
        status = self._app.status()
        outside = next((each for each in status.outside if each.kind == self._kind), None)
        down = outside is not None and outside.error is not None
        served = any(self._kind in worker.facts.kinds and worker.alive for worker in status.workers)
        qbittorrent = {"reachable": not down, "down_since_utc": outside.down_since if outside else None, "failures": outside.failures if outside else 0}
        late = outside is not None and outside.late
        ok = served and not down and not late
        return {"ok": ok, "qbittorrent": qbittorrent, "followed": outside.handed if outside else 0, "late": late, "worker": served}

    def _user(self, request: Request) -> User:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise HTTPException(401, "Say who you are: send your token as Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
        try:
            return self._library.user_of(token.strip())
        except NotFound as error:
            raise HTTPException(401, str(error), {"WWW-Authenticate": "Bearer"}) from None


# ---------------------------------------------------------------- what is sent
async def _body(request: Request) -> bytes:
    """The body, of which no more is ever held than may be sent."""
    read, length = bytearray(), 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= LARGEST:
                read += chunk
            elif length > LARGEST + DROPPED:
                break
    except ClientDisconnect:
        raise HTTPException(400, "The request was cut off.") from None
    if length > LARGEST:
        raise HTTPException(413, f"The request is larger than {LARGEST // 2**20} MiB: no .torrent that is taken here is.", {"Connection": "close"})
    return bytes(read)


def _wanted(content_type: str, body: bytes) -> tuple[int, str, str | bytes]:
    """Which medium of which book, and from where."""
    try:
        given = form.fields(content_type, body)
    except form.UnknownType as error:
        raise HTTPException(415, str(error)) from None
    except form.Unreadable as error:
        raise HTTPException(400, str(error)) from None
    wanted = "give book_id, media_type (text or audio) and source (a magnet link or a .torrent)"
    if missing := [name for name in FIELDS if name not in given]:
        raise HTTPException(400, f"The field {missing[0]} is missing: {wanted}.")
    if strange := [name for name in given if name not in FIELDS]:
        raise HTTPException(400, f"There is no field {strange[0][:40]!r}: {wanted}.")
    book, media_type, source = given["book_id"], given["media_type"], given["source"]
    if isinstance(book, str) and book.isascii() and book.isdecimal() and len(book) < 20:
        book = int(book)
    if not isinstance(book, int) or isinstance(book, bool):
        raise HTTPException(400, "book_id is no whole number: GET /books lists the books with their ids.")
    if not isinstance(media_type, str):
        raise HTTPException(400, "media_type is no text: give text or audio.")
    if not isinstance(source, str | bytes):
        raise HTTPException(400, "source is neither a text nor a file: give a magnet link, or send a .torrent in a form.")
    return book, media_type, source


# ---------------------------------------------------------------- what went wrong
def _error(status: int, sentence: str) -> Response:
    return Told({"error": sentence}, status)


def _refused(_: Request, error: Exception) -> Response:
    refusal = cast(HTTPException, error)
    own = {404: "There is nothing at this address.", 405: "This address does not know that method."}
    return Told({"error": own.get(refusal.status_code, refusal.detail)}, refusal.status_code, dict(refusal.headers or {}))


def _wrong(_: Request, error: Exception) -> Response:
    return _error(STATUS[type(error)], str(error))


def _away(_: Request, error: Exception) -> Response:
    # What a database says may have statements and their values in it: that is for the log.
    _log.warning("The database did not answer: %s", error)
    return _error(503, "The library's database cannot be asked now. Nothing was changed unless you find it so: look, and try again.")


def _broken(_: Request, error: Exception) -> Response:
    del error
    return _error(500, "Something broke in the librarian: its log has the reason.")
