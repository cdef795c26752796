"""The courier's README is correct: its diagram, and the output of its commands up to the first delivery."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.courier.tests.fake_telegram import FakeTelegram
from apps.courier.tests.fake_yandex import FakeDisk
from interlock import Lifecycle
from tests.surface.launcher import Launcher
from tests.surface.page_terminal import ROOT, TIME_LIMIT, Terminal, a_database
from tests.surface.test_docs import blocks

COURIER = ROOT / "apps" / "courier"
README = COURIER / "README.md"
BOT_TOKEN, DISK_TOKEN, SERVER = (
    "123456789:the-token-that-BotFather-gave-you",
    "y0_the-token-of-your-disk",
    "postgresql://localhost/courier",
)
ADMIN = 123456789
ASKED_FOR = {
    ("QUEUED", "CLAIMED"),
    ("CLAIMED", "DOWNLOADING"),
    ("DOWNLOADING", "STREAMING"),
    ("STREAMING", "DELIVERED"),
    ("DOWNLOADING", "FAILED"),
    ("STREAMING", "FAILED"),
    ("DOWNLOADING", "QUEUED"),
    ("STREAMING", "QUEUED"),
    ("CLAIMED", "QUEUED"),
    ("QUEUED", "CANCELLED"),
    ("QUEUED", "EXPIRED"),
}
ADDED = {("CLAIMED", "FAILED")}
"""For a last try that is lost before it starts, and for a user who lost access."""


@pytest.mark.parametrize("page", [COURIER / "lifecycle.md", README], ids=lambda page: page.name)
def test_delivery_has_the_requested_transitions_and_one_more(page: Path) -> None:
    drawn = Lifecycle.load(page, "delivery")
    assert {(arrow.source, arrow.target) for arrow in drawn.arrows} == ASKED_FOR | ADDED
    assert len(drawn.arrows) == len(ASKED_FOR | ADDED)


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with a_database(postgres_url, "page_of_the_courier") as url:
        yield url


def first_delivery(telegram: FakeTelegram) -> None:
    """Do in Telegram what the README tells the administrator to do."""
    admin = telegram.person(ADMIN, name="Vera", language="en")
    admin.send_text("/start")
    shown = admin.wait(lambda chat: chat[-1] if chat and chat[-1].buttons else None, TIME_LIMIT)
    for label in ("emma.pdf", "Download"):
        admin.press(
            shown,
            admin.wait(
                lambda _, label=label: next((data for text, data in shown.buttons if text.endswith(label)), ""),
                TIME_LIMIT,
            ),
        )
    admin.wait(
        lambda chat: [
            message for message in chat if message.document is not None and message.document.name == "emma.pdf"
        ],
        TIME_LIMIT,
    )
    admin.wait(lambda _: "✅ Sent." in (shown.text or ""), TIME_LIMIT)


def test_commands_of_the_courier_readme_run(tmp_path: Path, database: str, app_launcher: Launcher) -> None:
    """From top to bottom, with a fake Telegram and a fake Yandex Disk."""
    page = blocks(README)
    assert {block.language for block in page} <= {"console", "env", "sh", "mermaid"}
    with FakeTelegram() as telegram, FakeDisk() as disk:
        disk.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
        urls = {"TELEGRAM_URL": telegram.url, "YANDEX_URL": disk.url, "YANDEX_OAUTH_URL": disk.oauth_url}
        instead = {BOT_TOKEN: telegram.token, DISK_TOKEN: disk.token, SERVER: database}
        terminal = Terminal(
            tmp_path, instead, {f"COURIER_{name}": url for name, url in urls.items()}, app_launcher.path
        )
        try:
            for block in page:
                if block.language == "env":
                    terminal.write(".env", block.text)
                terminal.read(block, None)
                if "courier worker\n" in block.text and block.language == "console":
                    first_delivery(telegram)
        finally:
            terminal.close()
