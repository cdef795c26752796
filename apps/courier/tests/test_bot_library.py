"""The library and its deliveries at the bot: the real aiogram against a fake Telegram on loopback."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from apps.courier import bot
from apps.courier.service import Service
from apps.courier.service_models import DeliveryView
from apps.courier.tests.bot_driver import BotDriver, button_labels
from apps.courier.tests.bot_driver import driver as open_driver
from apps.courier.tests.courier_kit import READER, CourierKit
from apps.courier.tests.fake_telegram import Message
from apps.courier.texts import EN

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def driver(kit: CourierKit) -> Iterator[BotDriver]:
    with open_driver(kit) as made:
        yield made


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


# ---------------------------------------------------------------- browsing
def test_library_is_browsed_in_one_message(driver: BotDriver, kit: CourierKit) -> None:
    for number in range(20):
        kit.yandex.put(f"/Library/book {number:02}.pdf", b"x" * number)
    kit.yandex.put("/Library/Zoology/ants.pdf", b"x" * 2048)
    ann = driver.reader()
    [message] = driver.send_text(ann, "/start")
    assert message.text == "📁 Library"
    assert button_labels(message) == ["📁 Zoology", *(f"📄 book {n:02}.pdf" for n in range(7)), "1/3", "▶"]
    driver.press(ann, "▶")
    assert button_labels(message) == [*(f"📄 book {n:02}.pdf" for n in range(7, 15)), "◀", "2/3", "▶"]
    driver.press(ann, "▶")
    assert button_labels(message) == [*(f"📄 book {n:02}.pdf" for n in range(15, 20)), "◀", "3/3"]
    driver.press(ann, "◀")
    driver.press(ann, "◀")
    driver.press(ann, "Zoology")
    assert (message.text, button_labels(message)) == ("📁 Zoology", ["📄 ants.pdf", EN["up"]])
    driver.press(ann, "ants.pdf")
    assert (message.text, button_labels(message)) == ("📄 ants.pdf\nSize: 2 KB", [EN["download"], EN["back"]])
    driver.press(ann, EN["back"])
    assert message.text == "📁 Zoology"
    driver.press(ann, EN["up"])
    assert message.text == "📁 Library"
    assert len(ann.chat) == 1


def test_unusual_names_are_shown_and_truncated(driver: BotDriver, kit: CourierKit) -> None:
    names = ["<b>bold _x_ *y* `z`", "a" * 200, "😀" * 60, "line\nbreak \u202egpj.exe", "{name} %s", "[link](x)"]
    for name in names:
        kit.yandex.put(f"/Library/{name}.pdf", b"x")
    ann = driver.reader()
    [message] = driver.send_text(ann, "/start")
    assert "📄 <b>bold _x_ *y* `z`.pdf" in button_labels(message)
    assert "📄 line break gpj.exe.pdf" in button_labels(message)
    assert all(len(label.encode("utf-16-le")) <= 96 for label in button_labels(message))
    for label in button_labels(message):
        driver.press(ann, label)
        assert (message.text or "").startswith("📄 ")
        driver.press(ann, EN["back"])


def test_missing_entries_are_reported_as_gone(driver: BotDriver, kit: CourierKit) -> None:
    kit.yandex.put("/Library/Zoology/ants.pdf", b"x")
    ann = driver.reader()
    driver.send_text(ann, "/start")
    driver.press(ann, "Zoology")
    file = ann.chat[-1].buttons[0]
    kit.yandex.remove("/Library/Zoology")
    kit.clock.advance(61)
    assert driver.press(ann, EN["up"]) is None
    assert driver.press_forged(ann, file[1]) == EN["gone"]


def test_ids_outside_of_the_library_are_not_found(driver: BotDriver, kit: CourierKit) -> None:
    private = (
        "INSERT INTO courier_files (id, path, path_hash, name, is_folder) "
        "VALUES (:id, :path, :path, 'Private', :folder)"
    )
    kit.write(private, id=5, path="disk:/Private", folder=True)
    kit.write(private, id=1, path="disk:/Private/diary.txt", folder=False)
    ann = driver.reader()
    [message] = driver.send_text(ann, "/help")
    for data in ("b:2147483647:1", "b:5:999999", "b:1:1", "f:2147483647", "f:1", "f:5"):
        assert driver.press_forged(ann, data) == EN["gone"]
    assert ann.chat == [message]
    assert message.text == EN["help"]


def test_unreachable_disk_is_reported(driver: BotDriver, kit: CourierKit) -> None:
    kit.yandex.put("/Library/emma.pdf", b"x")
    ann = driver.reader()
    kit.yandex.fail("resources", 503)
    assert texts(driver.send_text(ann, "/start")) == [EN["disk_unreachable"]]
    [message] = driver.send_text(ann, "/start")
    kit.clock.advance(61)
    kit.yandex.fail("resources", 503)
    driver.press(ann, "emma.pdf")
    driver.press(ann, EN["back"])
    assert message.text == f"📁 Library\n{EN['stale']}"


def test_slow_listing_does_not_block_other_users(
    driver: BotDriver, kit: CourierKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.yandex.put("/Library/emma.pdf", b"x")
    ann, bob = driver.reader(), driver.reader(8, "Bob")
    listing = kit.yandex.gate("resources")
    with monkeypatch.context() as impatient:
        impatient.setattr(bot, "LISTING_TIMEOUT", 0.2)
        ann.send_text("/start")
        driver.handle_updates()
        assert texts(driver.send_text(bob, "/help")) == [EN["help"]]
    assert texts(ann.chat) == [EN["looking"]]
    listing.open()
    assert button_labels(driver.send_text(ann, "/start")[0]) == ["📄 emma.pdf"]
    assert len(kit.yandex.requests_for("resources")) == 1


def test_rejected_token_is_reported_to_administrators_only(driver: BotDriver, kit: CourierKit) -> None:
    driver.send_text(driver.admin, "/start")
    kit.clock.advance(61)
    kit.yandex.revoke(refresh=True)
    assert texts(driver.send_text(driver.reader(), "/start")) == [EN["disk_refused"]]
    kit.run()
    assert driver.admin.chat[-1].text == EN["alert_token"]


# ---------------------------------------------------------------- ordering
def order_file(driver: BotDriver, kit: CourierKit) -> Message:
    kit.yandex.put("/Library/emma.pdf", b"It is a truth universally acknowledged")
    ann = driver.reader()
    driver.send_text(ann, "/start")
    driver.press(ann, "emma.pdf")
    return ann.chat[-1]


def test_download_turns_the_message_into_a_card(driver: BotDriver, kit: CourierKit) -> None:
    message = order_file(driver, kit)
    assert driver.press(driver.person(), EN["download"]) == EN["ordered"]
    assert (message.text, button_labels(message)) == (f"📄 emma.pdf\n{EN['QUEUED']}", [EN["cancel"]])
    assert [card.card_id for card in kit.service.open_cards()] == [message.id]
    kit.run()
    driver.update_cards()
    assert (message.text, button_labels(message)) == (f"📄 emma.pdf\n{EN['DELIVERED']}", [EN["back"]])
    assert [each.document.name for each in driver.person().chat if each.document] == ["emma.pdf"]
    assert driver.press(driver.person(), EN["back"], message) is None
    assert message.text == "📁 Library"


def test_second_click_shows_the_first_job(driver: BotDriver, kit: CourierKit) -> None:
    message = order_file(driver, kit)
    button = message.buttons[0][1]
    assert driver.press_forged(driver.person(), button) == EN["ordered"]
    assert driver.press_forged(driver.person(), button) == EN["already"]
    assert driver.jobs() == ["QUEUED"]
    kit.run()
    assert driver.press_forged(driver.person(), button) == EN["already"]
    assert driver.jobs() == ["DELIVERED"]


def test_each_display_of_a_file_is_a_new_click(driver: BotDriver, kit: CourierKit) -> None:
    message = order_file(driver, kit)
    first = message.buttons[0][1]
    driver.press(driver.person(), EN["back"])
    driver.press(driver.person(), "emma.pdf")
    assert message.buttons[0][1] != first


def test_file_in_delivery_shows_its_card(driver: BotDriver, kit: CourierKit) -> None:
    order_file(driver, kit)
    ann = driver.person()
    driver.press(ann, EN["download"])
    [message] = driver.send_text(ann, "/start")
    assert driver.press(ann, "emma.pdf") == EN["already"]
    assert message.text == f"📄 emma.pdf\n{EN['QUEUED']}"
    assert [card.card_id for card in kit.service.open_cards()] == [message.id]


def test_queued_delivery_can_be_cancelled(driver: BotDriver, kit: CourierKit) -> None:
    message = order_file(driver, kit)
    driver.press(driver.person(), EN["download"])
    assert driver.press(driver.person(), EN["cancel"]) == EN["cancelled"]
    assert (message.text, button_labels(message)) == (f"📄 emma.pdf\n{EN['CANCELLED']}", [EN["download"], EN["back"]])
    assert driver.jobs() == ["CANCELLED"]
    assert driver.press(driver.person(), EN["download"]) == EN["ordered"]
    assert sorted(driver.jobs()) == ["CANCELLED", "QUEUED"]


def test_delivered_file_cannot_be_cancelled(driver: BotDriver, kit: CourierKit) -> None:
    message = order_file(driver, kit)
    driver.press(driver.person(), EN["download"])
    cancel = message.buttons[0][1]
    kit.run()
    assert driver.press_forged(driver.person(), cancel) == EN["already_ended"]
    assert driver.jobs() == ["DELIVERED"]


def test_running_delivery_is_reported_as_being_sent(
    driver: BotDriver, kit: CourierKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    order_file(driver, kit)
    driver.press(driver.person(), EN["download"])
    [card] = kit.service.open_cards()
    monkeypatch.setattr(kit.service, "cancel", lambda *_: replace(card.delivery, state="STREAMING"))
    assert driver.press(driver.person(), EN["cancel"]) == EN["on_its_way"]


def run_between(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Run a function after a cancel press has read the delivery and before it cancels."""
    look, todo = Service.get_delivery, [do]

    def looks(service: Service, user_id: int, job_id: str) -> DeliveryView | None:
        found = look(service, user_id, job_id)
        if todo:
            todo.pop()()
        return found

    monkeypatch.setattr(Service, "get_delivery", looks)


