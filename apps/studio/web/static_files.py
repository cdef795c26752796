"""Serves the page's static files. They contain no user data."""

from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PAGE = Path(__file__).parents[1] / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'self'; img-src 'self'; script-src 'self'; style-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_routes() -> list[Route]:
    """One route per file of the page; index.html is served at /."""
    found = sorted(file for file in PAGE.iterdir() if file.suffix in TYPES)
    return [Route("/" if file.name == "index.html" else f"/{file.name}", _page(file)) for file in found]


def _page(file: Path) -> Callable[[Request], Response]:
    def page(_: Request) -> Response:
        return Response(file.read_bytes(), media_type=TYPES[file.suffix], headers=HEADERS)

    return page
