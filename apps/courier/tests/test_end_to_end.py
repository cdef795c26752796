"""The whole courier: a bot and two workers as processes, with a fake Telegram and a fake Yandex Disk over HTTP."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.common.tests.app_process import SpawnedProcess
from apps.courier import formatting
from apps.courier.tests import process_kit
from apps.courier.tests.process_kit import PATH_TO_STREAMING, SIZE, CourierProcesses, ForkedCourier


@pytest.fixture
def processes(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[CourierProcesses]:
    """Start the courier's processes. The first test on SQLite uses real process starts, which take seconds each."""
    first = request.function is test_new_user_gets_a_file_and_the_next_user_gets_it_without_a_transfer
    with process_kit.processes(
        database_url, tmp_path, SpawnedProcess if first and database_url.startswith("sqlite") else ForkedCourier
    ) as made:
        yield made


def test_new_user_gets_a_file_and_the_next_user_gets_it_without_a_transfer(
    processes: CourierProcesses,
) -> None:
    """As after every test here, all processes exit cleanly, print no secret, and `verify` finds no error."""
    ann, bob, disk = processes.ann, processes.bob, processes.disk
    assert [message.text for message in ann.chat] == [
        formatting.render("ru", "pending"),
        formatting.render("ru", "welcome"),
    ]
    halfway = disk.gate("content", after=SIZE // 2)
    card = processes.order(ann)

    def percent(_: object) -> int:
        shown = re.search(r"(\d+) %", card.text or "")
        return int(shown[1]) if shown else 0

    assert 40 <= ann.wait(percent, process_kit.TIMEOUT) <= 50
    assert formatting.render("ru", "STREAMING") in (card.text or "")
    halfway.open()
    processes.wait_for_card(ann, card, "DELIVERED")
    job = processes.ended_delivery()
    assert (processes.states(job.id), job.tries_left) == ([*PATH_TO_STREAMING, "DELIVERED"], 3)
    (sent,) = processes.documents(ann)
    assert (sent.name, sent.size, sent.sha256) == ("Emma.pdf", SIZE, processes.emma.sha256)
    assert len(set(card.edits)) == len(card.edits)

    moved = disk.served
    processes.admit(bob)
    again = processes.order(bob)
    processes.wait_for_card(bob, again, "DELIVERED")
    assert (processes.documents(bob), disk.served) == ([sent], moved)
    assert "Emma.pdf" in (again.text or "")
    assert processes.rows(
        "SELECT count(*), count(DISTINCT message_id), max(CAST(doubted AS int)) FROM courier_deliveries"
    ) == [(2, 2, 0)]
    assert (
        processes.run_to_end("interlock", "verify", "-A", "apps.courier.app:app")
        == "2 jobs checked: every rule holds.\n"
    )


def test_rejected_token_is_renewed_once_for_all_processes(processes: CourierProcesses) -> None:
    processes.disk.revoke()
    card = processes.order(processes.ann)
    processes.wait_for_card(processes.ann, card, "DELIVERED")
    assert (len(processes.disk.requests_for("token")), len(processes.documents(processes.ann))) == (1, 1)


def test_bot_killed_before_confirming_a_click_makes_no_second_delivery(
    processes: CourierProcesses,
) -> None:
    ann, telegram = processes.ann, processes.telegram
    card = processes.open_file(ann, "Austen", "Emma.pdf")
    processes.wait_until(lambda: not telegram.pending, "all that was said is confirmed")
    answered = len(telegram.requests_for("answerCallbackQuery"))
    held = telegram.gate("answerCallbackQuery")
    processes.press(ann, card, formatting.render("ru", "download"))
    assert held.arrived.wait(process_kit.TIMEOUT)
    processes.bot_process.kill()
    held.open()
    assert len(telegram.pending) == 1
    first = processes.ended_delivery()

    processes.start_bot()
    processes.wait_until(lambda: not telegram.pending, "the click is confirmed")
    assert len(telegram.requests_for("answerCallbackQuery")) == answered + 2
    processes.wait_for_card(ann, card, "DELIVERED")
    assert (processes.delivery(), len(processes.documents(ann))) == (first, 1)
    assert processes.rows("SELECT count(*) FROM courier_orders") == [(1,)]
