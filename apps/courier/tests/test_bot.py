"""Promises about what the bot answers, by the real aiogram against a Telegram on loopback."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from apps.courier import words
from apps.courier.tests.bot_api import Message
from apps.courier.tests.counter import Counter, labels
from apps.courier.tests.counter import counter as open_counter
from apps.courier.tests.kit import ADMIN, READER, STRANGER, Office
from apps.courier.words import EN, RU

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def counter(office: Office) -> Iterator[Counter]:
    with open_counter(office) as made:
        yield made


def status_of(office: Office) -> str | None:
    found = office.desk.user(STRANGER)
    return found.status if found else None


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


# ---------------------------------------------------------------- admission
def test_a_stranger_who_starts_is_registered_and_the_administrator_is_asked(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    stranger = counter.person(STRANGER, "Eve", "en")
    assert texts(counter.says(stranger, "/start")) == [EN["closed"]]
    found = office.desk.user(STRANGER)
    assert found
    assert (found.status, found.name) == ("PENDING", "Eve")
    asked = counter.admin.chat[-1]
    assert asked.text == f"Eve (id {STRANGER}) asks for admission."
    assert labels(asked) == [EN["allow"], EN["block"]]


@pytest.mark.parametrize("status", [None, "PENDING", "BLOCKED"])
def test_whoever_is_not_let_in_hears_the_same_sentence_to_everything(counter: Counter, office: Office, status: str | None) -> None:
    office.file("secret.pdf")
    eve = counter.person(STRANGER, "Eve")
    if status:
        office.user(STRANGER, None if status == "PENDING" else "BLOCKED", name="Eve")
    for text in ("hello", "/help", "/users", "/status", "/allow 99", "/block 7", "/nonsense", "secret.pdf"):
        assert texts(counter.says(eve, text)) == [EN["closed"]]
    for data in ("b:0:1", "b:1:1", "f:1", f"a:{STRANGER}:A", "c:0190a1b2-0000-7000-8000-000000000000", "nonsense"):
        assert counter.forges(eve, data) == EN["closed"]
    assert texts(counter.says(eve, "/start"))[-1] == EN["closed"]
    assert status_of(office) == (status or "PENDING")


def test_only_start_registers(counter: Counter, office: Office) -> None:
    counter.says(counter.person(STRANGER), "/help")
    counter.forges(counter.person(STRANGER), "b:0:1")
    assert office.desk.users() == []


def test_the_administrator_lets_somebody_in_with_a_button_and_they_are_told(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    eve = counter.person(STRANGER, "Eve", "ru")
    counter.says(eve, "/start")
    assert counter.presses(counter.admin, EN["allow"]) is None
    assert counter.admin.chat[-1].text == f"Eve (id {STRANGER}): allowed."
    assert counter.admin.chat[-1].buttons == []
    assert eve.chat[-1].text == RU["welcome"]
    assert counter.says(eve, "/start")[0].text == "📁 Библиотека\nЗдесь пусто."


def test_the_administrator_keeps_somebody_out_with_a_button_and_nobody_is_told(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    eve = counter.person(STRANGER, "Eve")
    counter.says(eve, "/start")
    counter.presses(counter.admin, EN["block"])
    assert counter.admin.chat[-1].text == f"Eve (id {STRANGER}): blocked."
    assert texts(eve.chat) == [EN["closed"]]


def test_an_old_button_does_not_undo_a_later_command(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    counter.says(counter.person(STRANGER, "Eve"), "/start")
    asked = counter.admin.chat[-1]
    asked.date -= 60
    counter.says(counter.admin, f"/block {STRANGER}")
    counter.presses(counter.admin, EN["allow"], asked)
    assert asked.text == f"A later decision stands: blocked. To change it, send /allow {STRANGER} or /block {STRANGER}."
    assert status_of(office) == "BLOCKED"


def test_commands_let_people_in_and_keep_them_out(counter: Counter, office: Office) -> None:
    counter.says(counter.person(STRANGER, "Eve"), "/start")
    assert texts(counter.says(counter.admin, f"/allow {STRANGER}")) == [f"Eve (id {STRANGER}): allowed."]
    assert texts(counter.person(STRANGER).chat)[-1] == EN["welcome"]
    assert texts(counter.says(counter.admin, f"/block@courier_bot   {STRANGER}")) == [f"Eve (id {STRANGER}): blocked."]
    assert texts(counter.says(counter.person(STRANGER), "/start")) == [EN["closed"]]


@pytest.mark.parametrize("command", ["allow", "block"])
def test_a_bad_id_gets_a_sentence_and_changes_nothing(counter: Counter, office: Office, command: str) -> None:
    for given in ("", "Eve", "0", "-5", "1.5", "12 13", "٣", "9" * 16, "9" * 400, "' OR 1=1"):
        assert texts(counter.says(counter.admin, f"/{command} {given}")) == [EN["usage"].format(command=command)]
    assert office.desk.users() == []


def test_an_id_of_nobody_gets_a_sentence(counter: Counter) -> None:
    assert texts(counter.says(counter.admin, "/allow 12345")) == ["Nobody with the id 12345 has asked. /users shows who has."]


def test_only_administrators_command(counter: Counter, office: Office) -> None:
    ann = counter.reader()
    office.user(STRANGER, None, name="Eve")
    for text in (f"/allow {STRANGER}", f"/block {STRANGER}", "/users", "/status"):
        assert texts(counter.says(ann, text)) == [EN["help"]]
    assert counter.forges(ann, f"a:{STRANGER}:A") == EN["outdated"]
    assert status_of(office) == "PENDING"


def test_an_administrator_who_was_blocked_can_decide_and_nothing_else(counter: Counter, office: Office) -> None:
    office.user(ADMIN, "BLOCKED", name="Root")
    assert texts(counter.says(counter.admin, "/help")) == [EN["closed"]]
    assert counter.forges(counter.admin, "b:0:1") == EN["closed"]
    assert texts(counter.says(counter.admin, "/users")) != [EN["closed"]]


def test_users_fit_into_one_message_with_those_who_wait_first(counter: Counter, office: Office) -> None:
    for number in range(60):
        office.user(4_000_000_000_000_000 + number, "ACTIVE" if number else None, name="😀" * 200 + "\n{x}")
    [answer] = counter.says(counter.person(ADMIN, "Root", "ru"), "/users")
    lines = (answer.text or "").split("\n")
    assert lines[:2] == ["Людей: 60", f"4000000000000000 · ждёт решения · {'😀' * 23}…"]
    assert 4000 < words.units(answer.text or "") <= words.TEXT
    assert lines[-1] == f"… и ещё {60 - (len(lines) - 2)}"


def test_users_are_fifty_at_most(counter: Counter, office: Office) -> None:
    for number in range(60):
        office.user(100 + number, None, name="E")
    [answer] = counter.says(counter.admin, "/users")
    assert len((answer.text or "").split("\n")) == 52
    assert (answer.text or "").endswith("\n… and 10 more")


def test_the_administrator_need_not_be_reachable_for_somebody_to_ask(counter: Counter, office: Office) -> None:
    assert not counter.admin.spoke
    assert texts(counter.says(counter.person(STRANGER), "/start")) == [EN["closed"]]
    assert office.desk.user(STRANGER)


# ---------------------------------------------------------------- help, languages, groups
def test_help_tells_administrators_more(counter: Counter) -> None:
    counter.says(counter.admin, "/start")
    assert texts(counter.says(counter.admin, "/help")) == [f"{EN['help']}\n\n{EN['help_admin']}"]
    assert texts(counter.says(counter.reader(), "/help")) == [EN["help"]]


@pytest.mark.parametrize(("language", "said"), [("ru", RU), ("uk", RU), ("en", EN), ("de", EN)])
def test_people_are_answered_in_their_language(counter: Counter, office: Office, language: str, said: dict[str, str]) -> None:
    office.yandex.put("/Library/emma.pdf", b"emma")
    ann = counter.reader(language=language)
    assert texts(counter.says(ann, "/help")) == [said["help"]]
    counter.says(ann, "/start")
    counter.presses(ann, "emma.pdf")
    assert labels(ann.chat[-1]) == [said["download"], said["back"]]
    assert counter.presses(ann, said["download"]) == said["ordered"]
    assert ann.chat[-1].text == f"📄 emma.pdf\n{said['QUEUED']}"


def test_nothing_is_said_in_a_group(counter: Counter, office: Office) -> None:
    ann, group = counter.reader(), -100
    for text in ("/start", "/help", "/users"):
        ann.says(text, group=group)
        counter.admin.says(text, group=group)
    counter.answer()
    assert office.telegram.chat(group) == []
    assert ann.chat == []
    assert [each for each in office.telegram.requests if each.method == "sendMessage"] == []


def test_a_press_in_a_group_does_nothing_and_stops_blinking(counter: Counter, office: Office) -> None:
    ann = counter.reader()
    office.telegram.place(-100)
    ann.forges("b:0:1", office.telegram.put(Message(office.telegram.number(), -100, text="forwarded")))
    counter.answer()
    assert [each.text for each in office.telegram.answered] == [None]
    assert [each.text for each in office.telegram.chat(-100)] == ["forwarded"]
    assert ann.chat == []


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



# ---------------------------------------------------------------- trouble
def test_a_handler_that_fails_is_told_to_its_user_and_logged_without_ids(counter: Counter, office: Office, caplog: pytest.LogCaptureFixture) -> None:
    ann = counter.reader(id=70_707_070, name="Annabel")
    office.write("ALTER TABLE courier_files RENAME TO courier_files_away")
    with caplog.at_level(logging.DEBUG, logger="apps.courier"):
        assert texts(counter.says(ann, "/start")) == [EN["wrong"]]
        assert counter.forges(ann, "b:1:1") == EN["wrong"]
    assert "OperationalError" in caplog.text
    assert "70707070" not in caplog.text
    assert "Annabel" not in caplog.text
    office.write("ALTER TABLE courier_files_away RENAME TO courier_files")
    assert texts(counter.says(ann, "/start")) == [f"📁 Library\n{EN['empty']}"]


def test_status_tells_how_everything_stands_and_names_nobody(counter: Counter, office: Office) -> None:
    office.yandex.put("/Library/secret diary.pdf", b"")
    ann = counter.reader(id=70_707_070, name="Annabel")
    counter.says(ann, "/start")
    counter.presses(ann, "secret diary.pdf")
    counter.presses(ann, EN["download"])
    office.run()
    [answer] = counter.says(counter.admin, "/status")
    text = answer.text or ""
    assert "FAILED: 1" in text
    assert "empty The file is empty, and Telegram takes no empty files." in text
    assert "Stuck: 0" in text
    for secret in ("70707070", "Annabel", "diary", office.telegram.token, office.yandex.token, office.yandex.refresh_token, "disk:/"):
        assert secret not in text
