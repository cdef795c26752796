"""HTTP in every application: a client cannot keep others out with silent, slow or half-open connections."""

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

from apps.common import connections
from apps.common.serving import listening, served, url_of
from apps.common.tests.waiting import eventually

ROOT = Path(__file__).parents[3]
FILES = 256
"""Files that a process with few of them may open."""
HALF = b"GET /health HTTP/1.1\r\nHost: half\r\n"
LARGE = 64 * 2**20
Address = tuple[str, int]


# ---------------------------------------------------------------- a server of our own
async def answer(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def ticks(request: Request) -> Response:
    async def ticking() -> AsyncGenerator[str]:
        while not await request.is_disconnected():
            yield "tick\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(ticking())


async def large(_: Request) -> Response:
    return Response(bytes(LARGE))


INTERFACE = Starlette(routes=[Route("/", answer, methods=["GET", "POST"]), Route("/ticks", ticks), Route("/large", large)])


@contextmanager
def server() -> Iterator[str]:
    """The address of a server in a thread of its own."""
    http, end = listening("127.0.0.1:0", ValueError, OSError), list[object]()
    url, ready = url_of(http), threading.Event()

    async def serving() -> None:
        stop, leave = asyncio.Event(), asyncio.Event()
        end.extend((asyncio.get_running_loop(), leave))
        async with served(INTERFACE, http, stop):
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


def at(url: str) -> Address:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def opened(url: str, said: bytes = b"") -> socket.socket:
    made = socket.create_connection(at(url), timeout=60)
    made.sendall(said)
    return made


def ended(connection: socket.socket) -> bool:
    """Whether the server has closed it."""
    try:
        return connection.recv(65_536) == b""
    except ConnectionError:
        return True


def accepted(client: socket.socket) -> Iterator[socket.socket]:
    """The server's end of this connection, which is in this process."""
    for file in [each for each in Path("/proc/self/fd").iterdir() if each.is_socket()]:
        with suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as other:
            if other.getpeername() == client.getsockname():
                yield other


def at_server(client: socket.socket) -> bool:
    """Whether the server has kept its end of this connection."""
    return any(True for _ in accepted(client))


def test_small_answers_are_sent_at_once() -> None:
    """Nagle's algorithm would keep each answer on a connection that is used again until the client's delayed acknowledgement."""
    with server() as url, opened(url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as client:
        assert client.recv(12) == b"HTTP/1.1 200"
        assert [theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for theirs in accepted(client)] == [1]


# ---------------------------------------------------------------- how many
def test_connection_that_has_waited_longest_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST", 3)
    with server() as url, ExitStack() as stack:
        silent = [stack.enter_context(opened(url)) for _ in range(2)]
        slow = stack.enter_context(opened(url, HALF))
        assert httpx.get(url).status_code == 200
        assert ended(silent[0])
        slow.sendall(b"\r\n")
        assert slow.recv(12) == b"HTTP/1.1 404"


def test_request_that_is_being_answered_is_never_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST", 2)
    with server() as url, ExitStack() as stack:
        streams = [stack.enter_context(httpx.stream("GET", f"{url}/ticks")) for _ in range(2)]
        lines = [stream.iter_lines() for stream in streams]
        refused = httpx.get(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert [next(each) for each in lines] == ["tick", "tick"]
        streams[0].close()
        eventually(lambda: httpx.get(url).status_code == 200)
        assert next(lines[1]) == "tick"


def test_limit_leaves_files_for_the_rest_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((100_000, connections.MOST), (600, 300), (256, 128), (1, 1), (connections.resource.RLIM_INFINITY, connections.MOST)):
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, files=files: (files, files))
        assert connections.most() == most


# ---------------------------------------------------------------- how long
@pytest.mark.parametrize(
    ("phase", "begun"), [("head", b""), ("head", HALF), ("body", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")],
    ids=["silent", "half a head", "half a body"])
def test_request_that_does_not_arrive_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch, phase: connections.Phase, begun: bytes) -> None:
    """However steadily its bytes drip."""
    monkeypatch.setitem(connections.ALLOWED, phase, 0.5)
    with server() as url, opened(url, begun) as client:
        client.settimeout(0.05)

        def dripped() -> bool:
            try:
                if begun:
                    client.sendall(b"a")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        eventually(dripped)


def test_second_head_on_a_connection_has_a_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as url, opened(url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as client:
        heard = b""
        while not heard.endswith(b"\r\n\r\n0"):
            heard += client.recv(65_536)
        monkeypatch.setitem(connections.ALLOWED, "head", 0.2)
        client.sendall(HALF)
        assert ended(client)


def test_answer_may_take_longer_than_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for phase in ("head", "body"):
        monkeypatch.setitem(connections.ALLOWED, phase, 0.2)
    monkeypatch.setattr(connections, "UNREAD", 0.2)
    with server() as url, httpx.stream("GET", f"{url}/ticks") as stream:
        lines = stream.iter_lines()
        assert [next(lines) for _ in range(20)] == ["tick"] * 20


def test_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads slowly gets the whole response."""
    monkeypatch.setattr(connections, "UNREAD", 3.0)
    asked = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
    with server() as url, opened(url, asked) as reader, opened(url, asked) as silent:
        read = 0
        eventually(lambda: at_server(silent))
        while at_server(silent):
            assert read < LARGE, "the reader has all, and the other keeps its connection"
            read += len(reader.recv(65_536))
            time.sleep(0.01)
        while read < LARGE:
            more = reader.recv(1 << 20)
            assert more, "the reader was given up"
            read += len(more)


# ---------------------------------------------------------------- an application
def run_with_few_files(directory: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    """A command of the studio's that may open few files, and writes what it says into `log`."""
    command = ["sh", "-c", f'ulimit -n {FILES} && exec "$0" "$@"', sys.executable, "-m", "apps.studio", *arguments]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def test_half_open_connections_stop_neither_the_studio_nor_its_worker(tmp_path: Path) -> None:
    """More of them than the process may open files: others are served, what they order is made, and the log stays small."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STUDIO_", "INTERLOCK_"))}
    environment = clean | {"PYTHONPATH": str(ROOT), "STUDIO_DATABASE_URL": f"sqlite:///{tmp_path / 'studio.db'}"}
    command = partial(subprocess.check_output, cwd=tmp_path, env=environment, text=True, stderr=subprocess.DEVNULL)
    command([sys.executable, "-m", "apps.studio", "migrate"])
    key = command([sys.executable, "-m", "apps.studio", "user", "add", "ann", "--credits", "9"]).strip()
    process, log = run_with_few_files(tmp_path, environment, "run", "--http", "127.0.0.1:0"), tmp_path / "log"
    try:
        eventually(lambda: "the worker is ready" in log.read_text() or process.poll() is not None)
        url = log.read_text().partition("listening at ")[2].split()[0]
        with ExitStack() as stack:
            for _ in range(2 * FILES):
                stack.enter_context(opened(url, HALF))
            headers = {"Authorization": f"Bearer {key}"}
            job = httpx.post(f"{url}/jobs", json={"prompt": "a hill"}, headers=headers, timeout=60).json()
            eventually(lambda: httpx.get(f"{url}/jobs/{job['id']}", headers=headers, timeout=60).json()["status"] == "completed")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    said = log.read_text()
    assert "Traceback" not in said
    assert len(said) < 10_000
