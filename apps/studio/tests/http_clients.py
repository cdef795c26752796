"""HTTP clients for tests: with an access key like a program, or with a cookie like a browser."""

import asyncio
from typing import Any

import httpx
from starlette.applications import Starlette

from apps.studio.api import api
from apps.studio.tests.studio_kit import PROMPT, StudioKit
from apps.studio.web.auth import COOKIE

HOST = "http://studio"
NO_ID = "01900000-0000-7000-8000-000000000000"
JSON = {"Content-Type": "application/json"}


class HttpClient:
    """Sends requests to an ASGI application without a server."""

    def __init__(self, app: Starlette, headers: dict[str, str] | None = None, base: str = HOST) -> None:
        self.app, self.headers, self._base = app, headers or {}, base
        self.quiet = False
        """Whether what breaks is answered only, as a server would."""

    def request(self, method: str, path: str, *, headers: dict[str, Any] | None = None, **body: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, headers={**self.headers, **(headers or {})}, **body))

    async def _request(self, method: str, path: str, **given: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=not self.quiet)
        async with httpx.AsyncClient(transport=transport, base_url=self._base) as client:
            return await client.request(method, path, **given)

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def delete(self, path: str, **given: Any) -> httpx.Response:
        return self.request("DELETE", path, **given)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)


class ApiUser(HttpClient):
    """A user with an access key."""

    def __init__(self, kit: StudioKit, name: str, *, credits: int = 10, admin: bool = False) -> None:
        user = kit.user(credits, name=name, admin=admin)
        self.id, self.name, self.key = user.id, user.name, user.key or ""
        super().__init__(api(kit.studio, now=kit.clock.now), {"Authorization": f"Bearer {self.key}"})

    def create(self, prompt: str = PROMPT, **params: object) -> httpx.Response:
        return self.post("/jobs", json={"prompt": prompt, **params})

    def browser(self, base: str = HOST) -> HttpClient:
        """The user's browser, signed in on the studio's page."""
        answer = HttpClient(self.app, base=base).post("/session", json={"key": self.key}, headers={"Origin": base})
        assert answer.status_code == 200, answer.text
        return HttpClient(self.app, {"Cookie": f"{COOKIE}={answer.cookies[COOKIE]}", "Origin": base}, base)


def refused(answer: httpx.Response, status: int, reason: str, word: str = "") -> str:
    """Assert that the response is an error with this status and code and contains this word."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    assert set(answer.json()) == {"error", "reason"}
    assert answer.json()["reason"] == reason
    sentence: str = answer.json()["error"]
    assert word in sentence
    assert "Traceback" not in sentence
    return sentence
