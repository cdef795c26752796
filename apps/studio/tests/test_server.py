"""The server process: it runs a worker, the web server or both, and shuts down gracefully after a signal."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from apps.common.database import make_engine
from apps.common.serving import open_listener, socket_url
from apps.common.signals import STOPPING_MESSAGE
from apps.common.tests.waiting import wait_until
from apps.studio.clients.openai_images import OpenAIImages
from apps.studio.clients.originals import Originals
from apps.studio.jobs import Dependencies, Studio, build
from apps.studio.prompt_guard import PromptGuard
from apps.studio.tests.fake_images_api import FakeImages, png
from apps.studio.users import User, Users
from apps.studio.web.auth import COOKIE
from apps.studio.web.event_feed import MAX_STREAMS
from apps.studio.web.server import run_until_signal

TIME_LIMIT = 60.0
"""Seconds after which a test that hangs is ended."""


@pytest.fixture
def studio(database_url: str, images: FakeImages, quick_path: Path) -> Iterator[Studio]:
    """A studio with a real clock."""
    provider = OpenAIImages(images.url, images.api_key, None)
    made = build(
        database_url,
        make_engine(database_url),
        Dependencies(PromptGuard(), None, provider, Originals.in_directory(quick_path / "files")),
        lifespan=provider.open,
    )
    made.migrate()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the signal handlers after the test."""
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def running(
    studio: Studio, visit: Callable[[httpx.Client], None], *, works: list[str] | None, http: bool = True, slots: int = 3
) -> list[str]:
    """Run a process until its visitor is done, then send SIGTERM; return what it printed."""
    said, raised, ready = list[str](), list[BaseException](), threading.Event()
    last = "the worker is ready" if works else "listening at"
    socket = open_listener("127.0.0.1:0", ValueError, OSError) if http else None

    def say(line: str) -> None:
        said.append(line)
        if line.startswith(last):
            ready.set()

    def visitor() -> None:
        try:
            assert ready.wait(TIME_LIMIT)
            with httpx.Client(base_url=socket_url(socket) if socket else "", timeout=TIME_LIMIT) as client:
                visit(client)
        except BaseException as error:  # noqa: BLE001 - raised where the test is
            raised.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=visitor)
    thread.start()
    run_until_signal(studio, say, works=works, slots=slots, http=socket)
    thread.join()
    for error in raised:
        raise error
    return said


def add(studio: Studio, name: str) -> User:
    return Users(studio).add(name, credits=10)


def bearer(user: User) -> dict[str, str]:
    return {"Authorization": f"Bearer {user.key}"}


def test_order_becomes_a_picture_while_a_stream_is_open(studio: Studio) -> None:
    ann = add(studio, "ann")

    def visit(client: httpx.Client) -> None:
        assert client.post("/session", json={"key": ann.key}).status_code == 200
        own = {"Origin": str(client.base_url).rstrip("/")}
        states: list[str] = []
        with client.stream("GET", "/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            assert [next(lines) for _ in range(3)] == ["retry: 1000", "", "event: credits"]
            job = client.post("/jobs", json={"prompt": "a hill"}, headers=own).json()
            while not states or states[-1] != "completed":
                if next(lines) == "event: job":
                    told = json.loads(next(lines).removeprefix("data: "))
                    assert told["id"] == job["id"]
                    states.append(told["status"])
            assert client.get(told["resultUrl"]).content == png("1024x1024")
            assert client.get("/health").json()["ok"] is True
            assert client.delete("/session", headers=own).status_code == 204
            assert COOKIE not in client.cookies
            assert not any(line.startswith(":") for line in lines), (
                "it ended with the session, before it was ever quiet"
            )
        assert len(states) == len(set(states)), "each change was told once"

    assert running(studio, visit, works=["it makes images"])[0] == "it makes images"


def test_streams_end_with_the_process(studio: Studio) -> None:
    ann, bob = add(studio, "ann"), add(studio, "bob")
    heard: dict[str, list[str]] = {}
    opened, threads = threading.Barrier(3), list[threading.Thread]()

    def listen(user: User, base: str) -> None:
        with httpx.stream("GET", f"{base}/events", headers=bearer(user), timeout=TIME_LIMIT) as stream:
            lines = stream.iter_lines()
            heard[user.name] = [next(lines)]
            opened.wait(TIME_LIMIT)
            heard[user.name] += list(lines)

    def visit(client: httpx.Client) -> None:
        threads.extend(
            threading.Thread(target=listen, args=(user, str(client.base_url).rstrip("/"))) for user in (ann, bob)
        )
        for thread in threads:
            thread.start()
        opened.wait(TIME_LIMIT)
        id = client.post("/jobs", json={"prompt": "a hill"}, headers=bearer(ann)).json()["id"]
        with client.stream("GET", "/events", headers=bearer(ann)) as stream:
            assert any(id in line for line in stream.iter_lines())
        answer = client.get("/health")
        assert (answer.status_code, answer.json()["worker"]) == (503, False)

    said = running(studio, visit, works=None)
    for thread in threads:
        thread.join(TIME_LIMIT)
    assert said[1:] == [
        "stopping: open requests have up to 5 s to finish; a second signal stops at once",
        "stopped listening",
    ]
    assert set(heard) == {"ann", "bob"}
    assert "event: job" not in heard["bob"], "other users get no events"


def test_too_many_streams_are_refused(studio: Studio) -> None:
    ann, bob, lines = add(studio, "ann"), add(studio, "bob"), list[Iterator[str]]()

    def visit(client: httpx.Client) -> None:
        def follow(user: User) -> httpx.Response:
            stream = stack.enter_context(client.stream("GET", "/events", headers=bearer(user)))
            if stream.status_code == 200:
                # Keep the iterator: a collected one would close its stream.
                lines.append(stream.iter_lines())
                assert next(lines[-1]) == "retry: 1000"
            return stream

        with ExitStack() as stack:
            assert {follow(ann).status_code for _ in range(MAX_STREAMS)} == {200}
            refused = follow(ann)
            assert (refused.status_code, json.loads(refused.read())) == (
                429,
                {
                    "error": "You already have 10 event streams open. Close a page or program that uses one.",
                    "reason": "too_many_streams",
                },
            )
            assert follow(bob).status_code == 200
        wait_until(lambda: follow(ann).status_code == 200)

    running(studio, visit, works=None)


@pytest.mark.parametrize(("trusted", "secure"), [(None, True), ("10.0.0.7", False), ("10.0.0.7,127.0.0.0/8", True)])
def test_trusted_proxy_may_set_the_scheme(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, trusted: str | None, *, secure: bool
) -> None:
    """A proxy on this machine is trusted, unless FORWARDED_ALLOW_IPS is set."""
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if trusted is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    ann, cookies = add(studio, "ann"), list[str]()

    def visit(client: httpx.Client) -> None:
        answer = client.post("/session", json={"key": ann.key}, headers={"X-Forwarded-Proto": "https"})
        cookies.append(answer.headers["set-cookie"])

    running(studio, visit, works=None)
    assert ["Secure" in cookie.split("; ") for cookie in cookies] == [secure]


def test_worker_alone_does_not_listen(studio: Studio) -> None:
    lines = ["it makes 3 images at once", "they are kept"]
    assert running(studio, lambda _: None, works=lines, http=False) == [*lines, "the worker is ready", STOPPING_MESSAGE]
