"""Promises about the long-running side: it works, serves, or both, and after a signal everything ends in good order, streams included."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from apps.common.database import connect
from apps.common.serving import listening, url_of
from apps.common.tests.waiting import eventually
from apps.studio.feed import STREAMS
from apps.studio.jobs import Means, Studio, build
from apps.studio.originals import Originals
from apps.studio.people import People, User
from apps.studio.prompt_guard import PromptGuard
from apps.studio.providers.openai import Images
from apps.studio.serving import STOPPING, until_signal
from apps.studio.session import COOKIE
from apps.studio.tests.images_api import FakeImages, png

PATIENCE = 60.0
"""Seconds after which a test that hangs is ended."""


@pytest.fixture
def studio(database_url: str, images: FakeImages, quick_path: Path) -> Iterator[Studio]:
    """A studio whose time passes."""
    provider = Images(images.url, images.api_key, None)
    made = build(
        database_url, connect(database_url), Means(PromptGuard(), None, provider, Originals.in_directory(quick_path / "files")), lifespan=provider.open)
    made.migrate()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals do after the test what they did before it."""
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def running(studio: Studio, visit: Callable[[httpx.Client], None], *, works: list[str] | None, http: bool = True, slots: int = 3) -> list[str]:
    """What is said by a process that works or serves, to which somebody comes, and which then gets SIGTERM."""
    said, raised, ready = list[str](), list[BaseException](), threading.Event()
    last = "the worker is ready" if works else "listening at"
    socket = listening("127.0.0.1:0", ValueError, OSError) if http else None

    def say(line: str) -> None:
        said.append(line)
        if line.startswith(last):
            ready.set()

    def visitor() -> None:
        try:
            assert ready.wait(PATIENCE)
            with httpx.Client(base_url=url_of(socket) if socket else "", timeout=PATIENCE) as client:
                visit(client)
        except BaseException as error:  # noqa: BLE001 - raised where the test is
            raised.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=visitor)
    thread.start()
    until_signal(studio, say, works=works, slots=slots, http=socket)
    thread.join()
    for error in raised:
        raise error
    return said


def add(studio: Studio, name: str) -> User:
    return People(studio).add(name, credits=10)


def bearer(user: User) -> dict[str, str]:
    return {"Authorization": f"Bearer {user.key}"}


def test_from_the_order_to_the_picture_while_somebody_watches(studio: Studio) -> None:
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
            assert not any(line.startswith(":") for line in lines), "it ended with the session, before it was ever quiet"
        assert len(states) == len(set(states)), "each change was told once"

    assert running(studio, visit, works=["it makes images"])[0] == "it makes images"


def test_streams_end_with_the_process(studio: Studio) -> None:
    ann, bob = add(studio, "ann"), add(studio, "bob")
    heard: dict[str, list[str]] = {}
    opened, threads = threading.Barrier(3), list[threading.Thread]()

    def listen(user: User, base: str) -> None:
        with httpx.stream("GET", f"{base}/events", headers=bearer(user), timeout=PATIENCE) as stream:
            lines = stream.iter_lines()
            heard[user.name] = [next(lines)]
            opened.wait(PATIENCE)
            heard[user.name] += list(lines)

    def visit(client: httpx.Client) -> None:
        threads.extend(threading.Thread(target=listen, args=(user, str(client.base_url).rstrip("/"))) for user in (ann, bob))
        for thread in threads:
            thread.start()
        opened.wait(PATIENCE)
        id = client.post("/jobs", json={"prompt": "a hill"}, headers=bearer(ann)).json()["id"]
        with client.stream("GET", "/events", headers=bearer(ann)) as stream:
            assert any(id in line for line in stream.iter_lines())
        answer = client.get("/health")
        assert (answer.status_code, answer.json()["worker"]) == (503, False)

    said = running(studio, visit, works=None)
    for thread in threads:
        thread.join(PATIENCE)
    assert said[1:] == ["stopping: what is being answered may end for up to 5 s; a second signal ends it at once", "listening no more"]
    assert set(heard) == {"ann", "bob"}
    assert "event: job" not in heard["bob"], "what is another's is told to nobody else"


def test_one_stream_too_many_is_refused_in_a_sentence(studio: Studio) -> None:
    ann, bob, lines = add(studio, "ann"), add(studio, "bob"), list[Iterator[str]]()

    def visit(client: httpx.Client) -> None:
        def follow(user: User) -> httpx.Response:
            stream = stack.enter_context(client.stream("GET", "/events", headers=bearer(user)))
            if stream.status_code == 200:
                # An iterator that goes would close its stream.
                lines.append(stream.iter_lines())
                assert next(lines[-1]) == "retry: 1000"
            return stream

        with ExitStack() as stack:
            assert {follow(ann).status_code for _ in range(STREAMS)} == {200}
            refused = follow(ann)
            assert (refused.status_code, json.loads(refused.read())) == (429, {
                "error": "You already have 10 live streams open. Close a page or program that uses one.", "reason": "too_many_streams"})
            assert follow(bob).status_code == 200
        eventually(lambda: follow(ann).status_code == 200)

    running(studio, visit, works=None)


@pytest.mark.parametrize(("trusted", "secure"), [(None, True), ("10.0.0.7", False), ("10.0.0.7,127.0.0.0/8", True)])
def test_a_proxy_that_is_trusted_may_say_that_it_was_https(
        studio: Studio, monkeypatch: pytest.MonkeyPatch, trusted: str | None, *, secure: bool) -> None:
    """One on this machine is, unless FORWARDED_ALLOW_IPS says otherwise."""
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if trusted is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    ann, cookies = add(studio, "ann"), list[str]()

    def visit(client: httpx.Client) -> None:
        answer = client.post("/session", json={"key": ann.key}, headers={"X-Forwarded-Proto": "https"})
        cookies.append(answer.headers["set-cookie"])

    running(studio, visit, works=None)
    assert ["Secure" in cookie.split("; ") for cookie in cookies] == [secure]


def test_a_worker_alone_listens_nowhere(studio: Studio) -> None:
    lines = ["it makes 3 images at once", "they are kept"]
    assert running(studio, lambda _: None, works=lines, http=False) == [*lines, "the worker is ready", STOPPING]
