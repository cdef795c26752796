"""The studio's README is correct: its lifecycle, its tables, and the output of all its commands."""

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from apps.studio.cli import HTTP
from apps.studio.order import PRICES
from apps.studio.settings import Settings
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.web.responses import STATUS
from interlock import Lifecycle
from tests.surface.launcher import Launcher
from tests.surface.page_terminal import ROOT, Terminal, a_database, free_port
from tests.surface.test_docs import Block, blocks

STUDIO = ROOT / "apps" / "studio"
README = STUDIO / "README.md"
TEXT = README.read_text(encoding="utf-8")
SPECIFIED = {
    ("queued", "running"),
    ("queued", "rejected"),
    ("running", "completed"),
    ("running", "failed"),
    ("failed", "queued"),
    ("failed", "dead_letter"),
    ("running", "rejected"),
}


# ---------------------------------------------------------------- tables
@pytest.mark.parametrize("page", [STUDIO / "lifecycle.md", README], ids=lambda page: page.name)
def test_lifecycle_has_exactly_the_specified_transitions(page: Path) -> None:
    drawn = Lifecycle.load(page, "image")
    assert {(arrow.source, arrow.target) for arrow in drawn.arrows} == SPECIFIED
    assert len(drawn.arrows) == len(SPECIFIED)


def test_readme_lists_all_settings() -> None:
    assert re.findall(r"^\| `(STUDIO_\w+)`", TEXT, re.MULTILINE) != []
    assert {f"STUDIO_{name.upper()}" for name in Settings.model_fields} == set(
        re.findall(r"^\| `(STUDIO_\w+)`", TEXT, re.MULTILINE)
    )


def test_readme_lists_all_addresses() -> None:
    source = (STUDIO / "api.py").read_text(encoding="utf-8")
    served = {
        (methods or "GET", path)
        for path, methods in re.findall(r'Route\("([^"]+)", .+?(?:, methods=\["(\w+)"\])?\),\n', source)
    }
    assert served | {("GET", "/")} == set(re.findall(r"^\| `([A-Z]+) (/[^`]*)`", TEXT, re.MULTILINE))


def test_readme_lists_all_error_codes() -> None:
    """The codes of refused orders with their status, and all other codes."""
    rows = {
        int(status): set(re.findall(r"`(\w+)`", reasons))
        for each, reasons in re.findall(r"^\| ([\d, ]+) \| ([^|]+) \|", TEXT, re.MULTILINE)
        for status in each.split(", ")
        if "`" in reasons
    }
    for code, status in STATUS.items():
        assert code in rows[status] or code in ("user_unknown", "not_redrivable"), code
    sources = [path.read_text(encoding="utf-8") for room in (".", "web") for path in (STUDIO / room).glob("*.py")]
    said = {code for source in sources for code in re.findall(r'(?:Wrong|_error)\(\d+, "(\w+)"', source)}
    assert said | {"method_not_allowed"} <= set().union(*rows.values())


def test_readme_lists_the_words_of_the_page_for_all_states() -> None:
    source = (STUDIO / "page" / "formatting.js").read_text(encoding="utf-8")
    shown = re.findall(
        r'^  (\w+): "([^"]+)",$', source.partition("export const STATUS = {")[2].partition("}")[0], re.MULTILINE
    )
    assert {state for state, _ in shown} == {state for arrow in SPECIFIED for state in arrow}
    assert dict(shown) == {
        state: word for word, state in re.findall(r"^\| ([A-Z][a-z ]+) \| `(\w+)` \|$", TEXT, re.MULTILINE)
    }


def test_readme_lists_all_prices() -> None:
    rows = re.findall(r"^\| ((?:`\d+x\d+`(?:, )?)+) \| (\d+) \|$", TEXT, re.MULTILINE)
    assert {size: int(price) for sizes, price in rows for size in re.findall(r"\d+x\d+", sizes)} == PRICES


def test_env_examples_of_the_readme_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [block for block in blocks(README) if block.language == "env"]
    assert shown
    for block in shown:
        (tmp_path / ".env").write_text(block.text, encoding="utf-8")
        assert Settings.read().bucket == ("pictures", "studio")


# ---------------------------------------------------------------- commands
@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with a_database(postgres_url, "studio_readme") as url:
        yield url


def run_block(block: Block, terminal: Terminal, port: int, after: Block | None) -> None:
    """Run one block. A running studio is stopped before it is started again, as the README says."""
    started = "$ python -m apps.studio run\n"
    if started in block.text:
        terminal.close()
        block = replace(
            block, text=block.text.replace(started, f"$ python -m apps.studio run --http 127.0.0.1:{port}\n")
        )
    if block.text.startswith("# moderation.py\n"):
        terminal.write("moderation.py", block.text)
    else:
        terminal.read(block, after)


def test_commands_of_the_readme_run(tmp_path: Path, database: str, app_launcher: Launcher) -> None:
    """From top to bottom: first with the local provider, then with a fake Images API."""
    page, port = blocks(README), free_port()
    assert {block.language for block in page} <= {"console", "python", "text", "mermaid", "env"}
    with FakeImages() as images:
        instead = {
            HTTP: f"127.0.0.1:{port}",
            "sk-the-key-of-your-account": images.api_key,
            "https://api.openai.com/v1": images.url,
            "postgresql://localhost/studio": database,
        }
        terminal = Terminal(tmp_path, instead, {"STUDIO_API_URL": images.url}, app_launcher.path)
        try:
            for block, after in zip(page, [*page[1:], None], strict=True):
                run_block(block, terminal, port, after)
        finally:
            terminal.close()
        assert [asked.prompt for asked in images.asked] == ["a fox in the snow"]
    for name, size in (("lighthouse.png", (1024, 1024)), ("harbour.png", (1536, 1024))):
        assert Image.open(io.BytesIO((tmp_path / name).read_bytes())).size == size
