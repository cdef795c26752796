"""The documentation is correct: every example runs, in a new directory per page, and prints what the page shows.

A `python` block runs as its own program. If it starts with `# name.py`, it is also saved under that name; so is a
`markdown` block that starts with `<!-- name.md -->`. If the page calls the program with `$ python name.py`, the block
is only saved. A `text` block after it shows its output.

In a `console` block each line after `$ ` is run, and the following lines show its output; `interlock worker` is
stopped, as by Ctrl-C, when nothing is left to do. Printed lines are compared in order: `…` matches anything, lines may
be left out, and a command that ends with `# exits with N` must exit with N.
"""

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from interlock.core.machine import Machine
from interlock.worker.states import WORKER
from tests.surface.launcher import REAL, Launcher

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SERVER = "postgresql://localhost/shop"
"""The address that pages show; the tests replace it with their own server."""

RUN = ("python", "console")
SHOWN = ("text", "mermaid", "markdown")
_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
_WORKER = re.compile(r"^interlock worker(?!.*--help)\b")
BRIEF = Path(__file__).with_name("worker_until_idle.py")
_EXITS = re.compile(r"#\s*exits with (\d+)\s*$")


def page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """Return the name under which the block is saved."""
        found = (
            re.match(r"# ([\w./]+\.py)\n", self.text)
            if self.language == "python"
            else re.match(r"<!-- ([\w./]+\.md) -->\n", self.text)
        )
        return found[1] if found and self.language in ("python", "markdown") else None


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], text.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(text)
    ]


# ---------------------------------------------------------------- running examples
class Directory:
    """The directory in which one page's examples run: empty, as for a reader."""

    def __init__(self, path: Path, server: str, programs: str) -> None:
        self.path = path
        self.server = server
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("INTERLOCK_") and name not in ("DATABASE_URL", "PYTHONPATH")
        }
        self.environment = clean | {
            "PATH": f"{programs}{os.pathsep}{clean.get('PATH', '')}",
            "USER": "ann",
            "LOGNAME": "ann",
            "TERM": "dumb",
            "TMPDIR": str(path),
        }

    def keep(self, block: Block) -> None:
        (self.path / str(block.file)).write_text(block.text.replace(SERVER, self.server), encoding="utf-8")

    def python(self, block: Block) -> str:
        file = self.path / f"_line_{block.line}.py"
        file.write_text(block.text.replace(SERVER, self.server), encoding="utf-8")
        return self._run(["bash", "-c", f"python {file}"], 0)

    def console(self, block: Block) -> Iterator[tuple[str, str, str]]:
        """Yield each command with its output and the expected output; variables last for the whole page."""
        commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        script = ["touch _variables; source _variables; set -u -a"]
        for number, text in enumerate(commands):
            command = _WORKER.sub(f"python {BRIEF}", text.partition("\n")[0].replace(SERVER, self.server))
            wanted = found[1] if (found := _EXITS.search(command)) else "0"
            script += [command, f'code=$?; echo "-- end {number}"; test $code = {wanted} || exit 99']
        output = self._run(["bash", "-c", "\n".join([*script, "export -p > _variables"])], 0)
        for number, text in enumerate(commands):
            printed, _, output = output.partition(f"-- end {number}\n")
            yield text.partition("\n")[0], printed, text.partition("\n")[2]

    def _run(self, command: list[str], wanted: int) -> str:
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, cwd=self.path, env=self.environment, text=True, timeout=60, check=False, **both)
        assert done.returncode == wanted, f"it ended with {done.returncode}:\n{done.stdout}"
        return done.stdout


def missing(expected: str, printed: str) -> str | None:
    """Return the first expected line that was not printed after the lines before it."""
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    for line in expected.splitlines():
        wanted = " ".join(line.split())
        if not wanted or wanted == "…":
            continue
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in wanted.split("…")))
        if not any(pattern.fullmatch(each.strip()) for each in lines):
            return wanted
    return None


