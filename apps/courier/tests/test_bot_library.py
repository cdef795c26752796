"""Promises about the library and its deliveries as the bot shows them, by the real aiogram against a Telegram on loopback."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from apps.courier import bot
from apps.courier.desk import Desk, Shown
from apps.courier.tests.bot_api import Message
from apps.courier.tests.counter import Counter, labels
from apps.courier.tests.counter import counter as open_counter
from apps.courier.tests.kit import READER, Office
from apps.courier.words import EN

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def counter(office: Office) -> Iterator[Counter]:
    with open_counter(office) as made:
        yield made


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


# ---------------------------------------------------------------- browsing
def test_the_library_is_browsed_in_one_message(counter: Counter, office: Office) -> None:
    for number in range(20):
        office.yandex.put(f"/Library/book {number:02}.pdf", b"x" * number)
    office.yandex.put("/Library/Zoology/ants.pdf", b"x" * 2048)
    ann = counter.reader()
    [message] = counter.says(ann, "/start")
    assert message.text == "📁 Library"
    assert labels(message) == ["📁 Zoology", *(f"📄 book {n:02}.pdf" for n in range(7)), "1/3", "▶"]
    counter.presses(ann, "▶")
    assert labels(message) == [*(f"📄 book {n:02}.pdf" for n in range(7, 15)), "◀", "2/3", "▶"]
    counter.presses(ann, "▶")
    assert labels(message) == [*(f"📄 book {n:02}.pdf" for n in range(15, 20)), "◀", "3/3"]
    counter.presses(ann, "◀")
    counter.presses(ann, "◀")
    counter.presses(ann, "Zoology")
    assert (message.text, labels(message)) == ("📁 Zoology", ["📄 ants.pdf", EN["up"]])
    counter.presses(ann, "ants.pdf")
    assert (message.text, labels(message)) == ("📄 ants.pdf\nSize: 2 KB", [EN["download"], EN["back"]])
    counter.presses(ann, EN["back"])
    assert message.text == "📁 Zoology"
    counter.presses(ann, EN["up"])
    assert message.text == "📁 Library"
    assert len(ann.chat) == 1


def test_weird_names_are_shown_as_they_are_and_cut(counter: Counter, office: Office) -> None:
    names = ["<b>bold _x_ *y* `z`", "a" * 200, "😀" * 60, "line\nbreak \u202egpj.exe", "{name} %s", "[link](x)"]
    for name in names:
        office.yandex.put(f"/Library/{name}.pdf", b"x")
    ann = counter.reader()
    [message] = counter.says(ann, "/start")
    assert "📄 <b>bold _x_ *y* `z`.pdf" in labels(message)
    assert "📄 line break gpj.exe.pdf" in labels(message)
    assert all(len(label.encode("utf-16-le")) <= 96 for label in labels(message))
    for label in labels(message):
        counter.presses(ann, label)
        assert (message.text or "").startswith("📄 ")
        counter.presses(ann, EN["back"])


def test_what_is_gone_is_said_to_be_gone(counter: Counter, office: Office) -> None:
    office.yandex.put("/Library/Zoology/ants.pdf", b"x")
    ann = counter.reader()
    counter.says(ann, "/start")
    counter.presses(ann, "Zoology")
    file = ann.chat[-1].buttons[0]
    office.yandex.remove("/Library/Zoology")
    office.clock.advance(61)
    assert counter.presses(ann, EN["up"]) is None
    assert counter.forges(ann, file[1]) == EN["gone"]


def test_ids_outside_of_the_library_are_not_there(counter: Counter, office: Office) -> None:
    outside = "INSERT INTO courier_files (id, path, path_hash, name, is_folder) VALUES (:id, :path, :path, 'Private', :folder)"
    office.write(outside, id=5, path="disk:/Private", folder=True)
    office.write(outside, id=1, path="disk:/Private/diary.txt", folder=False)
    ann = counter.reader()
    [message] = counter.says(ann, "/help")
    for data in ("b:2147483647:1", "b:5:999999", "b:1:1", "f:2147483647", "f:1", "f:5"):
        assert counter.forges(ann, data) == EN["gone"]
    assert ann.chat == [message]
    assert message.text == EN["help"]


def test_a_disk_that_is_away_costs_a_sentence(counter: Counter, office: Office) -> None:
    office.yandex.put("/Library/emma.pdf", b"x")
    ann = counter.reader()
    office.yandex.fail("resources", 503)
    assert texts(counter.says(ann, "/start")) == [EN["disk_trouble"]]
    [message] = counter.says(ann, "/start")
    office.clock.advance(61)
    office.yandex.fail("resources", 503)
    counter.presses(ann, "emma.pdf")
    counter.presses(ann, EN["back"])
    assert message.text == f"📁 Library\n{EN['stale']}"


def test_a_disk_that_is_slow_for_one_reader_keeps_nobody_else_waiting(counter: Counter, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.yandex.put("/Library/emma.pdf", b"x")
    ann, bob = counter.reader(), counter.reader(8, "Bob")
    listing = office.yandex.gate("resources")
    with monkeypatch.context() as impatient:
        impatient.setattr(bot, "PATIENCE", 0.2)
        ann.says("/start")
        counter.answer()
        assert texts(counter.says(bob, "/help")) == [EN["help"]]
    assert texts(ann.chat) == [EN["looking"]]
    listing.open()
    assert labels(counter.says(ann, "/start")[0]) == ["📄 emma.pdf"]
    assert len(office.yandex.asked("resources")) == 1


def test_a_refused_token_is_told_to_the_administrators_and_hidden_from_readers(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    office.clock.advance(61)
    office.yandex.revoke(refresh=True)
    assert texts(counter.says(counter.reader(), "/start")) == [EN["disk_refused"]]
    office.run()
    assert counter.admin.chat[-1].text == EN["alert_token"]


# ---------------------------------------------------------------- ordering
def ordering(counter: Counter, office: Office) -> Message:
    office.yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    ann = counter.reader()
    counter.says(ann, "/start")
    counter.presses(ann, "emma.pdf")
    return ann.chat[-1]


def test_a_download_turns_the_message_into_its_card(counter: Counter, office: Office) -> None:
    message = ordering(counter, office)
    assert counter.presses(counter.person(), EN["download"]) == EN["ordered"]
    assert (message.text, labels(message)) == (f"📄 emma.pdf\n{EN['QUEUED']}", [EN["cancel"]])
    assert [card.card_id for card in office.desk.open_cards()] == [message.id]
    office.run()
    counter.look()
    assert (message.text, labels(message)) == (f"📄 emma.pdf\n{EN['DELIVERED']}", [EN["back"]])
    assert [each.document.name for each in counter.person().chat if each.document] == ["emma.pdf"]
    assert counter.presses(counter.person(), EN["back"], message) is None
    assert message.text == "📁 Library"


def test_a_second_click_shows_the_first_job(counter: Counter, office: Office) -> None:
    message = ordering(counter, office)
    button = message.buttons[0][1]
    assert counter.forges(counter.person(), button) == EN["ordered"]
    assert counter.forges(counter.person(), button) == EN["already"]
    assert counter.jobs() == ["QUEUED"]
    office.run()
    assert counter.forges(counter.person(), button) == EN["already"]
    assert counter.jobs() == ["DELIVERED"]


def test_each_showing_is_another_click(counter: Counter, office: Office) -> None:
    message = ordering(counter, office)
    first = message.buttons[0][1]
    counter.presses(counter.person(), EN["back"])
    counter.presses(counter.person(), "emma.pdf")
    assert message.buttons[0][1] != first


def test_a_file_that_is_on_its_way_shows_its_card(counter: Counter, office: Office) -> None:
    ordering(counter, office)
    ann = counter.person()
    counter.presses(ann, EN["download"])
    [message] = counter.says(ann, "/start")
    assert counter.presses(ann, "emma.pdf") == EN["already"]
    assert message.text == f"📄 emma.pdf\n{EN['QUEUED']}"
    assert [card.card_id for card in office.desk.open_cards()] == [message.id]


def test_a_queued_delivery_can_be_cancelled(counter: Counter, office: Office) -> None:
    message = ordering(counter, office)
    counter.presses(counter.person(), EN["download"])
    assert counter.presses(counter.person(), EN["cancel"]) == EN["cancelled"]
    assert (message.text, labels(message)) == (f"📄 emma.pdf\n{EN['CANCELLED']}", [EN["download"], EN["back"]])
    assert counter.jobs() == ["CANCELLED"]
    assert counter.presses(counter.person(), EN["download"]) == EN["ordered"]
    assert sorted(counter.jobs()) == ["CANCELLED", "QUEUED"]


def test_what_is_delivered_cannot_be_cancelled(counter: Counter, office: Office) -> None:
    message = ordering(counter, office)
    counter.presses(counter.person(), EN["download"])
    cancel = message.buttons[0][1]
    office.run()
    assert counter.forges(counter.person(), cancel) == EN["already_ended"]
    assert counter.jobs() == ["DELIVERED"]


def test_what_a_worker_has_taken_is_on_its_way(counter: Counter, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    ordering(counter, office)
    counter.presses(counter.person(), EN["download"])
    [card] = office.desk.open_cards()
    monkeypatch.setattr(office.desk, "cancel", lambda *_: replace(card.shown, state="STREAMING"))
    assert counter.presses(counter.person(), EN["cancel"]) == EN["on_its_way"]


def between(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Let this happen after a press to cancel has looked at the delivery, and before it acts."""
    look, todo = Desk.shown, [do]

    def looks(desk: Desk, user_id: int, job_id: str) -> Shown | None:
        found = look(desk, user_id, job_id)
        if todo:
            todo.pop()()
        return found

    monkeypatch.setattr(Desk, "shown", looks)


