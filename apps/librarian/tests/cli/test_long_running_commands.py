"""The commands that run until a signal: their output, their end, and the login check at their start."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from apps.common.tests.app_process import PROCESS_TIMEOUT, AppProcess, ForkedProcess
from apps.common.tests.command_runner import RunCommand
from apps.common.tests.waiting import wait_until
from apps.librarian.tests.cli.cli_steps import assert_refused, begin, finish, started_id
from apps.librarian.tests.fake_qbittorrent import BAN_AFTER, FakeQbittorrent
from apps.librarian.tests.librarian_kit import info_hash_of, magnet, sqlite_only

ROOT = Path(__file__).parents[4]
# These tests are about processes, and one database is enough.
pytestmark = sqlite_only


class LibrarianProcess(ForkedProcess):
    """A command of the librarian in its own process."""

    preload = ("apps.librarian.cli", "apps.librarian.server")


def variables(qbittorrent: FakeQbittorrent, database_url: str, **more: str) -> dict[str, str]:
    """The environment of a process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LIBRARIAN_", "INTERLOCK_"))}
    return clean | {
        "PYTHONPATH": str(ROOT),
        "LIBRARIAN_DATABASE_URL": database_url,
        "LIBRARIAN_QBITTORRENT_URL": qbittorrent.url,
        "LIBRARIAN_POLL": "0.2",
        "LIBRARIAN_QBITTORRENT_USERNAME": qbittorrent.username,
        "LIBRARIAN_QBITTORRENT_PASSWORD": qbittorrent.password,
        **more,
    }


@contextmanager
def running(
    directory: Path, environment: dict[str, str], *arguments: str, ready: str = "listening at "
) -> Iterator[AppProcess]:
    """Run a command until the block ends. The block begins when the command has printed `ready`."""
    process = LibrarianProcess(["apps.librarian", *arguments], directory / "log", environment)
    try:
        wait_until(lambda: ready in process.log or process.code is not None, within=PROCESS_TIMEOUT)
        assert process.code is None, process.log
        yield process
    finally:
        process.kill()


def address_of(process: AppProcess) -> str:
    return process.log.partition("listening at ")[2].split()[0]


# ---------------------------------------------------------------- until a signal
def test_one_process_works_and_serves_until_a_signal(
    librarian: RunCommand, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path
) -> None:
    headers = {"Authorization": f"Bearer {librarian('user', 'add', 'bob').out.strip()}"}
    with running(tmp_path, variables(qbittorrent, database_url), "run", "--http", "127.0.0.1:0") as process:
        address = address_of(process)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        body = {"book_id": 1, "media_type": "text", "source": magnet(1)}
        id = httpx.post(f"{address}/downloads", headers=headers, json=body).json()["id"]
        wait_until(lambda: info_hash_of(1) in qbittorrent.torrents)
        begin(qbittorrent)
        finish(qbittorrent)
        wait_until(lambda: httpx.get(f"{address}/downloads/{id}", headers=headers).json()["status"] == "completed")
        health = httpx.get(f"{address}/health")
        assert (health.json()["ok"], "server" in health.headers) == (True, False)
        assert process.terminate() == 0
    lines = process.log.splitlines()
    assert lines[0] == f"following qBittorrent at {qbittorrent.url}: up to 100 downloads per request, every 0.2 s"
    assert lines[1].startswith("the library is at ")
    assert qbittorrent.password not in process.log
    assert "Traceback" not in process.log


def test_second_signal_exits_at_once(
    librarian: RunCommand, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path
) -> None:
    """Here qBittorrent delays its response. The job is recovered when its lease expires."""
    gate = threading.Event()
    with running(tmp_path, variables(qbittorrent, database_url), "run", "--http", "127.0.0.1:0") as process:
        qbittorrent.slow(gate)
        requests = len(qbittorrent.log)
        id = started_id(librarian("start", 1, "text", magnet(1)))
        wait_until(lambda: len(qbittorrent.log) > requests)
        process.signal(signal.SIGTERM)
        # The server stops first; the worker still waits for its handler.
        wait_until(lambda: "no longer listening" in process.log)
        assert process.terminate() == -signal.SIGTERM
    gate.set()
    assert json.loads(librarian("show", id, "--json").out)["status"] == "queued"