def called(block: Block, page: list[Block]) -> bool:
    """Return whether the page runs the block by its name."""
    return block.file is not None and any(
        f"$ python {block.file}\n" in other.text or f"$(python {block.file})" in other.text
        for other in page
        if other.language == "console"
    )


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database on the tests' server, for a page that names one."""
    path: Path = request.getfixturevalue("path")
    if SERVER not in path.read_text(encoding="utf-8"):
        yield SERVER
        return
    url: str = request.getfixturevalue("postgres_url")
    name = f"docs_{path.stem.replace('-', '_')}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
        yield re.sub(r"(?<=/)[^/?]*(?=\?|$)", name, url, count=1) if "?" in url else url.rpartition("/")[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path)], ids=page)
def test_examples_run_and_print_what_the_page_shows(
    path: Path, tmp_path: Path, server: str, engine_launcher: Launcher
) -> None:
    """From top to bottom, as a reader would; the first page runs the real programs."""
    programs = str(REAL) if path == PAGES[0] else engine_launcher.path
    directory, found = Directory(tmp_path, server, programs), blocks(path)
    for place, block in enumerate(found):
        after = found[place + 1] if place + 1 < len(found) else None
        where = f"{page(path)}, line {block.line}"
        if block.file:
            directory.keep(block)
        if block.language == "python" and not called(block, found):
            printed = directory.python(block)
            if after and after.language == "text":
                lacks = missing(after.text, printed)
                assert lacks is None, f"{where}: {lacks!r} was not printed, but:\n{printed}"
        elif block.language == "console":
            for command, printed, expected in directory.console(block):
                lacks = missing(expected, printed)
                assert lacks is None, f"{where}: {command!r} did not print {lacks!r}, but:\n{printed}"
        elif block.language == "mermaid":
            Machine.parse("drawn", block.text)


def test_every_example_is_checked() -> None:
    """Every block has a language that is run or parsed here, and every fence is closed."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert {block.language for block in blocks(path)} <= {*RUN, *SHOWN}, page(path)
        open_fence = re.search(r"^\s*(```|~~~)", _FENCE.sub("", text), re.MULTILINE)
        assert not open_fence, f"{page(path)} does not close a fence"


def test_comparison_finds_missing_and_reordered_lines() -> None:
    """It reports a line that was not printed, or was printed in another order."""
    assert missing("a … c\nd", "a b  c\nx\nd\n") is None
    assert missing("d\na", "a\nd\n") == "a"
    assert missing("a", "ab\n") == "a"


# ---------------------------------------------------------------- links and files
def test_links_lead_to_existing_files() -> None:
    """A relative link names a file of this repository."""
    for path in PAGES:
        text = _FENCE.sub("", path.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{page(path)} links to {target}"


def test_named_files_exist() -> None:
    """Every path in backticks under src, tests, docs or benchmarks."""
    for path in PAGES:
        for named in re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+)`", path.read_text(encoding="utf-8")):
            assert (ROOT / named).exists(), f"{page(path)} names {named}"


def test_every_page_is_listed() -> None:
    """The index of the documentation links to every page."""
    index, decisions = DOCS / "README.md", DOCS / "decisions" / "README.md"
    listed = index.read_text(encoding="utf-8") + "".join(
        f"decisions/{name}" for name in re.findall(r"\((\d{4}[^)]+)\)", decisions.read_text(encoding="utf-8"))
    )
    for path in PAGES[1:]:
        assert path.relative_to(DOCS).as_posix() in listed or path == index, page(path)


def test_decisions_are_short_and_numbered() -> None:
    """Under 25 lines, with context, decision and consequence; numbers without a gap."""
    records = sorted((DOCS / "decisions").glob("0*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 25, path.name
        assert all(f"**{word}.**" in text for word in ("Context", "Decision", "Consequence")), path.name


def test_page_about_the_life_of_a_job_names_at_most_nine_files() -> None:
    """Each file exists and has the named function or query."""
    text = (DOCS / "explanation" / "life-of-a-job.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\d+\. `(src/[\w./]+)`, `(\w+)`", text, re.MULTILINE)
    assert 1 <= len({file for file, _ in steps}) <= 9
    for file, verb in steps:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert verb in (defined(source) if file.endswith(".py") else re.findall(r"-- name: (\w+)", source)), (
            f"{file} has no {verb}"
        )


def test_page_about_the_worker_has_its_state_machine() -> None:
    """The diagram has exactly the transitions of the loop."""
    page = DOCS / "explanation" / "worker.md"
    assert Machine.load(page, "loop").arrows == WORKER.arrows


def defined(source: str) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
