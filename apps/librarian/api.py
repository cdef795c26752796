"""The HTTP API of the librarian. Responses are JSON, and every address except /health needs a user's token."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ExceptionHandler
from typing_extensions import override

from apps.common.database import now as clock
from apps.common.formatting import to_json
from apps.common.health_cache import HealthCache
from interlock import InterlockError

from .errors import BadSource, Conflict, NotFound, UnknownMedia
from .jobs import Librarian
from .models import User
from .request_body import BadBody, UnsupportedType, parse_fields
from .service import LibraryService

MAX_BODY = 11 * 2**20
"""Bytes of a request: the largest .torrent file, and the form around it."""
MAX_DISCARDED = 64 * 2**20
"""Bytes beyond `MAX_BODY` that are read and discarded: most clients read the error only after they sent everything."""
FIELDS = ("book_id", "media_type", "source")
FIELDS_HELP = "Send book_id, media_type (text or audio) and source (a magnet link or a .torrent file)."
STATUS: dict[type[Exception], int] = {BadSource: 400, UnknownMedia: 400, NotFound: 404, Conflict: 409}
_log = logging.getLogger("librarian")


class JsonResponse(Response):
    """A value as JSON."""

    media_type = "application/json"

    @override
    def render(self, content: object) -> bytes:
        return to_json(content).encode()


def make_api(librarian: Librarian, *, now: Callable[[], datetime] = clock) -> Starlette:
    """The API of this librarian. It runs no worker."""
    api = Api(librarian, now)
    routes = [
        Route("/downloads", api.start, methods=["POST"]),
        Route("/downloads", api.downloads),
        Route("/downloads/{id}", api.download),
        Route("/downloads/{id}", api.cancel, methods=["DELETE"]),
        Route("/books", api.books),
        Route("/books/{id}/assets", api.assets),
        Route("/health", api.health),
    ]
    handlers: dict[Any, ExceptionHandler] = {
        HTTPException: _http_error,
        **dict.fromkeys(STATUS, _librarian_error),
        **dict.fromkeys((InterlockError, DBAPIError, NoConnection), _database_error),
        Exception: _server_error,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


class Api:
    """The endpoints. Starlette runs plain functions in threads, because the service blocks."""

    def __init__(self, librarian: Librarian, now: Callable[[], datetime]) -> None:
        self._app, self._kind = librarian.app, librarian.download.name
        self._health_cache = HealthCache(self._health, now)
        self._service = LibraryService(librarian)

    async def start(self, request: Request) -> Response:
        """201 with a new download, or 200 with the active one."""
        user = await run_in_threadpool(self._authenticate, request)
        body = await _read_body(request)
        return await run_in_threadpool(self._start, user, request.headers.get("content-type", ""), body)

    def _start(self, user: User, content_type: str, body: bytes) -> Response:
        book, media_type, source = _parse_download(content_type, body)
        started = self._service.start_download(user.id, book, media_type, source)
        download = self._service.download(user.id, started.id)
        return JsonResponse(download, 201 if started.created else 200, {"Location": f"/downloads/{started.id}"})

    def downloads(self, request: Request) -> Response:
        return JsonResponse({"downloads": self._service.downloads(self._authenticate(request).id)})

    def download(self, request: Request) -> Response:
        return JsonResponse(self._service.download(self._authenticate(request).id, request.path_params["id"]))

    def cancel(self, request: Request) -> Response:
        """200 if the download is canceled, 202 if a worker is going to end it."""
        download = self._service.cancel(self._authenticate(request).id, request.path_params["id"])
        return JsonResponse(download, 202 if download.active else 200)

    def books(self, request: Request) -> Response:
        self._authenticate(request)
        return JsonResponse({"books": self._service.books()})

    def assets(self, request: Request) -> Response:
        self._authenticate(request)
        id = request.path_params["id"]
        if not (id.isascii() and id.isdecimal() and len(id) < 20):
            raise NotFound("There is no such book. GET /books lists the books with their ids.")
        return JsonResponse({"assets": self._service.assets(int(id))})

    async def health(self, _: Request) -> Response:
        """Whether downloads progress; 503 if not. It is public, so it contains no address and no name."""
        health = await self._health_cache.get()
        return JsonResponse(health, 200 if health["ok"] else 503)

    def _health(self) -> dict[str, object]:
        status = self._app.status()
        external = next((each for each in status.external if each.kind == self._kind), None)
        down = external is not None and external.error is not None
        late = external is not None and external.late
        has_worker = any(self._kind in worker.facts.kinds and worker.alive for worker in status.workers)
        return {
            "ok": has_worker and not down and not late,
            "qbittorrent": {
                "reachable": not down,
                "down_since_utc": external.down_since if external else None,
                "failures": external.failures if external else 0,
            },
            "followed": external.executions if external else 0,
            "late": late,
            "worker": has_worker,
        }

    def _authenticate(self, request: Request) -> User:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise HTTPException(
                401, "This address needs a token. Send it as Authorization: Bearer …", {"WWW-Authenticate": "Bearer"}
            )
        try:
            return self._service.authenticate(token.strip())
        except NotFound as error:
            raise HTTPException(401, str(error), {"WWW-Authenticate": "Bearer"}) from None


# ---------------------------------------------------------------- requests
async def _read_body(request: Request) -> bytes:
    """The body of a request. Holds at most `MAX_BODY` bytes in memory."""
    body, length = bytearray(), 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= MAX_BODY:
                body += chunk
            elif length > MAX_BODY + MAX_DISCARDED:
                break
    except ClientDisconnect:
        raise HTTPException(400, "The request is incomplete.") from None
    if length > MAX_BODY:
        raise HTTPException(413, f"The request is larger than {MAX_BODY // 2**20} MiB.", {"Connection": "close"})
    return bytes(body)


def _parse_download(content_type: str, body: bytes) -> tuple[int, str, str | bytes]:
    """The book, the media type and the source in a request."""
    try:
        fields = parse_fields(content_type, body)
    except UnsupportedType as error:
        raise HTTPException(415, str(error)) from None
    except BadBody as error:
        raise HTTPException(400, str(error)) from None
    if missing := [name for name in FIELDS if name not in fields]:
        raise HTTPException(400, f"The field {missing[0]} is missing. {FIELDS_HELP}")
    if unknown := [name for name in fields if name not in FIELDS]:
        raise HTTPException(400, f"There is no field {unknown[0][:40]!r}. {FIELDS_HELP}")
    book, media_type, source = (fields[name] for name in FIELDS)
    if isinstance(book, str) and book.isascii() and book.isdecimal() and len(book) < 20:
        book = int(book)
    if not isinstance(book, int) or isinstance(book, bool):
        raise HTTPException(400, "book_id must be a whole number. GET /books lists the books with their ids.")
    if not isinstance(media_type, str):
        raise HTTPException(400, "media_type must be text or audio.")
    if not isinstance(source, str | bytes):
        raise HTTPException(400, "source must be a magnet link, or a .torrent file in a form.")
    return book, media_type, source


# ---------------------------------------------------------------- errors
def _error(status: int, sentence: str) -> Response:
    return JsonResponse({"error": sentence}, status)


def _http_error(_: Request, error: Exception) -> Response:
    http = cast(HTTPException, error)
    texts = {404: "There is nothing at this address.", 405: "This address does not support this method."}
    content = {"error": texts.get(http.status_code, http.detail)}
    return JsonResponse(content, http.status_code, dict(http.headers or {}))


def _librarian_error(_: Request, error: Exception) -> Response:
    return _error(STATUS[type(error)], str(error))


def _database_error(_: Request, error: Exception) -> Response:
    # The error may contain statements with their values, so only the log gets it.
    _log.warning("The database did not answer: %s", error)
    return _error(503, "The database is unavailable. Check whether your change was saved, then try again.")


def _server_error(_: Request, error: Exception) -> Response:
    del error
    return _error(500, "An internal error occurred. The librarian's log has the details.")
