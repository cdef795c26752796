"""Users and administrators at the bot: the real aiogram against a fake Telegram on loopback."""

import logging
from collections.abc import Iterator

import pytest

from apps.courier import bot, formatting
from apps.courier.tests.bot_driver import BotDriver, button_labels
from apps.courier.tests.bot_driver import driver as open_driver
from apps.courier.tests.courier_kit import ADMIN, STRANGER, CourierKit
from apps.courier.tests.fake_telegram import Message
from apps.courier.texts import EN, RU

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def driver(kit: CourierKit) -> Iterator[BotDriver]:
    with open_driver(kit) as made:
        yield made


def status_of(kit: CourierKit) -> str | None:
    found = kit.service.user(STRANGER)
    return found.status if found else None


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


def ask_for_admission(driver: BotDriver, name: str = "Eve") -> int:
    """Send /start as a stranger. Return how many requests the administrator received."""
    return sum(
        f"{name} (ID " in (message.text or "") and "requests access" in (message.text or "")
        for message in driver.admin.chat
    )


# ---------------------------------------------------------------- access
def test_start_registers_a_stranger_and_asks_the_administrator(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    stranger = driver.person(STRANGER, "Eve", "en")
    assert texts(driver.send_text(stranger, "/start")) == [EN["pending"]]
    found = kit.service.user(STRANGER)
    assert found
    assert (found.status, found.name) == ("PENDING", "Eve")
    asked = driver.admin.chat[-1]
    assert asked.text == f"Eve (ID {STRANGER}) requests access."
    assert button_labels(asked) == [EN["allow"], EN["block"]]


@pytest.mark.parametrize("status", [None, "PENDING", "BLOCKED"])
def test_users_without_access_always_get_the_same_answer(
    driver: BotDriver, kit: CourierKit, status: str | None
) -> None:
    kit.add_file("secret.pdf")
    eve = driver.person(STRANGER, "Eve")
    if status:
        kit.add_user(STRANGER, None if status == "PENDING" else "BLOCKED", name="Eve")
    for text in ("hello", "/help", "/users", "/status", "/allow 99", "/block 7", "/nonsense", "secret.pdf"):
        assert texts(driver.send_text(eve, text)) == [EN["closed"]]
    for data in ("b:0:1", "b:1:1", "f:1", f"a:{STRANGER}:A", "c:0190a1b2-0000-7000-8000-000000000000", "nonsense"):
        assert driver.press_forged(eve, data) == EN["closed"]
    assert texts(driver.send_text(eve, "/start"))[-1] == EN["closed" if status == "BLOCKED" else "pending"]
    assert status_of(kit) == (status or "PENDING")


def test_only_start_registers_a_user(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.person(STRANGER), "/help")
    driver.press_forged(driver.person(STRANGER), "b:0:1")
    assert kit.service.users() == []


def test_allow_button_gives_access_and_notifies_the_user(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    eve = driver.person(STRANGER, "Eve", "ru")
    driver.send_text(eve, "/start")
    assert driver.press(driver.admin, EN["allow"]) is None
    assert driver.admin.chat[-1].text == f"Eve (ID {STRANGER}): allowed."
    assert driver.admin.chat[-1].buttons == []
    assert eve.chat[-1].text == RU["welcome"]
    assert driver.send_text(eve, "/start")[0].text == "📁 Библиотека\nЗдесь пусто."


def test_block_button_blocks_without_notifying_the_user(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    eve = driver.person(STRANGER, "Eve")
    driver.send_text(eve, "/start")
    driver.press(driver.admin, EN["block"])
    assert driver.admin.chat[-1].text == f"Eve (ID {STRANGER}): blocked."
    assert texts(eve.chat) == [EN["pending"]]


def test_old_button_does_not_undo_a_later_command(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    driver.send_text(driver.person(STRANGER, "Eve"), "/start")
    asked = driver.admin.chat[-1]
    asked.date -= 60
    driver.send_text(driver.admin, f"/block {STRANGER}")
    driver.press(driver.admin, EN["allow"], asked)
    assert (
        asked.text == f"A later decision applies: blocked. To change it, send /allow {STRANGER} or /block {STRANGER}."
    )
    assert status_of(kit) == "BLOCKED"


def test_commands_allow_and_block_users(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.person(STRANGER, "Eve"), "/start")
    assert texts(driver.send_text(driver.admin, f"/allow {STRANGER}")) == [f"Eve (ID {STRANGER}): allowed."]
    assert texts(driver.person(STRANGER).chat)[-1] == EN["welcome"]
    assert texts(driver.send_text(driver.admin, f"/block@courier_bot   {STRANGER}")) == [
        f"Eve (ID {STRANGER}): blocked."
    ]
    assert texts(driver.send_text(driver.person(STRANGER), "/start")) == [EN["closed"]]


@pytest.mark.parametrize("command", ["allow", "block"])
def test_invalid_id_is_explained_and_changes_nothing(driver: BotDriver, kit: CourierKit, command: str) -> None:
    for given in ("", "Eve", "0", "-5", "1.5", "12 13", "٣", "9" * 16, "9" * 400, "' OR 1=1"):
        assert texts(driver.send_text(driver.admin, f"/{command} {given}")) == [EN["usage"].format(command=command)]
    assert kit.service.users() == []


def test_unknown_id_is_explained(driver: BotDriver) -> None:
    assert texts(driver.send_text(driver.admin, "/allow 12345")) == [
        "No one with the ID 12345 has requested access. Send /users to see who has."
    ]


def test_only_administrators_can_use_admin_commands(driver: BotDriver, kit: CourierKit) -> None:
    ann = driver.reader()
    kit.add_user(STRANGER, None, name="Eve")
    for text in (f"/allow {STRANGER}", f"/block {STRANGER}", "/users", "/status"):
        assert texts(driver.send_text(ann, text)) == [EN["help"]]
    assert driver.press_forged(ann, f"a:{STRANGER}:A") == EN["outdated"]
    assert status_of(kit) == "PENDING"


def test_blocked_administrator_can_only_decide(driver: BotDriver, kit: CourierKit) -> None:
    kit.add_user(ADMIN, "BLOCKED", name="Root")
    assert texts(driver.send_text(driver.admin, "/help")) == [EN["closed"]]
    assert driver.press_forged(driver.admin, "b:0:1") == EN["closed"]
    assert texts(driver.send_text(driver.admin, "/users")) != [EN["closed"]]


def test_administrator_cannot_be_blocked(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    assert texts(driver.send_text(driver.admin, f"/block {ADMIN}")) == [EN["is_admin"]]
    assert getattr(kit.service.user(ADMIN), "status", None) == "ACTIVE"


def test_start_tells_an_administrator_about_earlier_requests(driver: BotDriver, kit: CourierKit) -> None:
    """Requests from before the administrator's first message could not be announced."""
    driver.send_text(driver.person(STRANGER), "/start")
    assert texts(driver.send_text(driver.admin, "/start"))[0] == formatting.render("en", "waiting_people", count=1)


def test_users_list_fits_one_message_with_pending_users_first(driver: BotDriver, kit: CourierKit) -> None:
    for number in range(60):
        kit.add_user(4_000_000_000_000_000 + number, "ACTIVE" if number else None, name="😀" * 200 + "\n{x}")
    [answer] = driver.send_text(driver.person(ADMIN, "Root", "ru"), "/users")
    lines = (answer.text or "").split("\n")
    assert lines[:2] == ["Людей: 60", f"4000000000000000 · ждёт решения · {'😀' * 23}…"]
    assert 4000 < formatting.telegram_length(answer.text or "") <= formatting.MAX_TEXT
    assert lines[-1] == f"… и ещё {60 - (len(lines) - 2)}"


def test_users_list_has_at_most_fifty_lines(driver: BotDriver, kit: CourierKit) -> None:
    for number in range(60):
        kit.add_user(100 + number, None, name="E")
    [answer] = driver.send_text(driver.admin, "/users")
    assert len((answer.text or "").split("\n")) == 52
    assert (answer.text or "").endswith("\n… and 10 more")


def test_request_is_stored_while_the_administrator_is_unreachable(driver: BotDriver, kit: CourierKit) -> None:
    assert not driver.admin.spoke
    assert texts(driver.send_text(driver.person(STRANGER), "/start")) == [EN["pending"]]
    assert kit.service.user(STRANGER)


def test_unreachable_administrator_is_asked_at_the_next_start(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    eve = driver.person(STRANGER, "Eve")
    kit.telegram.fail("sendMessage", 500)
    eve.send_text("/start")
    kit.telegram.pending[-1]["message"]["date"] -= 60  # type: ignore[index]
    eve.send_text("/start")
    driver.handle_updates()
    assert texts(eve.chat) == [EN["pending"]] * 2
    assert ask_for_admission(driver) == 1


def test_administrators_are_asked_once_in_ten_minutes_per_person(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    eve = driver.person(STRANGER, "Eve")
    for seconds in (0, 1, 599, 600, 700, 1200):
        eve.send_text("/start")
        kit.telegram.pending[-1]["message"]["date"] += seconds  # type: ignore[index]
    driver.person(55, "Mallory").send_text("/start")
    driver.handle_updates()
    assert ask_for_admission(driver, "Eve") == 3
    assert ask_for_admission(driver, "Mallory") == 1


def test_old_announcements_are_forgotten(driver: BotDriver, kit: CourierKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bot, "MAX_ANNOUNCEMENTS", 2)
    driver.send_text(driver.admin, "/start")
    made = bot.BotHandlers(kit.service, kit.catalogue, kit.courier.clients, kit.settings)
    users = [kit.add_user(id, None, name=str(id)) for id in (91, 92, 93, 91)]
    at = kit.update_time().at

    async def announce() -> None:
        for user in users:
            await made.announce(user, at)

    driver.runner.run(announce())
    assert [ask_for_admission(driver, name) for name in ("91", "92", "93")] == [2, 1, 1]


def test_blocked_user_is_not_announced_again(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    kit.add_user(STRANGER, "BLOCKED", name="Eve")
    driver.send_text(driver.person(STRANGER, "Eve"), "/start")
    assert ask_for_admission(driver) == 0


# ---------------------------------------------------------------- help, languages, groups
def test_help_shows_administrators_more(driver: BotDriver) -> None:
    driver.send_text(driver.admin, "/start")
    assert texts(driver.send_text(driver.admin, "/help")) == [f"{EN['help']}\n\n{EN['help_admin']}"]
    assert texts(driver.send_text(driver.reader(), "/help")) == [EN["help"]]


@pytest.mark.parametrize(("language", "said"), [("ru", RU), ("ru-RU", RU), ("uk", EN), ("en", EN), ("de", EN)])
def test_users_are_answered_in_their_language(
    driver: BotDriver, kit: CourierKit, language: str, said: dict[str, str]
) -> None:
    kit.yandex.put("/Library/emma.pdf", b"emma")
    ann = driver.reader(language=language)
    assert texts(driver.send_text(ann, "/help")) == [said["help"]]
    driver.send_text(ann, "/start")
    driver.press(ann, "emma.pdf")
    assert button_labels(ann.chat[-1]) == [said["download"], said["back"]]
    assert driver.press(ann, said["download"]) == said["ordered"]
    assert ann.chat[-1].text == f"📄 emma.pdf\n{said['QUEUED']}"


def test_bot_is_silent_in_groups(driver: BotDriver, kit: CourierKit) -> None:
    ann, group = driver.reader(), -100
    for text in ("/start", "/help", "/users"):
        ann.send_text(text, group=group)
        driver.admin.send_text(text, group=group)
    driver.handle_updates()
    assert kit.telegram.chat(group) == []
    assert ann.chat == []
    assert [each for each in kit.telegram.requests if each.method == "sendMessage"] == []


def test_button_in_a_group_is_answered_without_effect(driver: BotDriver, kit: CourierKit) -> None:
    ann = driver.reader()
    kit.telegram.chat_json(-100)
    ann.press_forged("b:0:1", kit.telegram.add_message(Message(kit.telegram.next_number(), -100, text="forwarded")))
    driver.handle_updates()
    assert [each.text for each in kit.telegram.answered] == [None]
    assert [each.text for each in kit.telegram.chat(-100)] == ["forwarded"]
    assert ann.chat == []


# ---------------------------------------------------------------- errors
def test_failing_handler_tells_the_user_and_logs_no_ids(
    driver: BotDriver, kit: CourierKit, caplog: pytest.LogCaptureFixture
) -> None:
    ann = driver.reader(id=70_707_070, name="Annabel")
    kit.write("ALTER TABLE courier_files RENAME TO courier_files_away")
    with caplog.at_level(logging.DEBUG, logger="apps.courier"):
        assert texts(driver.send_text(ann, "/start")) == [EN["wrong"]]
        assert driver.press_forged(ann, "b:1:1") == EN["wrong"]
    assert "OperationalError" in caplog.text
    assert "70707070" not in caplog.text
    assert "Annabel" not in caplog.text
    kit.write("ALTER TABLE courier_files_away RENAME TO courier_files")
    assert texts(driver.send_text(ann, "/start")) == [f"📁 Library\n{EN['empty']}"]


def test_status_shows_the_state_without_names(driver: BotDriver, kit: CourierKit) -> None:
    kit.yandex.put("/Library/secret diary.pdf", b"")
    ann = driver.reader(id=70_707_070, name="Annabel")
    driver.send_text(ann, "/start")
    driver.press(ann, "secret diary.pdf")
    driver.press(ann, EN["download"])
    kit.run()
    [answer] = driver.send_text(driver.admin, "/status")
    text = answer.text or ""
    assert "FAILED: 1" in text
    assert "empty The file is empty, and Telegram does not accept empty files." in text
    assert "Stuck: 0" in text
    for secret in (
        "70707070",
        "Annabel",
        "diary",
        kit.telegram.token,
        kit.yandex.token,
        kit.yandex.refresh_token,
        "disk:/",
    ):
        assert secret not in text
