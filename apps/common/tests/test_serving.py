"""The HTTP server of every application: silent, slow and half-open connections do not block other clients."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from apps.common import http_connections
from apps.common.serving import open_listener, run_server, socket_url
from apps.common.tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
FILES = 256
"""The limit of open files in the last test."""
HALF = b"GET /health HTTP/1.1\r\nHost: half\r\n"
LARGE = 64 * 2**20
Address = tuple[str, int]


# ---------------------------------------------------------------- a server in this process
async def echo_length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def ticks(request: Request) -> Response:
    async def ticking() -> AsyncGenerator[str]:
        while not await request.is_disconnected():
            yield "tick\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(ticking())


async def large(_: Request) -> Response:
    return Response(bytes(LARGE))


INTERFACE = Starlette(
    routes=[Route("/", echo_length, methods=["GET", "POST"]), Route("/ticks", ticks), Route("/large", large)]
)


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server that runs in a thread."""
    http, end = open_listener("127.0.0.1:0", ValueError, OSError), list[object]()
    url, ready = socket_url(http), threading.Event()

    async def serving() -> None:
        stop, leave = asyncio.Event(), asyncio.Event()
        end.extend((asyncio.get_running_loop(), leave))
        async with run_server(INTERFACE, http, stop):
            ready.set()
            await leave.wait()

    thread = threading.Thread(target=asyncio.run, args=(serving(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield url
    finally:
        loop, leave = end
        loop.call_soon_threadsafe(leave.set)  # type: ignore[attr-defined]
        thread.join(60)


def host_and_port(url: str) -> Address:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def open_connection(url: str, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(host_and_port(url), timeout=60)
    connection.sendall(data)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed the connection."""
    try:
        return connection.recv(65_536) == b""
    except ConnectionError:
        return True


def server_sockets(client: socket.socket) -> Iterator[socket.socket]:
    """The server's end of this connection, which is in this process."""
    for file in [each for each in Path("/proc/self/fd").iterdir() if each.is_socket()]:
        with suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as other:
            if other.getpeername() == client.getsockname():
                yield other


def is_open_at_server(client: socket.socket) -> bool:
    """Whether the server still has its end of this connection."""
    return any(True for _ in server_sockets(client))


def test_small_responses_are_sent_without_delay() -> None:
    """Nagle's algorithm would delay responses on a reused connection until the client's acknowledgement."""
    with server() as url, open_connection(url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as client:
        assert client.recv(12) == b"HTTP/1.1 200"
        assert [theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for theirs in server_sockets(client)] == [1]


# ---------------------------------------------------------------- the number of connections
def test_at_the_limit_the_longest_waiting_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "MAX_CONNECTIONS", 3)
    with server() as url, ExitStack() as stack:
        silent = [stack.enter_context(open_connection(url)) for _ in range(2)]
        slow = stack.enter_context(open_connection(url, HALF))
        assert httpx.get(url).status_code == 200
        assert is_closed(silent[0])
        slow.sendall(b"\r\n")
        assert slow.recv(12) == b"HTTP/1.1 404"


def test_running_request_is_never_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "MAX_CONNECTIONS", 2)
    with server() as url, ExitStack() as stack:
        streams = [stack.enter_context(httpx.stream("GET", f"{url}/ticks")) for _ in range(2)]
        lines = [stream.iter_lines() for stream in streams]
        refused = httpx.get(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert [next(each) for each in lines] == ["tick", "tick"]
        streams[0].close()
        wait_until(lambda: httpx.get(url).status_code == 200)
        assert next(lines[1]) == "tick"


def test_connection_limit_leaves_open_files_for_the_rest_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in (
        (100_000, http_connections.MAX_CONNECTIONS),
        (600, 300),
        (256, 128),
        (1, 1),
        (http_connections.resource.RLIM_INFINITY, http_connections.MAX_CONNECTIONS),
    ):
        monkeypatch.setattr(http_connections.resource, "getrlimit", lambda _, files=files: (files, files))
        assert http_connections.max_connections() == most


# ---------------------------------------------------------------- deadlines
@pytest.mark.parametrize(
    ("phase", "begun"),
    [("headers", b""), ("headers", HALF), ("body", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")],
    ids=["silent", "half of the headers", "half of the body"],
)
def test_request_that_does_not_arrive_in_time_is_closed(
    monkeypatch: pytest.MonkeyPatch, phase: http_connections.Phase, begun: bytes
) -> None:
    """A steady drip of bytes does not extend the deadline."""
    monkeypatch.setitem(http_connections.PHASE_TIMEOUTS, phase, 0.5)
    with server() as url, open_connection(url, begun) as client:
        client.settimeout(0.05)

        def is_closed_while_dripping() -> bool:
            try:
                if begun:
                    client.sendall(b"a")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(is_closed_while_dripping)


def test_second_request_on_a_connection_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as url, open_connection(url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as client:
        received = b""
        while not received.endswith(b"\r\n\r\n0"):
            received += client.recv(65_536)
        monkeypatch.setitem(http_connections.PHASE_TIMEOUTS, "headers", 0.2)
        client.sendall(HALF)
        assert is_closed(client)


def test_response_has_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    for phase in ("headers", "body"):
        monkeypatch.setitem(http_connections.PHASE_TIMEOUTS, phase, 0.2)
    monkeypatch.setattr(http_connections, "UNREAD_TIMEOUT", 0.2)
    with server() as url, httpx.stream("GET", f"{url}/ticks") as stream:
        lines = stream.iter_lines()
        assert [next(lines) for _ in range(20)] == ["tick"] * 20


def test_client_that_stops_reading_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads slowly gets the whole response."""
    monkeypatch.setattr(http_connections, "UNREAD_TIMEOUT", 3.0)
    request = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
    with server() as url, open_connection(url, request) as reader, open_connection(url, request) as silent:
        read = 0
        wait_until(lambda: is_open_at_server(silent))
        while is_open_at_server(silent):
            assert read < LARGE, "the reader is done, and the silent client is still connected"
            read += len(reader.recv(65_536))
            time.sleep(0.01)
        while read < LARGE:
            more = reader.recv(1 << 20)
            assert more, "the reader was closed"
            read += len(more)


# ---------------------------------------------------------------- an application
def run_with_few_files(directory: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    """A command of the studio that may open few files. Its output goes to `log`."""
    command = ["sh", "-c", f'ulimit -n {FILES} && exec "$0" "$@"', sys.executable, "-m", "apps.studio", *arguments]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def test_half_open_connections_do_not_stop_the_studio_or_its_worker(tmp_path: Path) -> None:
    """There are more of them than the process may open files. The log stays small."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STUDIO_", "INTERLOCK_"))}
    environment = clean | {"PYTHONPATH": str(ROOT), "STUDIO_DATABASE_URL": f"sqlite:///{tmp_path / 'studio.db'}"}
    command = partial(subprocess.check_output, cwd=tmp_path, env=environment, text=True, stderr=subprocess.DEVNULL)
    command([sys.executable, "-m", "apps.studio", "migrate"])
    key = command([sys.executable, "-m", "apps.studio", "user", "add", "ann", "--credits", "9"]).strip()
    process, log = run_with_few_files(tmp_path, environment, "run", "--http", "127.0.0.1:0"), tmp_path / "log"
    try:
        wait_until(lambda: "the worker is ready" in log.read_text() or process.poll() is not None)
        url = log.read_text().partition("listening at ")[2].split()[0]
        with ExitStack() as stack:
            for _ in range(2 * FILES):
                stack.enter_context(open_connection(url, HALF))
            headers = {"Authorization": f"Bearer {key}"}
            job = httpx.post(f"{url}/jobs", json={"prompt": "a hill"}, headers=headers, timeout=60).json()
            wait_until(
                lambda: (
                    httpx.get(f"{url}/jobs/{job['id']}", headers=headers, timeout=60).json()["status"] == "completed"
                )
            )
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    output = log.read_text()
    assert "Traceback" not in output
    assert len(output) < 10_000
