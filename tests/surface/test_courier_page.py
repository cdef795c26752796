"""The courier's page is true: what it draws, and what its commands print while a reader follows it to the first delivery."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.courier.tests.bot_api import FakeTelegram
from apps.courier.tests.yandex import FakeDisk
from interlock import Lifecycle
from tests.surface.terminal import PATIENCE, ROOT, Terminal, a_database
from tests.surface.test_docs import blocks

COURIER = ROOT / "apps" / "courier"
README = COURIER / "README.md"
BOT_TOKEN, DISK_TOKEN, SERVER = "123456789:the-token-that-BotFather-gave-you", "y0_the-token-of-your-disk", "postgresql://localhost/courier"
ADMIN = 123456789
ASKED_FOR = {
    ("QUEUED", "CLAIMED"), ("CLAIMED", "DOWNLOADING"), ("DOWNLOADING", "STREAMING"), ("STREAMING", "DELIVERED"), ("DOWNLOADING", "FAILED"),
    ("STREAMING", "FAILED"), ("DOWNLOADING", "QUEUED"), ("STREAMING", "QUEUED"), ("CLAIMED", "QUEUED"), ("QUEUED", "CANCELLED"), ("QUEUED", "EXPIRED"),
}
ADDED = {("CLAIMED", "FAILED")}
"""For the last try that is lost before it began, and for a user who is no longer allowed."""


@pytest.mark.parametrize("page", [COURIER / "lifecycle.md", README], ids=lambda page: page.name)
def test_a_delivery_has_the_arrows_that_were_asked_for_and_one_more(page: Path) -> None:
    drawn = Lifecycle.load(page, "delivery")
    assert {(arrow.source, arrow.target) for arrow in drawn.arrows} == ASKED_FOR | ADDED
    assert len(drawn.arrows) == len(ASKED_FOR | ADDED)


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with a_database(postgres_url, "page_of_the_courier") as url:
        yield url


def first_delivery(telegram: FakeTelegram) -> None:
    """What the reader does in Telegram, as the administrator that they are."""
    admin = telegram.person(ADMIN, name="Vera", language="en")
    admin.says("/start")
    shown = admin.wait(lambda chat: chat[-1] if chat and chat[-1].buttons else None, PATIENCE)
    for label in ("emma.pdf", "Download"):
        admin.presses(shown, admin.wait(lambda _, label=label: next((data for text, data in shown.buttons if text.endswith(label)), ""), PATIENCE))
    admin.wait(lambda chat: [message for message in chat if message.document is not None and message.document.name == "emma.pdf"], PATIENCE)
    admin.wait(lambda _: "✅ Sent." in (shown.text or ""), PATIENCE)


def test_the_page_of_the_courier_runs(tmp_path: Path, database: str) -> None:
    """From top to bottom, as a reader would, with a Telegram and a Yandex Disk behind it."""
    page = blocks(README)
    assert {block.language for block in page} <= {"console", "env", "sh", "mermaid"}
    with FakeTelegram() as telegram, FakeDisk() as disk:
        disk.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
        urls = {"TELEGRAM_URL": telegram.url, "YANDEX_URL": disk.url, "YANDEX_OAUTH_URL": disk.oauth_url}
        instead = {BOT_TOKEN: telegram.token, DISK_TOKEN: disk.token, SERVER: database}
        terminal = Terminal(tmp_path, instead, {f"COURIER_{name}": url for name, url in urls.items()})
        try:
            for block in page:
                if block.language == "env":
                    terminal.write(".env", block.text)
                terminal.read(block, None)
                if "courier worker\n" in block.text and block.language == "console":
                    first_delivery(telegram)
        finally:
            terminal.close()
