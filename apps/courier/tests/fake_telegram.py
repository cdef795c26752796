"""A fake Telegram: the Bot API over HTTP on loopback, with its limits, its error descriptions and planned faults.

    with FakeTelegram() as telegram:
        bot = Bot(telegram.token, AiohttpSession(api=TelegramAPIServer.from_base(telegram.url)))
        ann = telegram.person(7, name="Ann")
        ann.send_text("/start")
        …
        ann.wait(lambda chat: chat[-1].text == "Welcome")

An upload is read as a stream, and only its size and hashes are kept. An incomplete request has no effect.
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

from apps.common.tests.loopback_server import abort_connections

from .fake_bot_methods import ApiError, FakeBotMethods, parse_list, parse_number
from .fake_chats import CallbackAnswer, Document, Json, Message, Person

__all__ = ["CallbackAnswer", "Document", "FakeTelegram", "Gate", "Message", "Person", "RecordedRequest"]

TOKEN = "4242:courier-courier-courier-courier"
SMALL = 65_536
CHUNK = 1 << 20
"""More than aiohttp ever has buffered, so that it returns its buffer. Its path for larger reads prints a warning."""
CONFLICT = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
DESCRIPTIONS = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    413: "Request Entity Too Large",
}
DESCRIPTIONS |= {429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway", 504: "Gateway Timeout"}


@dataclass(frozen=True)
class RecordedRequest:
    """A received request. `status` is None if it was not answered or not completed."""

    method: str
    chat_id: int | None
    status: int | None


class Gate:
    """Holds the answer to one completed request."""

    def __init__(self, call_soon: Callable[[Callable[[], object]], None]) -> None:
        self.arrived = threading.Event()
        """Set when the request is complete and its effect has happened."""
        self.opened = asyncio.Event()
        self._call_soon = call_soon

    def open(self) -> None:
        self._call_soon(self.opened.set)


@dataclass(frozen=True)
class Fault:
    """A planned fault of one request."""

    kind: Literal["fail", "early", "stall", "lose", "cut", "gate"]
    error: ApiError | None = None
    after: int = 0
    gate: Gate | None = None


class FakeTelegram(FakeBotMethods):
    """Serves from `__enter__` to `__exit__`. Any thread may use the controls at any time."""

    def __init__(self, *, token: str = TOKEN, port: int = 0, max_file_size: int = 50 * 2**20) -> None:
        super().__init__(token)
        self.max_file_size = max_file_size
        self.requests: list[RecordedRequest] = []
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
    def is_polled(self) -> bool:
        """True while a bot is waiting for updates."""
        return self._poll is not None

    # ---------------------------------------------------------------- controls

    def up(self) -> None:
        """Start to listen, at the earlier port if there was one."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), name="telegram", daemon=True)
        self._thread.start()
        assert ready.wait(10), f"Nothing can listen on port {self._port}."

    def down(self) -> None:
        """Stop listening and cut every connection."""
        if self._thread:
            self._call_soon(self._stop.set)
            self._thread.join(10)
            self._thread = self._loop = None

    def fail(
        self,
        method: str,
        status: int = 500,
        *,
        times: int = 1,
        retry_after: int | None = None,
        description: str | None = None,
        early: bool = False,
    ) -> None:
        """Read the whole request, do nothing, and answer with this error; with `early`, before reading the body."""
        self._add_fault(
            method,
            Fault(
                "early" if early else "fail",
                ApiError(status, description or DESCRIPTIONS.get(status, "Error"), retry_after),
            ),
            times,
        )

    def stall(self, method: str, *, times: int = 1) -> None:
        """Read the whole request, do nothing, and never answer."""
        self._add_fault(method, Fault("stall"), times)

    def lose_answer(self, method: str, times: int = 1) -> None:
        """Do what the request asks, then drop the connection instead of answering."""
        self._add_fault(method, Fault("lose"), times)

    def cut_upload(self, method: str, after: int = 0) -> None:
        """Drop the connection after this many bytes of the document."""
        self._add_fault(method, Fault("cut", after=after), 1)

    def gate(self, method: str) -> Gate:
        """Do what the next request asks, and hold its answer until the gate is opened."""
        gate = Gate(self._call_soon)
        self._add_fault(method, Fault("gate", gate=gate), 1)
        return gate

    def requests_for(self, method: str) -> list[RecordedRequest]:
        """Return the answered or aborted requests for one method, in order."""
        with self.changed:
            return [each for each in self.requests if each.method == method]

    def _add_fault(self, method: str, fault: Fault, times: int) -> None:
        with self.changed:
            self._faults.setdefault(method, deque()).extend([fault] * times)

    # ---------------------------------------------------------------- server

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application()
        application.router.add_route("*", "/bot{token}/{method}", self._serve)
        # Handlers are cancelled with their connection, so that no stalled handler outlives its client or the fake.
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = runner.addresses[0][1]
        ready.set()
        await self._stop.wait()
        await abort_connections()
        await runner.cleanup()
        await abort_connections()

    def _call_soon(self, do: Callable[[], object]) -> None:
        if self._loop:
            self._loop.call_soon_threadsafe(do)

    def notify(self) -> None:
        super().notify()
        if self._poll:
            self._call_soon(self._poll.set)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        done = self._process(request, request.match_info["method"])
        # A complete request is processed even if its client is gone. Only a poll ends with its client.
        fault, status, body = await (done if request.match_info["method"] == "getUpdates" else asyncio.shield(done))
        if fault and fault.kind == "stall":
            await asyncio.Event().wait()
        if fault and fault.gate:
            fault.gate.arrived.set()
            await fault.gate.opened.wait()
        return web.json_response(body, status=status)

    async def _process(self, request: web.Request, method: str) -> tuple[Fault | None, int, Json]:
        given = Json()
        try:
            fault = self._check_request(request.match_info["token"], method)
            await self._read_request(request, given, fault.after if fault and fault.kind == "cut" else None)
            result = await self._run_method(method, given, fault)
        except ApiError as error:
            self._log(method, given, error.status)
            return None, error.status, error.body
        except (ConnectionError, web.RequestPayloadError, asyncio.CancelledError):
            self._log(method, given, None)
            raise
        self._log(method, given, None if fault and fault.kind in ("stall", "lose") else 200)
        if fault and fault.kind == "lose":
            _drop(request)
        return fault, 200, {"ok": True, "result": result}

    async def _run_method(self, method: str, given: Json, fault: Fault | None) -> object:
        if fault and fault.error:
            raise fault.error
        if fault and fault.kind == "stall":
            return None
        if method == "getUpdates":
            return await self._updates(given)
        with self.changed:
            return self.methods[method](given)

    def _check_request(self, token: str, method: str) -> Fault | None:
        if token != self.token:
            raise ApiError(401, "Unauthorized")
        if method not in self.methods and method != "getUpdates":
            raise ApiError(404, "Not Found")
        with self.changed:
            fault = self._faults[method].popleft() if self._faults.get(method) else None
        if fault and fault.kind == "early" and fault.error:
            raise fault.error
        return fault

    def _log(self, method: str, given: Json, status: int | None) -> None:
        chat_id = str(given.get("chat_id"))
        with self.changed:
            self.requests.append(
                RecordedRequest(method, int(chat_id) if chat_id.removeprefix("-").isdigit() else None, status)
            )
            self.notify()

    async def _read_request(self, request: web.Request, given: Json, cut_upload: int | None) -> None:
        """Read the whole request: its parameters in any encoding, and its files."""
        given.update(request.query)
        if request.content_type == "application/json":
            given.update(await request.json())
        elif request.content_type == "multipart/form-data":
            async for part in await request.multipart():
                assert isinstance(part, BodyPartReader)
                assert part.name
                given[part.name] = await self._upload(request, part, cut_upload) if part.filename else await part.text()
            # The form has ended, but the request ends only with its last chunk.
            while not request.content.at_eof():
                await request.content.readany()
        else:
            given.update(await request.post())
        if cut_upload is not None:
            _drop(request)

    async def _upload(self, request: web.Request, part: BodyPartReader, cut_upload: int | None) -> Document:
        size, content, sha256, md5 = 0, b"", hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        while chunk := await part.read_chunk(CHUNK):
            size += len(chunk)
            if cut_upload is not None and size > cut_upload:
                _drop(request)
            if size > self.max_file_size:
                raise ApiError(413, "Request Entity Too Large")
            sha256.update(chunk)
            md5.update(chunk)
            content = content + chunk if size <= SMALL else b""
        file_id = f"BQACAgIAAxkDAAI{self.next_number():06}"
        return Document(
            part.filename or "", size, sha256.hexdigest(), md5.hexdigest(), file_id, content if size <= SMALL else None
        )

    # ---------------------------------------------------------------- long polling

    async def _updates(self, given: Json) -> list[Json]:
        if self._poll:
            # End the earlier poll: it finds that its event is no longer the current one.
            self._poll.set()
        mine = self._poll = asyncio.Event()
        self.notify()
        self.confirm(parse_number(given.get("offset")))
        deadline = asyncio.get_running_loop().time() + parse_number(given.get("timeout"))
        try:
            while True:
                found = self.take_updates(
                    parse_number(given.get("limit")) or 100, parse_list(given.get("allowed_updates"))
                )
                if found or asyncio.get_running_loop().time() >= deadline:
                    return found
                mine.clear()
                try:
                    async with asyncio.timeout_at(deadline):
                        await mine.wait()
                except TimeoutError:
                    continue
                if self._poll is not mine:
                    raise ApiError(409, CONFLICT)
        finally:
            if self._poll is mine:
                self._poll = None


def _drop(request: web.Request) -> None:
    """Abort the connection, as a killed process would."""
    if request.transport:
        request.transport.abort()
    raise ConnectionResetError


def main() -> None:
    """Serve until interrupted. The people 1 … N have written to the bot."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--people", type=int, default=1000)
    given = options.parse_args()
    with FakeTelegram(port=given.port, max_file_size=2000 * 2**20) as telegram:
        for id in range(1, given.people + 1):
            telegram.person(id).spoke = True
        threading.Event().wait()


if __name__ == "__main__":
    main()
