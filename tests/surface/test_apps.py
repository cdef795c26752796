"""The applications in this repository: they use what everybody may use, keep to the sizes of the source, and their pages are true."""

import ast
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import interlock
import interlock.testing
from apps.librarian.tests.qbittorrent import FakeQbittorrent
from interlock import Lifecycle
from tests.surface.test_docs import Block, blocks, missing
from tests.surface.test_shape import FUNCTION, LINES, functions, parsed

ROOT = Path(__file__).parents[2]
APPS = ROOT / "apps"
FILES = sorted(APPS.rglob("*.py"))
SOURCE = [path for path in FILES if "tests" not in path.parts]
LIBRARIAN = APPS / "librarian"
README = LIBRARIAN / "README.md"
ARROWS = {
    ("queued", "downloading"), ("queued", "failed"), ("queued", "canceled"),
    ("downloading", "completed"), ("downloading", "failed"), ("downloading", "canceled"),
}


def name(path: Path) -> str:
    return path.relative_to(APPS).as_posix()


# ---------------------------------------------------------------- the shape of the code
def engine_names(path: Path) -> Iterator[tuple[str, str]]:
    """What a file takes from the engine: the module, and the name in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "interlock")
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").partition(".")[0] == "interlock":
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_there_is_something_to_measure() -> None:
    assert {"librarian/api.py", "librarian/jobs.py"} <= {name(path) for path in SOURCE} < {name(path) for path in FILES}
    assert ("interlock", "App") in engine_names(LIBRARIAN / "jobs.py")


@pytest.mark.parametrize("path", FILES, ids=name)
def test_apps_use_public_names_only(path: Path) -> None:
    """What everybody may import; its tests may use the testing kit."""
    public = {"interlock": set(interlock.__all__)} | ({"interlock.testing": set(interlock.testing.__all__)} if path not in SOURCE else {})
    for module, imported in engine_names(path):
        assert imported in public.get(module, ()), f"{name(path)} imports {imported or module} of {module}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_apps_reach_into_no_private_part_of_the_engine(path: Path) -> None:
    """Not by another way either: no import by name, and no other package's private attribute."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"import_module\(\s*f?[\"']interlock|__import__", text)


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_files_of_apps_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines < LINES, f"{name(path)} has {lines} lines"


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_functions_of_apps_are_short(path: Path) -> None:
    assert {function: lines for function, lines in functions(path) if lines >= FUNCTION} == {}


# ---------------------------------------------------------------- the librarian's page
@pytest.mark.parametrize("page", [LIBRARIAN / "lifecycle.md", README], ids=name)
def test_a_download_has_six_arrows_and_no_other(page: Path) -> None:
    """Those that were asked for; nothing leads from queued to completed, and nothing out of an end."""
    drawn = Lifecycle.load(page, "download")
    assert {(arrow.source, arrow.target) for arrow in drawn.arrows} == ARROWS
    assert len(drawn.arrows) == len(ARROWS)


def test_the_page_draws_what_the_engine_enforces() -> None:
    assert Lifecycle.load(README, "download") == Lifecycle.load(LIBRARIAN / "lifecycle.md", "download")