def test_what_ends_while_cancel_is_pressed_has_ended(counter: Counter, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    ordering(counter, office)
    counter.presses(counter.person(), EN["download"])
    between(monkeypatch, office.run)
    assert counter.presses(counter.person(), EN["cancel"]) == EN["already_ended"]
    assert counter.jobs() == ["DELIVERED"]


def test_what_a_worker_takes_while_cancel_is_pressed_is_said_to_be_stopping(counter: Counter, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    message = ordering(counter, office)
    counter.presses(counter.person(), EN["download"])
    content, worker = office.yandex.gate("content", after=10), threading.Thread(target=office.run)

    def claimed() -> None:
        worker.start()
        assert content.arrived.wait(20)

    between(monkeypatch, claimed)
    try:
        assert counter.presses(counter.person(), EN["cancel"]) == EN["stopping"]
        assert (message.text or "").endswith(f"\n{EN['stopping']}")
        office.worker.beat()
    finally:
        content.open()
        worker.join(20)
    assert counter.jobs() == ["CANCELLED"]
    counter.look()
    assert message.text == f"📄 emma.pdf\n{EN['CANCELLED']}"


def test_a_file_that_is_gone_cannot_be_ordered(counter: Counter, office: Office) -> None:
    ordering(counter, office)
    office.write("UPDATE courier_files SET gone = true WHERE name = 'emma.pdf'")
    assert counter.presses(counter.person(), EN["download"]) == EN["gone"]
    assert counter.jobs() == []


def test_whoever_was_blocked_meanwhile_orders_nothing(counter: Counter, office: Office) -> None:
    ordering(counter, office)
    counter.says(counter.admin, f"/block {READER}")
    assert counter.presses(counter.person(), EN["download"]) == EN["closed"]
    assert counter.jobs() == []


def test_a_message_that_was_deleted_is_replaced_by_a_new_one(counter: Counter, office: Office) -> None:
    message = ordering(counter, office)
    office.telegram.messages[READER].remove(message)
    counter.person().forges(message.buttons[0][1], message)
    counter.answer()
    [card] = counter.person().chat
    assert card.text == f"📄 emma.pdf\n{EN['QUEUED']}"
    assert [each.card_id for each in office.desk.open_cards()] == [card.id]


def test_an_order_stands_though_its_card_could_not_be_drawn(counter: Counter, office: Office) -> None:
    message = ordering(counter, office)
    office.telegram.fail("editMessageText", 429, retry_after=1)
    assert counter.presses(counter.person(), EN["download"]) == EN["ordered"]
    counter.look()
    assert message.text == f"📄 emma.pdf\n{EN['QUEUED']}"
