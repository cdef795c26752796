"""What a test may do to the fake Images API, and what it sees of it; `images_api.py` serves it."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Self

from apps.common.tests.servers import Served

Kind = Literal["status", "text", "held_back", "hang", "cut", "torn", "garbage", "no_image", "no_base64", "huge", "wrong_type", "redirect"]


@dataclass(frozen=True)
class Asked:
    """One generation that arrived with the right key and a body that the API takes. `key` is its Idempotency-Key."""

    prompt: str
    size: str
    model: str | None
    key: str | None


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request. Only a `status` has a code, and only that and a `text` have words of their own; `redirect` leads to `location`."""

    status: int = 500
    code: str | None = None
    retry_after: str | None = None
    kind: Kind = "status"
    location: str = ""
    words: str = ""

    @classmethod
    def blocked(cls, code: str = "content_policy_violation", status: int = 400) -> Self:
        """The safety filter says no. Newer models say `moderation_blocked`, Azure also `content_filter`."""
        return cls(status, code)

    @classmethod
    def said(cls, words: str, status: int = 400) -> Self:
        """A refusal in these words, without a code."""
        return cls(status, words=words)

    @classmethod
    def text(cls, words: str, status: int = 400) -> Self:
        """The same from an API whose `error` is a text, and no object with one."""
        return cls(status, kind="text", words=words)

    @classmethod
    def held_back(cls) -> Self:
        """The picture is made, and the safety filter does not let it pass: status 200, and `respect_moderation` is false."""
        return cls(kind="held_back")

    @classmethod
    def trouble(cls, status: int = 500) -> Self:
        return cls(status)

    @classmethod
    def limited(cls, seconds: float | str) -> Self:
        """Too many requests; a string may also be a date."""
        return cls(429, "rate_limit_exceeded", str(seconds))

    @classmethod
    def unauthorized(cls) -> Self:
        return cls(401, "invalid_api_key")

    @classmethod
    def hang(cls) -> Self:
        """The request is taken, and no answer comes for as long as anybody waits."""
        return cls(kind="hang")

    @classmethod
    def cut(cls) -> Self:
        """The connection ends before the first byte of an answer."""
        return cls(kind="cut")

    @classmethod
    def torn(cls) -> Self:
        """The connection ends in the middle of the answer."""
        return cls(kind="torn")

    @classmethod
    def garbage(cls) -> Self:
        """A page of somebody in between, with status 200."""
        return cls(kind="garbage")

    @classmethod
    def no_image(cls) -> Self:
        """An answer as it should be, with no image in it."""
        return cls(kind="no_image")

    @classmethod
    def no_base64(cls) -> Self:
        return cls(kind="no_base64")

    @classmethod
    def huge(cls) -> Self:
        """An answer that goes on beyond what any image has."""
        return cls(kind="huge")

    @classmethod
    def wrong_type(cls) -> Self:
        """Something that is no image; of a link, one that says so."""
        return cls(kind="wrong_type")

    @classmethod
    def gone(cls, status: int = 404) -> Self:
        """The link's time is over. Storage in the cloud says 403 as often as 404."""
        return cls(status)

    @classmethod
    def redirected(cls, location: str, status: int = 302) -> Self:
        return cls(status, kind="redirect", location=location)


class Gate:
    """Holds requests inside the server until it is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._open = loop, asyncio.Event()

    def set(self) -> None:
        """Let all of them go on, from any thread."""
        self._loop.call_soon_threadsafe(self._open.set)

    async def passed(self) -> None:
        await self._open.wait()


class Controls(Served):
    """The test's side of the fake."""

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
        """One for each of the next generations, in this order."""
        self._faults.extend(faults)

    def fail_links(self, *faults: Fault) -> None:
        """The same for the next files."""
        self._link_faults.extend(faults)

    @contextmanager
    def holding(self) -> Generator[Gate]:
        """All generations wait inside the server until the gate is set, at the latest until the block ends."""
        gate = self._gate = Gate(self._loop)
        try:
            yield gate
        finally:
            self._gate = None
            gate.set()

    def wait(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Until this is so, looking again at each request that arrives, is held or is answered. `AssertionError` when it is not in time."""
        with self._news:
            assert self._news.wait_for(condition, seconds), f"in {seconds} seconds it did not happen; asked so far: {self.asked}"

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