def test_the_page_lists_every_setting() -> None:
    source = (LIBRARIAN / "settings.py").read_text(encoding="utf-8")
    used = {f"LIBRARIAN_{found}" for found in re.findall(r"read\(\"(\w+)\"", source)}
    assert used == set(re.findall(r"^\| `(LIBRARIAN_\w+)`", README.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_page_lists_every_address() -> None:
    source = (LIBRARIAN / "api.py").read_text(encoding="utf-8")
    served = {(methods or "GET", re.sub(r":\w+", "", path)) for path, methods in re.findall(r'Route\("([^"]+)", [\w.]+(?:, methods=\["(\w+)"\])?\)', source)}
    assert served == set(re.findall(r"^\| `(\w+) (/[^`]*)`", README.read_text(encoding="utf-8"), re.MULTILINE))


def test_links_of_the_page_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", README.read_text(encoding="utf-8")) if "://" not in target]
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []


# ---------------------------------------------------------------- the page, run
PATIENCE = 60.0
_LONG = re.compile(r"^python -m apps\.librarian (run|serve)\b")
QBITTORRENT, HTTP, SERVER = "http://127.0.0.1:8080", "127.0.0.1:8099", "postgresql://localhost/library"


class Terminal:
    """Where a reader of the page types its commands: one directory, one set of variables, and a second window for what runs on."""

    def __init__(self, directory: Path, instead: dict[str, str]) -> None:
        self._directory, self._instead = directory, instead
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("INTERLOCK_", "LIBRARIAN_")) and key != "DATABASE_URL"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
        self._environment = clean | {"PATH": path, "PYTHONPATH": str(ROOT), "LIBRARIAN_POLL": "0.2", "PYTHONUNBUFFERED": "1", "TERM": "dumb"}
        self._running: list[subprocess.Popen[str]] = []

    def type(self, command: str, expected: str) -> None:
        """One command of the page, which prints what the page says."""
        printed = self._start(command, expected) if _LONG.match(command) else self._run(f"{self._put(command)}\nexport -p > _variables")
        lacks = missing(self._put(expected), printed)
        assert lacks is None, f"{command!r} did not print {lacks!r}, but:\n{printed}"

    def python(self, text: str) -> str:
        (self._directory / "_block.py").write_text(self._put(text), encoding="utf-8")
        return self._run("python _block.py")

    def close(self) -> None:
        """Ctrl-C, in the second window."""
        for process in self._running:
            process.send_signal(signal.SIGINT)
        for process in self._running:
            try:
                assert process.wait(PATIENCE) == 0
            finally:
                process.kill()

    def _put(self, text: str) -> str:
        for shown, real in self._instead.items():
            text = text.replace(shown, real)
        return text

    def _run(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"touch _variables; source _variables; set -u -o pipefail\n{script}"], cwd=self._directory, env=self._environment, text=True,
            timeout=PATIENCE, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, f"{script!r} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _start(self, command: str, expected: str) -> str:
        log = self._directory / f"_window_{len(self._running)}"
        with log.open("w", encoding="utf-8") as out:
            script = f"source _variables; exec {self._put(command)}"
            self._running.append(subprocess.Popen(
                ["bash", "-c", script], cwd=self._directory, env=self._environment, text=True, stdout=out, stderr=subprocess.STDOUT))
        end = time.monotonic() + PATIENCE
        while missing(self._put(expected), log.read_text(encoding="utf-8")) and self._running[-1].poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        return log.read_text(encoding="utf-8")


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
    """A PostgreSQL database of the page's own."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS page_of_the_librarian")
        connection.execute("CREATE DATABASE page_of_the_librarian")
        yield re.sub(r"(?<=/)[^/?]*(?=\?|$)", "page_of_the_librarian", postgres_url, count=1) if "?" in postgres_url else \
            postgres_url.rpartition("/")[0] + "/page_of_the_librarian"
        connection.execute("DROP DATABASE page_of_the_librarian WITH (FORCE)")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def test_the_page_of_the_librarian_runs(tmp_path: Path, database: str) -> None:
    """From top to bottom, as a reader would, with a qBittorrent behind it."""
    page = blocks(README)
    assert {block.language for block in page} <= {"console", "python", "text", "mermaid"}
    with FakeQbittorrent(username="librarian", password="a long password") as qbittorrent, downloading(qbittorrent):
        terminal = Terminal(tmp_path, {QBITTORRENT: qbittorrent.url, HTTP: f"127.0.0.1:{free_port()}", SERVER: database})
        try:
            for place, block in enumerate(page):
                _read(terminal, block, page[place + 1] if place + 1 < len(page) else None)
        finally:
            terminal.close()


def _read(terminal: Terminal, block: Block, after: Block | None) -> None:
    if block.language == "console":
        for typed in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = typed.partition("\n")
            terminal.type(command, expected)
    elif block.language == "python":
        printed = terminal.python(block.text)
        assert after is not None
        assert missing(after.text, printed) is None, printed
