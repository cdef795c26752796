"""A client for the HTTP API in tests, without a server, and the form of its errors."""

import asyncio
from typing import Any

import httpx
from starlette.applications import Starlette

from apps.librarian.api import make_api
from apps.librarian.tests.librarian_kit import LibrarianKit, magnet


class HttpClient:
    """Calls an ASGI application directly."""

    def __init__(self, app: Starlette, token: str | None = None) -> None:
        self._app, self._headers = app, {} if token is None else {"Authorization": f"Bearer {token}"}

    def request(self, method: str, path: str, *, headers: dict[str, Any] | None = None, **body: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, headers=self._headers | (headers or {}), **body))

    async def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://library") as client:
            return await client.request(method, path, **arguments)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def delete(self, path: str) -> httpx.Response:
        return self.request("DELETE", path)

    def post(self, path: str, **arguments: Any) -> httpx.Response:
        return self.request("POST", path, **arguments)


class ApiUser:
    """A user of the library, and their HTTP client."""

    def __init__(self, kit: LibrarianKit, name: str) -> None:
        user = kit.service.add_user(name)
        self.id = user.id
        self.http = HttpClient(make_api(kit.librarian, now=kit.clock.now), user.token)

    def start(self, number: int = 1, *, book: int = 1, media_type: str = "text") -> httpx.Response:
        return self.http.post("/downloads", json={"book_id": book, "media_type": media_type, "source": magnet(number)})


def assert_error(response: httpx.Response, status: int, text: str = "") -> str:
    """The response has this status, and one JSON sentence that contains `text`."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    sentence: str = response.json()["error"]
    assert text in sentence
    assert "Traceback" not in sentence
    return sentence
