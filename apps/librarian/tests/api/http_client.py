"""What the tests of the interface share: a way to speak to it, and what a refusal looks like."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from apps.librarian.api import api
from apps.librarian.tests.kit import Branch, magnet

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""


class Http:
    """Speaks to an application as a server would, without one."""

    def __init__(self, app: Starlette, token: str | None = None) -> None:
        self._app, self._headers = app, {} if token is None else {"Authorization": f"Bearer {token}"}

    def request(self, method: str, path: str, *, headers: dict[str, Any] | None = None, **body: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, headers=self._headers | (headers or {}), **body))

    async def _request(self, method: str, path: str, **given: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://library") as client:
            return await client.request(method, path, **given)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def delete(self, path: str) -> httpx.Response:
        return self.request("DELETE", path)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)


class Reader:
    """A user of the library, and the way they speak to it."""

    def __init__(self, branch: Branch, name: str) -> None:
        user = branch.library.add_user(name)
        self.id = user.id
        self.http = Http(api(branch.librarian, now=branch.clock.now), user.token)

    def start(self, number: int = 1, *, book: int = 1, media_type: str = "text") -> httpx.Response:
        return self.http.post("/downloads", json={"book_id": book, "media_type": media_type, "source": magnet(number)})


def refused(answer: httpx.Response, status: int, word: str = "") -> str:
    """It was refused with this status, and one sentence has this word."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    sentence: str = answer.json()["error"]
    assert word in sentence
    assert "Traceback" not in sentence
    return sentence
