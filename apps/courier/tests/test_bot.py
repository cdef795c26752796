"""Promises about what the bot answers, by the real aiogram against a Telegram on loopback."""

import logging
from collections.abc import Iterator

import pytest

from apps.courier import bot, words
from apps.courier.tests.bot_api import Message
from apps.courier.tests.counter import Counter, labels
from apps.courier.tests.counter import counter as open_counter
from apps.courier.tests.kit import ADMIN, STRANGER, Office
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


def asks(counter: Counter, name: str = "Eve") -> int:
    """How often the administrator was asked about somebody."""
    return sum(f"{name} (id " in (message.text or "") and "asks" in (message.text or "") for message in counter.admin.chat)


# ---------------------------------------------------------------- admission
def test_a_stranger_who_starts_is_registered_and_the_administrator_is_asked(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    stranger = counter.person(STRANGER, "Eve", "en")
    assert texts(counter.says(stranger, "/start")) == [EN["pending"]]
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
    assert texts(counter.says(eve, "/start"))[-1] == EN["closed" if status == "BLOCKED" else "pending"]
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
    assert texts(eve.chat) == [EN["pending"]]


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


def test_nobody_claims_to_have_kept_an_administrator_out(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    assert texts(counter.says(counter.admin, f"/block {ADMIN}")) == [EN["is_admin"]]
    assert getattr(office.desk.user(ADMIN), "status", None) == "ACTIVE"


def test_an_administrator_who_starts_hears_of_those_who_asked_before(counter: Counter, office: Office) -> None:
    """They were announced to nobody: a bot may not write to whoever has not written to it."""
    counter.says(counter.person(STRANGER), "/start")
    assert texts(counter.says(counter.admin, "/start"))[0] == words.say("en", "waiting_people", count=1)


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
    assert texts(counter.says(counter.person(STRANGER), "/start")) == [EN["pending"]]
    assert office.desk.user(STRANGER)


def test_an_administrator_who_could_not_be_asked_is_asked_at_the_next_start(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    eve = counter.person(STRANGER, "Eve")
    office.telegram.fail("sendMessage", 500)
    eve.says("/start")
    office.telegram.pending[-1]["message"]["date"] -= 60  # type: ignore[index]
    eve.says("/start")
    counter.answer()
    assert texts(eve.chat) == [EN["pending"]] * 2
    assert asks(counter) == 1


def test_administrators_are_asked_once_in_ten_minutes_for_each_person(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    eve = counter.person(STRANGER, "Eve")
    for seconds in (0, 1, 599, 600, 700, 1200):
        eve.says("/start")
        office.telegram.pending[-1]["message"]["date"] += seconds  # type: ignore[index]
    counter.person(55, "Mallory").says("/start")
    counter.answer()
    assert asks(counter, "Eve") == 3
    assert asks(counter, "Mallory") == 1


def test_who_was_asked_about_many_people_is_not_remembered_for_ever(counter: Counter, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bot, "REMEMBERED", 2)
    counter.says(counter.admin, "/start")
    made = bot.Reception(office.desk, office.catalogue, office.courier.outside, office.settings)
    users = [office.user(id, None, name=str(id)) for id in (91, 92, 93, 91)]
    at = office.moment().at

    async def announce() -> None:
        for user in users:
            await made.announce(user, at)

    counter.runner.run(announce())
    assert [asks(counter, name) for name in ("91", "92", "93")] == [2, 1, 1]


def test_whoever_was_kept_out_is_not_announced_again(counter: Counter, office: Office) -> None:
    counter.says(counter.admin, "/start")
    office.user(STRANGER, "BLOCKED", name="Eve")
    counter.says(counter.person(STRANGER, "Eve"), "/start")
    assert asks(counter) == 0


# ---------------------------------------------------------------- help, languages, groups
def test_help_tells_administrators_more(counter: Counter) -> None:
    counter.says(counter.admin, "/start")
    assert texts(counter.says(counter.admin, "/help")) == [f"{EN['help']}\n\n{EN['help_admin']}"]
    assert texts(counter.says(counter.reader(), "/help")) == [EN["help"]]


@pytest.mark.parametrize(("language", "said"), [("ru", RU), ("ru-RU", RU), ("uk", EN), ("en", EN), ("de", EN)])
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
