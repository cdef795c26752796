"""The controls of the fake Images API: faults, held requests and recorded calls."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Self

from apps.common.tests.loopback_server import LoopbackServer

Kind = Literal[
    "status",
    "text",
    "held_back",
    "hang",
    "cut",
    "torn",
    "garbage",
    "no_image",
    "no_base64",
    "huge",
    "wrong_type",
    "redirect",
]


@dataclass(frozen=True)
class Asked:
    """A valid generation request. `key` is its Idempotency-Key."""

    prompt: str
    size: str
    model: str | None
    key: str | None


@dataclass(frozen=True)
class Fault:
    """A fault of one request. `status` has a code; `status` and `text` have a message; `redirect` has a location."""

    status: int = 500
    code: str | None = None
    retry_after: str | None = None
    kind: Kind = "status"
    location: str = ""
    words: str = ""

    @classmethod
    def blocked(cls, code: str = "content_policy_violation", status: int = 400) -> Self:
        """A rejection by the safety filter. Newer models send `moderation_blocked`, Azure also `content_filter`."""
        return cls(status, code)

    @classmethod
    def said(cls, words: str, status: int = 400) -> Self:
        """An error with this message and no code."""
        return cls(status, words=words)

    @classmethod
    def text(cls, words: str, status: int = 400) -> Self:
        """An error whose `error` is a string and not an object."""
        return cls(status, kind="text", words=words)

    @classmethod
    def held_back(cls) -> Self:
        """The image is generated but held back by the safety filter: status 200 with `respect_moderation` false."""
        return cls(kind="held_back")

    @classmethod
    def trouble(cls, status: int = 500) -> Self:
        return cls(status)

    @classmethod
    def limited(cls, seconds: float | str) -> Self:
        """Too many requests; a string may be a date."""
        return cls(429, "rate_limit_exceeded", str(seconds))

    @classmethod
    def unauthorized(cls) -> Self:
        return cls(401, "invalid_api_key")

    @classmethod
    def hang(cls) -> Self:
        """The request gets no response."""
        return cls(kind="hang")

    @classmethod
    def cut(cls) -> Self:
        """The connection closes before the response."""
        return cls(kind="cut")

    @classmethod
    def torn(cls) -> Self:
        """The connection closes in the middle of the response."""
        return cls(kind="torn")

    @classmethod
    def garbage(cls) -> Self:
        """An HTML page of a captive portal, with status 200."""
        return cls(kind="garbage")

    @classmethod
    def no_image(cls) -> Self:
        """A valid response without an image."""
        return cls(kind="no_image")

    @classmethod
    def no_base64(cls) -> Self:
        return cls(kind="no_base64")

    @classmethod
    def huge(cls) -> Self:
        """A response that is larger than any image."""
        return cls(kind="huge")

    @classmethod
    def wrong_type(cls) -> Self:
        """Data that is not an image; for a link, with a matching content type."""
        return cls(kind="wrong_type")

    @classmethod
    def gone(cls, status: int = 404) -> Self:
        """An expired link. Cloud storage sends 403 as often as 404."""
        return cls(status)

    @classmethod
    def redirected(cls, location: str, status: int = 302) -> Self:
        return cls(status, kind="redirect", location=location)


class Gate:
    """Holds requests inside the server until it is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._open = loop, asyncio.Event()

    def set(self) -> None:
        """Release all requests, from any thread."""
        self._loop.call_soon_threadsafe(self._open.set)

    async def passed(self) -> None:
        await self._open.wait()


class Controls(LoopbackServer):
    """The controls of the fake."""

    def __init__(self) -> None:
        super().__init__()
        self.api_key = "sk-test-of-the-studio-0123456789abcdef"
        self.answers: Literal["b64", "url"] = "b64"
        self.picture: bytes | None = None
        """What every order gets; without it, a small valid PNG of the size that was asked for."""
        self.block_words: set[str] = set()
        """A prompt with one of them gets `content_policy_violation`, whatever the case."""
        self.asked: list[Asked] = []
        self.fetched: list[str] = []
        """The ids of the files that were asked for."""
        self.headers: list[dict[str, str]] = []
        """Of each request that arrived anywhere, its names in lower case."""
        self.inside = 0
        """Generations that have arrived and have no answer yet."""
        self._faults: deque[Fault] = deque()
        self._link_faults: deque[Fault] = deque()
        self._gate: Gate | None = None
        self._news = threading.Condition()

    def fail(self, *faults: Fault) -> None:
        """Set the faults of the next generation requests, in order."""
        self._faults.extend(faults)

    def fail_links(self, *faults: Fault) -> None:
        """Set the faults of the next downloads, in order."""
        self._link_faults.extend(faults)

    @contextmanager
    def holding(self) -> Generator[Gate]:
        """Hold all generation requests until the gate is set or the block ends."""
        gate = self._gate = Gate(self._loop)
        try:
            yield gate
        finally:
            self._gate = None
            gate.set()

    def wait(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait until the condition is true; it is checked after each request and response."""
        with self._news:
            assert self._news.wait_for(condition, seconds), (
                f"in {seconds} seconds it did not happen; asked so far: {self.asked}"
            )

    @contextmanager
    def _present(self) -> Generator[None]:
        with self._news:
            self.inside += 1
            self._news.notify_all()
        try:
            yield
        finally:
            with self._news:
                self.inside -= 1
                self._news.notify_all()

    def _noted(self, *, asked: Asked | None = None, fetched: str | None = None) -> None:
        with self._news:
            if asked is not None:
                self.asked.append(asked)
            if fetched is not None:
                self.fetched.append(fetched)
            self._news.notify_all()