def test_api_runs_without_a_worker_and_without_qbittorrent(
    librarian: RunCommand, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path
) -> None:
    token = librarian("user", "add", "bob").out.strip()
    environment = variables(qbittorrent, database_url, LIBRARIAN_QBITTORRENT_PASSWORD="")
    with running(tmp_path, environment, "serve", "--http", "127.0.0.1:0") as process:
        address = address_of(process)
        assert httpx.get(f"{address}/books").status_code == 401
        librarian("start", 1, "text", magnet(1), "--user", "ann")
        assert httpx.get(f"{address}/health").json()["worker"] is False
        assert_refused(librarian("serve", "--http", address.removeprefix("http://")), 1, "Address already in use")
        # A client that sends too much gets the reason over a real connection, too.
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        response = httpx.post(f"{address}/downloads", headers=headers, content=b" " * 60 * 2**20, timeout=60)
        assert (response.status_code, "11 MiB" in response.json()["error"]) == (413, True)
        process.signal(signal.SIGINT)
        assert process.wait() == 0
    assert qbittorrent.log == []


# ---------------------------------------------------------------- the login check
@pytest.mark.parametrize(
    ("username", "password", "word"), [("admin", "adminadmin", "default credentials"), ("", "", "not set")]
)
def test_worker_refuses_default_credentials(
    librarian: RunCommand,
    qbittorrent: FakeQbittorrent,
    environment: pytest.MonkeyPatch,
    *,
    username: str,
    password: str,
    word: str,
) -> None:
    environment.setenv("LIBRARIAN_QBITTORRENT_URL", qbittorrent.url)
    environment.setenv("LIBRARIAN_QBITTORRENT_USERNAME", username)
    environment.setenv("LIBRARIAN_QBITTORRENT_PASSWORD", password)
    result = librarian("run")
    assert_refused(result, 2, word)
    assert "LIBRARIAN_QBITTORRENT_PASSWORD" in result.err
    assert "adminadmin" not in result.err
    assert qbittorrent.log == []


def test_worker_with_a_wrong_password_exits_after_one_login(
    librarian: RunCommand, qbittorrent: FakeQbittorrent, environment: pytest.MonkeyPatch
) -> None:
    librarian("start", 1, "text", magnet(1))
    environment.setenv("LIBRARIAN_QBITTORRENT_URL", qbittorrent.url)
    environment.setenv("LIBRARIAN_QBITTORRENT_USERNAME", "librarian")
    environment.setenv("LIBRARIAN_QBITTORRENT_PASSWORD", "a wrong one")
    for _ in range(BAN_AFTER):
        result = librarian("run")
        assert_refused(result, 2, "rejects the password of user 'librarian'")
        assert "LIBRARIAN_QBITTORRENT_PASSWORD" in result.err
        assert "a wrong one" not in result.err
    assert len(qbittorrent.requests_to("auth/login")) == BAN_AFTER
    banned = librarian("run")
    assert_refused(banned, 2, "Restart it, or wait until the ban ends")
    assert "PASSWORD" not in banned.err


def test_interlock_worker_with_a_wrong_password_exits_with_the_error(
    qbittorrent: FakeQbittorrent, librarian: RunCommand, database_url: str, tmp_path: Path
) -> None:
    environment = variables(qbittorrent, database_url, LIBRARIAN_QBITTORRENT_PASSWORD="a wrong one")
    arguments = ["interlock", "worker", "-A", "apps.librarian.app:app"]
    process = LibrarianProcess(arguments, tmp_path / "log", environment)
    assert (process.wait(), "Traceback" in process.log) == (1, False)
    assert "rejects the password of user 'librarian'" in process.log
    assert len(qbittorrent.requests_to("auth/login")) == 1


def test_worker_starts_while_qbittorrent_is_unreachable(
    librarian: RunCommand, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path
) -> None:
    qbittorrent.down()
    with running(tmp_path, variables(qbittorrent, database_url), "run", ready="the library is at ") as process:
        logged = process.log.partition(" WARNING librarian: ")[2]
        unreachable = f"qBittorrent at {qbittorrent.url} is unreachable. Check that it is running."
        assert logged.startswith(f"{unreachable} The worker starts anyway")
        qbittorrent.up()
        librarian("start", 1, "text", magnet(1))
        wait_until(lambda: info_hash_of(1) in qbittorrent.torrents)
        assert process.terminate() == 0
