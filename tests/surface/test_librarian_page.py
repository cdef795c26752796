"""The librarian's page is true: what it draws, what it lists, and what its commands print."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apps.librarian.tests.qbittorrent import FakeQbittorrent
from interlock import Lifecycle
from tests.surface.terminal import ROOT, Terminal, a_database, free_port
from tests.surface.test_docs import blocks

LIBRARIAN = ROOT / "apps" / "librarian"
README = LIBRARIAN / "README.md"
ARROWS = {
    ("queued", "downloading"), ("queued", "failed"), ("queued", "canceled"),
    ("downloading", "completed"), ("downloading", "failed"), ("downloading", "canceled"),
}


@pytest.mark.parametrize("page", [LIBRARIAN / "lifecycle.md", README], ids=lambda page: page.name)
def test_a_download_has_six_arrows_and_no_other(page: Path) -> None:
    """Those that were asked for; nothing leads from queued to completed, and nothing out of an end."""
    drawn = Lifecycle.load(page, "download")
    assert {(arrow.source, arrow.target) for arrow in drawn.arrows} == ARROWS
    assert len(drawn.arrows) == len(ARROWS)


def test_the_page_lists_every_setting() -> None:
    source = (LIBRARIAN / "settings.py").read_text(encoding="utf-8")
    used = {f"LIBRARIAN_{found}" for found in re.findall(r"read\(\"(\w+)\"", source)}
    assert used == set(re.findall(r"^\| `(LIBRARIAN_\w+)`", README.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_page_lists_every_address() -> None:
    source = (LIBRARIAN / "api.py").read_text(encoding="utf-8")
    served = {(methods or "GET", re.sub(r":\w+", "", path)) for path, methods in re.findall(r'Route\("([^"]+)", [\w.]+(?:, methods=\["(\w+)"\])?\)', source)}
    assert served == set(re.findall(r"^\| `(\w+) (/[^`]*)`", README.read_text(encoding="utf-8"), re.MULTILINE))


# ---------------------------------------------------------------- the page, run
QBITTORRENT, HTTP, SERVER = "http://127.0.0.1:8080", "127.0.0.1:8099", "postgresql://localhost/library"


@contextmanager
def downloading(qbittorrent: FakeQbittorrent) -> Iterator[None]:
    """qBittorrent finds every torrent that it is given: first a part, and all of it when it has been asked often enough for that to be seen."""
    over = threading.Event()

    def work() -> None:
        seen: dict[str, int] = {}
        while not over.wait(0.02):
            asked = len(qbittorrent.asked("torrents/info"))
            for hash, record in list(qbittorrent.torrents.items()):
                if not record.metadata:
                    found = qbittorrent.metadata(hash, name="emma.epub", size=1_000_000)
                    found.state, found.progress = "downloading", 0.25
                    seen[hash] = asked
                elif asked > seen[hash] + 20:
                    record.state, record.progress = "uploading", 1.0

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with a_database(postgres_url, "page_of_the_librarian") as url:
        yield url


def test_the_page_of_the_librarian_runs(tmp_path: Path, database: str) -> None:
    """From top to bottom, as a reader would, with a qBittorrent behind it."""
    page = blocks(README)
    assert {block.language for block in page} <= {"console", "python", "text", "mermaid"}
    with FakeQbittorrent(username="librarian", password="a long password") as qbittorrent, downloading(qbittorrent):
        instead = {QBITTORRENT: qbittorrent.url, HTTP: f"127.0.0.1:{free_port()}", SERVER: database}
        terminal = Terminal(tmp_path, instead, {"LIBRARIAN_POLL": "0.2"})
        try:
            for block, after in zip(page, [*page[1:], None], strict=True):
                terminal.read(block, after)
        finally:
            terminal.close()
