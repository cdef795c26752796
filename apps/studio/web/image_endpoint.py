"""Serves images for signed links. The headers make sure that browsers treat them as images only."""

import logging
from collections.abc import Callable
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ..errors import NotFound
from ..gallery import AssetFile, Gallery
from ..jobs import Studio
from ..signed_links import ExpiredLink, InvalidLink
from .responses import SECURITY_HEADERS, ApiError

TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})
_log = logging.getLogger("studio")


class ImageEndpoint:
    """Serves stored images."""

    def __init__(self, studio: Studio, now: Callable[[], datetime]) -> None:
        self._gallery, self._originals, self._now = Gallery(studio, now=now), studio.dependencies.originals, now

    async def image(self, request: Request) -> Response:
        """Serve the stored bytes. Any invalid link gives 404, so it does not reveal which images exist."""
        file = await run_in_threadpool(self._check_link, request)
        kind = file.content_type if file.content_type in TYPES else "application/octet-stream"
        left = int(request.query_params["expires"]) - int(self._now().timestamp())
        headers = {**SECURITY_HEADERS, "ETag": f'"{file.sha256}"', "Cache-Control": f"private, max-age={max(left, 0)}"}
        if _is_cached(request, file.sha256):
            return Response(status_code=304, headers=headers)
        try:
            data = await self._originals.read(file.path)
        except NotFound as error:
            _log.error("A picture is in the library but missing in the storage: %s", error)
            raise _not_found() from None
        return Response(data, headers=headers, media_type=kind)

    def _check_link(self, request: Request) -> AssetFile:
        id, query = request.path_params["id"], request.query_params
        try:
            self._gallery.signer.check(id, query.get("expires", ""), query.get("signature", ""), self._now())
            return self._gallery.asset(id)
        except (InvalidLink, NotFound):
            raise _not_found() from None
        except ExpiredLink as error:
            raise ApiError(403, "link_expired", str(error)) from None


def _not_found() -> ApiError:
    return ApiError(404, "not_found", "There is no picture at this address. Open it from the gallery.")


def _is_cached(request: Request, sha256: str) -> bool:
    """Whether the client has this image in its cache."""
    named = (each.strip().removeprefix("W/").strip('"') for each in request.headers.get("if-none-match", "").split(","))
    return any(each in (sha256, "*") for each in named)