def test_delivery_that_ends_during_a_cancel_has_ended(
    driver: BotDriver, kit: CourierKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    order_file(driver, kit)
    driver.press(driver.person(), EN["download"])
    run_between(monkeypatch, kit.run)
    assert driver.press(driver.person(), EN["cancel"]) == EN["already_ended"]
    assert driver.jobs() == ["DELIVERED"]


def test_delivery_claimed_during_a_cancel_is_stopping(
    driver: BotDriver, kit: CourierKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = order_file(driver, kit)
    driver.press(driver.person(), EN["download"])
    content, worker = kit.yandex.gate("content", after=10), threading.Thread(target=kit.run)

    def claimed() -> None:
        worker.start()
        assert content.arrived.wait(20)

    run_between(monkeypatch, claimed)
    try:
        assert driver.press(driver.person(), EN["cancel"]) == EN["stopping"]
        assert (message.text or "").endswith(f"\n{EN['stopping']}")
        kit.worker.heartbeat()
    finally:
        content.open()
        worker.join(20)
    assert driver.jobs() == ["CANCELLED"]
    driver.update_cards()
    assert message.text == f"📄 emma.pdf\n{EN['CANCELLED']}"


def test_missing_file_cannot_be_ordered(driver: BotDriver, kit: CourierKit) -> None:
    order_file(driver, kit)
    kit.write("UPDATE courier_files SET gone = true WHERE name = 'emma.pdf'")
    assert driver.press(driver.person(), EN["download"]) == EN["gone"]
    assert driver.jobs() == []


def test_blocked_user_cannot_order(driver: BotDriver, kit: CourierKit) -> None:
    order_file(driver, kit)
    driver.send_text(driver.admin, f"/block {READER}")
    assert driver.press(driver.person(), EN["download"]) == EN["closed"]
    assert driver.jobs() == []


def test_deleted_message_is_replaced_by_a_new_one(driver: BotDriver, kit: CourierKit) -> None:
    message = order_file(driver, kit)
    kit.telegram.messages[READER].remove(message)
    driver.person().press_forged(message.buttons[0][1], message)
    driver.handle_updates()
    [card] = driver.person().chat
    assert card.text == f"📄 emma.pdf\n{EN['QUEUED']}"
    assert [each.card_id for each in kit.service.open_cards()] == [card.id]


def test_order_is_stored_even_if_its_card_cannot_be_shown(driver: BotDriver, kit: CourierKit) -> None:
    message = order_file(driver, kit)
    kit.telegram.fail("editMessageText", 429, retry_after=1)
    assert driver.press(driver.person(), EN["download"]) == EN["ordered"]
    driver.update_cards()
    assert message.text == f"📄 emma.pdf\n{EN['QUEUED']}"
