"""The README of the librarian: its diagram, its tables, and the output of its commands are correct."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from interlock import Lifecycle
from tests.surface.launcher import REAL
from tests.surface.page_terminal import ROOT, Terminal, a_database, free_port
from tests.surface.test_docs import blocks

LIBRARIAN = ROOT / "apps" / "librarian"
README = LIBRARIAN / "README.md"
TRANSITIONS = {
    ("queued", "downloading"),
    ("queued", "failed"),
    ("queued", "canceled"),
    ("downloading", "completed"),
    ("downloading", "failed"),
    ("downloading", "canceled"),
}


@pytest.mark.parametrize("page", [LIBRARIAN / "lifecycle.md", README], ids=lambda page: page.name)
def test_download_has_exactly_six_transitions(page: Path) -> None:
    """There is no transition from queued to completed, and none out of a final state."""
    lifecycle = Lifecycle.load(page, "download")
    assert {(arrow.source, arrow.target) for arrow in lifecycle.arrows} == TRANSITIONS
    assert len(lifecycle.arrows) == len(TRANSITIONS)


def test_readme_lists_every_setting() -> None:
    source = (LIBRARIAN / "settings.py").read_text(encoding="utf-8")
    used = {f"LIBRARIAN_{found}" for found in re.findall(r"read\(\"(\w+)\"", source)}
    assert used == set(re.findall(r"^\| `(LIBRARIAN_\w+)`", README.read_text(encoding="utf-8"), re.MULTILINE))


def test_readme_lists_every_address() -> None:
    source = (LIBRARIAN / "api.py").read_text(encoding="utf-8")
    served = {
        (methods or "GET", re.sub(r":\w+", "", path))
        for path, methods in re.findall(r'Route\("([^"]+)", [\w.]+(?:, methods=\["(\w+)"\])?\)', source)
    }
    assert served == set(re.findall(r"^\| `(\w+) (/[^`]*)`", README.read_text(encoding="utf-8"), re.MULTILINE))


# ---------------------------------------------------------------- the commands of the README
QBITTORRENT, HTTP, SERVER = "http://127.0.0.1:8080", "127.0.0.1:8099", "postgresql://localhost/library"


@contextmanager
def downloading(qbittorrent: FakeQbittorrent) -> Iterator[None]:
    """Make qBittorrent download a part of every torrent, and the rest after a few more requests."""
    stop = threading.Event()

    def work() -> None:
        started: dict[str, int] = {}
        while not stop.wait(0.02):
            requests = len(qbittorrent.requests_to("torrents/info"))
            for hash, record in list(qbittorrent.torrents.items()):
                if not record.metadata:
                    found = qbittorrent.metadata(hash, name="emma.epub", size=1_000_000)
                    found.state, found.progress = "downloading", 0.25
                    started[hash] = requests
                elif requests > started[hash] + 20:
                    record.state, record.progress = "uploading", 1.0

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with a_database(postgres_url, "page_of_the_librarian") as url:
        yield url


def test_commands_of_the_readme_print_what_it_says(tmp_path: Path, database: str) -> None:
    """The test runs all blocks in order, with a fake qBittorrent."""
    page = blocks(README)
    assert {block.language for block in page} <= {"console", "python", "text", "mermaid"}
    with FakeQbittorrent(username="librarian", password="a long password") as qbittorrent, downloading(qbittorrent):
        instead = {QBITTORRENT: qbittorrent.url, HTTP: f"127.0.0.1:{free_port()}", SERVER: database}
        terminal = Terminal(tmp_path, instead, {"LIBRARIAN_POLL": "0.2"}, str(REAL))
        try:
            for block, after in zip(page, [*page[1:], None], strict=True):
                terminal.read(block, after)
        finally:
            terminal.close()
