"""The whole of it: a bot and two workers as processes of their own, between a Telegram and a Yandex Disk that answer over HTTP."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.common.tests.programs import Started
from apps.courier import words
from apps.courier.tests import processes
from apps.courier.tests.processes import SIZE, WAY, Command, House


@pytest.fixture
def house(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[House]:
    """The first story is told on SQLite with processes that are started as people start them, which takes some seconds for each."""
    first = request.function is test_a_stranger_is_let_in_and_gets_a_file_and_the_next_gets_it_without_a_transfer
    with processes.house(database_url, tmp_path, Started if first and database_url.startswith("sqlite") else Command) as made:
        yield made


def test_a_stranger_is_let_in_and_gets_a_file_and_the_next_gets_it_without_a_transfer(house: House) -> None:
    """Every process ends in good order, has told no secret, and `verify` finds nothing, as after each test here."""
    ann, bob, disk = house.ann, house.bob, house.disk
    assert [message.text for message in ann.chat] == [words.say("ru", "pending"), words.say("ru", "welcome")]
    halfway = disk.gate("content", after=SIZE // 2)
    card = house.order(ann)

    def percent(_: object) -> int:
        shown = re.search(r"(\d+) %", card.text or "")
        return int(shown[1]) if shown else 0

    assert 40 <= ann.wait(percent, processes.SOON) <= 50
    assert words.say("ru", "STREAMING") in (card.text or "")
    halfway.open()
    house.shows(ann, card, "DELIVERED")
    job = house.ended()
    assert (house.path(job.id), job.tries_left) == ([*WAY, "DELIVERED"], 3)
    (sent,) = house.documents(ann)
    assert (sent.name, sent.size, sent.sha256) == ("Emma.pdf", SIZE, house.emma.sha256)
    assert len(set(card.edits)) == len(card.edits)

    moved = disk.served
    house.admit(bob)
    again = house.order(bob)
    house.shows(bob, again, "DELIVERED")
    assert (house.documents(bob), disk.served) == ([sent], moved)
    assert "Emma.pdf" in (again.text or "")
    assert house.rows("SELECT count(*), count(DISTINCT message_id), max(CAST(doubted AS int)) FROM courier_deliveries") == [(2, 2, 0)]
    assert house.done("interlock", "verify", "-A", "apps.courier.app:app") == "2 jobs checked: every rule holds.\n"


def test_a_token_that_is_refused_is_renewed_once_for_all_processes(house: House) -> None:
    house.disk.revoke()
    card = house.order(house.ann)
    house.shows(house.ann, card, "DELIVERED")
    assert (len(house.disk.asked("token")), len(house.documents(house.ann))) == (1, 1)


def test_a_bot_that_is_killed_before_it_confirms_a_click_makes_no_second_delivery_of_it(house: House) -> None:
    ann, telegram = house.ann, house.telegram
    card = house.look(ann, "Austen", "Emma.pdf")
    house.until(lambda: not telegram.pending, "all that was said is confirmed")
    answered = len(telegram.asked("answerCallbackQuery"))
    held = telegram.gate("answerCallbackQuery")
    house.press(ann, card, words.say("ru", "download"))
    assert held.arrived.wait(processes.SOON)
    house.listener.kill()
    held.open()
    assert len(telegram.pending) == 1
    first = house.ended()

    house.bot()
    house.until(lambda: not telegram.pending, "the click is confirmed")
    assert len(telegram.asked("answerCallbackQuery")) == answered + 2
    house.shows(ann, card, "DELIVERED")
    assert (house.delivery(), len(house.documents(ann))) == (first, 1)
    assert house.rows("SELECT count(*) FROM courier_orders") == [(1,)]
