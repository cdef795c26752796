"""A Telegram for tests: its Bot API over real HTTP on loopback, with its limits, its words, and everything that can go wrong at hand.

    with FakeTelegram() as telegram:
        bot = Bot(telegram.token, AiohttpSession(api=TelegramAPIServer.from_base(telegram.url)))
        ann = telegram.person(7, name="Ann")
        ann.says("/start")
        …
        ann.wait(lambda chat: chat[-1].text == "Welcome")

An upload is taken as a stream, and only its size and its hashes are kept. A request that breaks off before its end is no request: nothing comes of it.
"""

import argparse
import asyncio
import hashlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from aiohttp import BodyPartReader, web

from .bot_methods import Methods, Says, listed, number
from .people import Answered, Document, Json, Message, Person

__all__ = ["Answered", "Asked", "Document", "FakeTelegram", "Gate", "Message", "Person"]

TOKEN = "4242:courier-courier-courier-courier"
SMALL = 65_536
PIECE = 1 << 20
"""More than aiohttp ever has at hand, so that it gives what it has: beyond the size it is asked for it takes a way that it warns of itself."""
CONFLICT = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
WORDS = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict", 413: "Request Entity Too Large"}
WORDS |= {429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway", 504: "Gateway Timeout"}


@dataclass(frozen=True)
class Asked:
    """One request that arrived. `status` is None if it was never answered, or never came to its end."""

    method: str
    chat_id: int | None
    status: int | None


class Gate:
    """Holds back the answer to one request whose work is done."""

    def __init__(self, soon: Callable[[Callable[[], object]], None]) -> None:
        self.arrived = threading.Event()
        """The whole request was taken, and what it asks for was done."""
        self.opened = asyncio.Event()
        self._soon = soon

    def open(self) -> None:
        self._soon(self.opened.set)


@dataclass(frozen=True)
class Fault:
    """What will go wrong with one request."""

    kind: Literal["fail", "early", "stall", "lose", "cut", "gate"]
    error: Says | None = None
    after: int = 0
    gate: Gate | None = None


class FakeTelegram(Methods):
    """Answers from the moment it is entered until it is left. Every control may be used at any time, from any thread."""

    def __init__(self, *, token: str = TOKEN, port: int = 0, largest: int = 50 * 2**20) -> None:
        super().__init__(token)
        self.largest = largest
        self.requests: list[Asked] = []
        self._port = port
        self._faults: dict[str, deque[Fault]] = {}
        self._poll: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def polled(self) -> bool:
        """Whether a bot waits for updates right now."""
        return self._poll is not None

    # ---------------------------------------------------------------- controls

    def up(self) -> None:
        """Listen, at the port it had before if there was one."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), name="telegram", daemon=True)
        self._thread.start()
        assert ready.wait(10), f"Nothing can listen on port {self._port}."

    def down(self) -> None:
        """Stop listening and cut every connection: the next is refused."""
        if self._thread:
            self._soon(self._stop.set)
            self._thread.join(10)
            self._thread = self._loop = None

    def fail(
        self, method: str, status: int = 500, *, times: int = 1, retry_after: int | None = None, description: str | None = None, early: bool = False
    ) -> None:
        """Take the whole request, do nothing, and answer this; `early`: before the body of the request has come."""
        self._plan(method, Fault("early" if early else "fail", Says(status, description or WORDS.get(status, "Error"), retry_after)), times)

    def stall(self, method: str, *, times: int = 1) -> None:
        """Take the whole request, do nothing, and never answer."""
        self._plan(method, Fault("stall"), times)

    def lose(self, method: str, times: int = 1) -> None:
        """Do what is asked for, and drop the connection in place of the answer."""
        self._plan(method, Fault("lose"), times)

    def cut(self, method: str, after: int = 0) -> None:
        """Drop the connection once so many bytes of the document have come."""
        self._plan(method, Fault("cut", after=after), 1)

    def gate(self, method: str) -> Gate:
        """Do what the next request asks for, and hold its answer back until the gate is opened."""
        gate = Gate(self._soon)
        self._plan(method, Fault("gate", gate=gate), 1)
        return gate

    def asked(self, method: str) -> list[Asked]:
        """The requests for one method that were answered or broken off, in order."""
        with self.changed:
            return [each for each in self.requests if each.method == method]

    def _plan(self, method: str, fault: Fault, times: int) -> None:
        with self.changed:
            self._faults.setdefault(method, deque()).extend([fault] * times)

    # ---------------------------------------------------------------- serving

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application()
        application.router.add_route("*", "/bot{token}/{method}", self._serve)
        # A handler ends with its connection, so that nothing which stalls outlives its client or the fake.
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = runner.addresses[0][1]
        ready.set()
        await self._stop.wait()
        for connection in list(runner.server.connections if runner.server else []):
            if connection.transport:
                connection.transport.abort()
        await runner.cleanup()

    def _soon(self, do: Callable[[], object]) -> None:
        if self._loop:
            self._loop.call_soon_threadsafe(do)

    def notify(self) -> None:
        super().notify()
        if self._poll:
            self._soon(self._poll.set)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        done = self._done(request, request.match_info["method"])
        # What was taken whole is done, whether or not its client is still there; only a poll ends with its client.
        fault, status, body = await (done if request.match_info["method"] == "getUpdates" else asyncio.shield(done))
        if fault and fault.kind == "stall":
            await asyncio.Event().wait()
        if fault and fault.gate:
            fault.gate.arrived.set()
            await fault.gate.opened.wait()
        return web.json_response(body, status=status)

    async def _done(self, request: web.Request, method: str) -> tuple[Fault | None, int, Json]:
        given = Json()
        try:
            fault = self._known(request.match_info["token"], method)
            await self._take(request, given, fault.after if fault and fault.kind == "cut" else None)
            result = await self._do(method, given, fault)
        except Says as error:
            self._log(method, given, error.status)
            return None, error.status, error.body
        except (ConnectionError, web.RequestPayloadError, asyncio.CancelledError):
            self._log(method, given, None)
            raise
        self._log(method, given, None if fault and fault.kind in ("stall", "lose") else 200)
        if fault and fault.kind == "lose":
            _drop(request)
        return fault, 200, {"ok": True, "result": result}

    async def _do(self, method: str, given: Json, fault: Fault | None) -> object:
        if fault and fault.error:
            raise fault.error
        if fault and fault.kind == "stall":
            return None
        if method == "getUpdates":
            return await self._updates(given)
        with self.changed:
            return self.methods[method](given)

    def _known(self, token: str, method: str) -> Fault | None:
        if token != self.token:
            raise Says(401, "Unauthorized")
        if method not in self.methods and method != "getUpdates":
            raise Says(404, "Not Found")
        with self.changed:
            fault = self._faults[method].popleft() if self._faults.get(method) else None
        if fault and fault.kind == "early" and fault.error:
            raise fault.error
        return fault

    def _log(self, method: str, given: Json, status: int | None) -> None:
        chat_id = str(given.get("chat_id"))
        with self.changed:
            self.requests.append(Asked(method, int(chat_id) if chat_id.removeprefix("-").isdigit() else None, status))
            self.notify()

    async def _take(self, request: web.Request, given: Json, cut: int | None) -> None:
        """Read the whole request: its parameters, however they are written, and its files."""
        given.update(request.query)
        if request.content_type == "application/json":
            given.update(await request.json())
        elif request.content_type == "multipart/form-data":
            async for part in await request.multipart():
                assert isinstance(part, BodyPartReader)
                assert part.name
                given[part.name] = await self._upload(request, part, cut) if part.filename else await part.text()
            # The form has ended; the request has only if its last chunk came too.
            while not request.content.at_eof():
                await request.content.readany()
        else:
            given.update(await request.post())
        if cut is not None:
            _drop(request)

    async def _upload(self, request: web.Request, part: BodyPartReader, cut: int | None) -> Document:
        size, content, sha256, md5 = 0, b"", hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        while chunk := await part.read_chunk(PIECE):
            size += len(chunk)
            if cut is not None and size > cut:
                _drop(request)
            if size > self.largest:
                raise Says(413, "Request Entity Too Large")
            sha256.update(chunk)
            md5.update(chunk)
            content = content + chunk if size <= SMALL else b""
        file_id = f"BQACAgIAAxkDAAI{self.number():06}"
        return Document(part.filename or "", size, sha256.hexdigest(), md5.hexdigest(), file_id, content if size <= SMALL else None)

    # ---------------------------------------------------------------- long polling

    async def _updates(self, given: Json) -> list[Json]:
        if self._poll:
            # The one that waits ends; its event is no longer the one that is current, which is how it knows.
            self._poll.set()
        mine = self._poll = asyncio.Event()
        self.notify()
        self.confirmed(number(given.get("offset")))
        deadline = asyncio.get_running_loop().time() + number(given.get("timeout"))
        try:
            while True:
                found = self.handed_out(number(given.get("limit")) or 100, listed(given.get("allowed_updates")))
                if found or asyncio.get_running_loop().time() >= deadline:
                    return found
                mine.clear()
                try:
                    async with asyncio.timeout_at(deadline):
                        await mine.wait()
                except TimeoutError:
                    continue
                if self._poll is not mine:
                    raise Says(409, CONFLICT)
        finally:
            if self._poll is mine:
                self._poll = None


def _drop(request: web.Request) -> None:
    """Break the connection off, as a process that was killed would."""
    if request.transport:
        request.transport.abort()
    raise ConnectionResetError


def main() -> None:
    """Serve until it is interrupted. The people 1 … N have spoken to the bot already."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--people", type=int, default=1000)
    given = options.parse_args()
    with FakeTelegram(port=given.port, largest=2000 * 2**20) as telegram:
        for id in range(1, given.people + 1):
            telegram.person(id).spoke = True
        threading.Event().wait()


if __name__ == "__main__":
    main()
