"""Promises about the commands that run until a signal: what they say, how they end, and which qBittorrent they do not start with."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from apps.common.tests.commands import Call
from apps.common.tests.waiting import eventually
from apps.librarian.tests.commands.kit import begin, finish, once, refused, started
from apps.librarian.tests.kit import hash_of, magnet
from apps.librarian.tests.qbittorrent import BAN_AFTER, FakeQbittorrent

ROOT = Path(__file__).parents[4]
PATIENCE = 60.0


def settings(qbittorrent: FakeQbittorrent, database_url: str, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LIBRARIAN_", "INTERLOCK_"))}
    return clean | {
        "PYTHONPATH": str(ROOT), "LIBRARIAN_DATABASE_URL": database_url, "LIBRARIAN_QBITTORRENT_URL": qbittorrent.url, "LIBRARIAN_POLL": "0.2",
        "LIBRARIAN_QBITTORRENT_USERNAME": qbittorrent.username, "LIBRARIAN_QBITTORRENT_PASSWORD": qbittorrent.password, **more,
    }


@contextmanager
def process(directory: Path, environment: dict[str, str], *arguments: str, until: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A command that runs until it is told to end; ready when it has said this."""
    log = directory / "log"
    with log.open("w") as out:
        made = subprocess.Popen(
            [sys.executable, "-m", "apps.librarian", *arguments], cwd=directory, env=environment, text=True, stdout=out, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: until in log.read_text() or made.poll() is not None)
        assert made.poll() is None, log.read_text()
        yield made, log
    finally:
        made.kill()
        made.wait()


