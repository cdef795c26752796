"""The pictures over HTTP: whoever shows a signed link may look, until it expires. A browser shows them, and takes them for nothing else."""

import logging
from collections.abc import Callable
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from .answers import SEALED, Wrong
from .errors import NotFound
from .gallery import AssetFile, Gallery
from .jobs import Studio
from .signing import Expired, Forged

TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})
_log = logging.getLogger("studio")


class Viewing:
    """Shows pictures."""

    def __init__(self, studio: Studio, now: Callable[[], datetime]) -> None:
        self._gallery, self._originals, self._now = Gallery(studio, now=now), studio.means.originals, now

    async def image(self, request: Request) -> Response:
        """The picture, byte for byte. 404 for any link that was not made here, so that nobody learns which pictures there are."""
        file = await run_in_threadpool(self._shown, request)
        kind = file.content_type if file.content_type in TYPES else "application/octet-stream"
        left = int(request.query_params["expires"]) - int(self._now().timestamp())
        headers = {**SEALED, "ETag": f'"{file.sha256}"', "Cache-Control": f"private, max-age={max(left, 0)}"}
        if _known(request, file.sha256):
            return Response(status_code=304, headers=headers)
        try:
            data = await self._originals.read(file.path)
        except NotFound as error:
            _log.error("A picture is in the library, but not in the originals: %s", error)
            raise _none() from None
        return Response(data, headers=headers, media_type=kind)

    def _shown(self, request: Request) -> AssetFile:
        id, query = request.path_params["id"], request.query_params
        try:
            self._gallery.signer.check(id, query.get("expires", ""), query.get("signature", ""), self._now())
            return self._gallery.asset(id)
        except (Forged, NotFound):
            raise _none() from None
        except Expired as error:
            raise Wrong(403, "link_expired", str(error)) from None


def _none() -> Wrong:
    return Wrong(404, "not_found", "There is no picture at this address: open it from the gallery.")


def _known(request: Request, sha256: str) -> bool:
    """Whether the client has it already."""
    named = (each.strip().removeprefix("W/").strip('"') for each in request.headers.get("if-none-match", "").split(","))
    return any(each in (sha256, "*") for each in named)