def test_one_process_works_and_serves_until_a_signal(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    token = library("user", "add", "bob").out.strip()
    with process(tmp_path, settings(qbittorrent, database_url), "run", "--http", "127.0.0.1:0", until="listening at ") as (worker, log):
        address = log.read_text().partition("listening at ")[2].split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        headers = {"Authorization": f"Bearer {token}"}
        id = httpx.post(f"{address}/downloads", headers=headers, json={"book_id": 1, "media_type": "text", "source": magnet(1)}).json()["id"]
        eventually(lambda: hash_of(1) in qbittorrent.torrents)
        begin(qbittorrent)
        finish(qbittorrent)
        eventually(lambda: httpx.get(f"{address}/downloads/{id}", headers=headers).json()["status"] == "completed")
        assert httpx.get(f"{address}/health").json()["ok"]
        assert "server" not in httpx.get(f"{address}/health").headers
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    said = log.read_text()
    assert said.startswith(f"following qBittorrent at {qbittorrent.url}, every 0.2 s up to 100 downloads at once\nthe library is at ")
    assert qbittorrent.password not in said
    assert "Traceback" not in said


@once
def test_a_second_signal_ends_it_at_once(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    """Where qBittorrent holds an answer back, and somebody has no patience. The lease recovers the job."""
    gate = threading.Event()
    with process(tmp_path, settings(qbittorrent, database_url), "run", "--http", "127.0.0.1:0", until="listening at ") as (worker, log):
        qbittorrent.slow(gate)
        greeted = len(qbittorrent.log)
        id = started(library("start", 1, "text", magnet(1)))
        eventually(lambda: len(qbittorrent.log) > greeted)
        worker.send_signal(signal.SIGTERM)
        # What is served ends first; the worker still waits for its handler.
        eventually(lambda: "listening no more" in log.read_text())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == -signal.SIGTERM
    gate.set()
    assert json.loads(library("show", id, "--json").out)["status"] == "queued"


@once
def test_whoever_sends_too_much_over_the_network_hears_why(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {library('user', 'add', 'bob').out.strip()}", "Content-Type": "application/json"}
    with process(tmp_path, settings(qbittorrent, database_url), "serve", "--http", "127.0.0.1:0", until="listening at ") as (_, log):
        address = log.read_text().partition("listening at ")[2].split()[0]
        answer = httpx.post(f"{address}/downloads", headers=headers, content=b" " * 60 * 2**20, timeout=PATIENCE)
    assert (answer.status_code, "11 MiB" in answer.json()["error"]) == (413, True)


@once
def test_the_interface_alone_needs_no_qbittorrent(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    environment = settings(qbittorrent, database_url, LIBRARIAN_QBITTORRENT_PASSWORD="")
    with process(tmp_path, environment, "serve", "--http", "127.0.0.1:0", until="listening at ") as (server, log):
        address = log.read_text().partition("listening at ")[2].split()[0]
        assert httpx.get(f"{address}/books").status_code == 401
        started(library("start", 1, "text", magnet(1)))
        assert httpx.get(f"{address}/health").json()["worker"] is False
        taken = library("serve", "--http", address.removeprefix("http://"))
        refused(taken, 1, "Address already in use")
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 0
    assert qbittorrent.log == []


@once
@pytest.mark.parametrize(("username", "password", "word"), [("admin", "adminadmin", "Everybody knows"), ("", "", "not set")])
def test_a_worker_with_default_credentials_is_refused(
    library: Call, qbittorrent: FakeQbittorrent, environment: pytest.MonkeyPatch, *, username: str, password: str, word: str,
) -> None:
    environment.setenv("LIBRARIAN_QBITTORRENT_URL", qbittorrent.url)
    environment.setenv("LIBRARIAN_QBITTORRENT_USERNAME", username)
    environment.setenv("LIBRARIAN_QBITTORRENT_PASSWORD", password)
    said = library("run")
    refused(said, 2, word)
    assert "LIBRARIAN_QBITTORRENT_PASSWORD" in said.err
    assert "adminadmin" not in said.err
    assert qbittorrent.log == []


@once
def test_a_worker_whose_password_is_refused_ends_at_once_after_one_login(
    library: Call, qbittorrent: FakeQbittorrent, environment: pytest.MonkeyPatch,
) -> None:
    library("start", 1, "text", magnet(1))
    environment.setenv("LIBRARIAN_QBITTORRENT_URL", qbittorrent.url)
    environment.setenv("LIBRARIAN_QBITTORRENT_USERNAME", "librarian")
    environment.setenv("LIBRARIAN_QBITTORRENT_PASSWORD", "a wrong one")
    for _ in range(BAN_AFTER):
        said = library("run")
        refused(said, 2, "refuses the user name 'librarian' with this password")
        assert "LIBRARIAN_QBITTORRENT_PASSWORD" in said.err
        assert "a wrong one" not in said.err
    assert len(qbittorrent.asked("auth/login")) == BAN_AFTER
    banned = library("run")
    refused(banned, 2, "Restart it, or wait until its ban ends")
    assert "PASSWORD" not in banned.err


@once
def test_a_worker_by_name_whose_password_is_refused_ends_with_the_sentence(qbittorrent: FakeQbittorrent, library: Call, database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "worker", "-A", "apps.librarian.app:app"], text=True, capture_output=True, timeout=PATIENCE, check=False,
        env=settings(qbittorrent, database_url, LIBRARIAN_QBITTORRENT_PASSWORD="a wrong one"))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "refuses the user name 'librarian' with this password" in done.stderr
    assert len(qbittorrent.asked("auth/login")) == 1


@once
def test_a_worker_starts_while_qbittorrent_is_away_and_says_so(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    qbittorrent.down()
    with process(tmp_path, settings(qbittorrent, database_url), "run", until="the library is at ") as (worker, log):
        said = log.read_text().partition(" WARNING librarian: ")[2]
        assert said.startswith(f"qBittorrent at {qbittorrent.url} cannot be reached. See that it runs. The worker starts all the same")
        qbittorrent.up()
        library("start", 1, "text", magnet(1))
        eventually(lambda: hash_of(1) in qbittorrent.torrents)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
