"""Cards follow their delivery and respect Telegram's rate limits."""

import asyncio
from collections.abc import Iterator

import pytest

from apps.courier import card_updater
from apps.courier.errors import PermanentError
from apps.courier.tests.bot_driver import BotDriver, button_labels
from apps.courier.tests.bot_driver import driver as open_driver
from apps.courier.tests.courier_kit import READER, CourierKit
from apps.courier.tests.fake_telegram import Message
from apps.courier.texts import EN, RU

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def driver(kit: CourierKit) -> Iterator[BotDriver]:
    with open_driver(kit) as made:
        yield made


def order_file(
    kit: CourierKit, *, user_id: int = READER, name: str = "emma.pdf", language: str = "en"
) -> tuple[str, Message]:
    """Order a file. Return its delivery and its card."""
    kit.add_user(user_id, language=language)
    job_id = kit.order(user_id, kit.add_file(name))
    card = kit.telegram.add_message(Message(kit.telegram.next_number(), user_id, text="Card"))
    kit.service.attach_card(job_id, card.id)
    return job_id, card


def edits(kit: CourierKit) -> int:
    return len(kit.telegram.requests_for("editMessageText"))


# ---------------------------------------------------------------- updates
def test_card_follows_its_delivery_and_is_closed_at_the_end(driver: BotDriver, kit: CourierKit) -> None:
    _, card = order_file(kit, language="ru")
    driver.update_cards()
    assert (card.text, button_labels(card)) == (f"📄 emma.pdf\n{RU['QUEUED']}", [RU["cancel"]])
    kit.run()
    driver.time += 3
    driver.update_cards()
    assert (card.text, button_labels(card)) == (f"📄 emma.pdf\n{RU['DELIVERED']}", [RU["back"]])
    assert kit.service.open_cards() == []


def test_failed_delivery_shows_the_reason_and_a_download_button(driver: BotDriver, kit: CourierKit) -> None:
    job_id, card = order_file(kit)
    kit.yandex.remove("/Library/emma.pdf")
    kit.run()
    assert kit.state(job_id) == "FAILED"
    driver.update_cards()
    assert (card.text, button_labels(card)) == (
        f"📄 emma.pdf\n❌ Not sent. {EN['why_not_found']}",
        [EN["download"], EN["back"]],
    )


def test_delivery_waiting_for_a_retry_shows_the_reason(driver: BotDriver, kit: CourierKit) -> None:
    _, card = order_file(kit)
    kit.yandex.fail("resources", 503)
    kit.run()
    driver.update_cards()
    assert (card.text or "").startswith("📄 emma.pdf\n⏳ Failed attempts: 1 of 3.")
    assert button_labels(card) == [EN["cancel"]]


def test_expired_delivery_shows_that_it_expired(driver: BotDriver, kit: CourierKit) -> None:
    job_id, card = order_file(kit)
    kit.run_after(kit.settings.ttl + 1)
    assert kit.state(job_id) == "EXPIRED"
    driver.update_cards()
    assert card.text == f"📄 emma.pdf\n{EN['EXPIRED']}"


def test_unchanged_card_is_not_edited(driver: BotDriver, kit: CourierKit) -> None:
    order_file(kit)
    for _ in range(3):
        driver.update_cards()
        driver.time += 10
    assert edits(kit) == 1


def test_card_is_edited_at_most_every_three_seconds(driver: BotDriver, kit: CourierKit) -> None:
    job_id, card = order_file(kit)
    driver.update_cards()
    kit.service.cancel(READER, job_id)
    driver.time += 2.9
    driver.update_cards()
    assert edits(kit) == 1
    driver.time += 0.1
    driver.update_cards()
    assert card.text == f"📄 emma.pdf\n{EN['CANCELLED']}"


def test_rate_limit_pauses_all_cards(driver: BotDriver, kit: CourierKit) -> None:
    _, one = order_file(kit)
    _, other = order_file(kit, user_id=8, name="persuasion.pdf")
    kit.telegram.fail("editMessageText", 429, retry_after=30)
    driver.update_cards()
    driver.time += 29
    driver.update_cards()
    assert edits(kit) == 1
    driver.time += 1
    driver.update_cards()
    assert (one.text, other.text) == (f"📄 emma.pdf\n{EN['QUEUED']}", f"📄 persuasion.pdf\n{EN['QUEUED']}")


@pytest.mark.parametrize("how", ["deleted", "blocked"])
def test_card_that_cannot_be_edited_is_closed(driver: BotDriver, kit: CourierKit, how: str) -> None:
    _, card = order_file(kit)
    if how == "deleted":
        kit.telegram.messages[READER].remove(card)
    else:
        driver.person().block_bot()
    driver.update_cards()
    assert kit.service.open_cards() == []


def test_temporary_error_leaves_the_card_open(driver: BotDriver, kit: CourierKit) -> None:
    _, card = order_file(kit)
    kit.telegram.fail("editMessageText", 502)
    driver.update_cards()
    assert card.text == "Card"
    driver.time += 3
    driver.update_cards()
    assert card.text == f"📄 emma.pdf\n{EN['QUEUED']}"


def test_rejected_bot_token_closes_no_card(driver: BotDriver, kit: CourierKit) -> None:
    order_file(kit)
    kit.telegram.fail("editMessageText", 401)
    with pytest.raises(PermanentError):
        driver.update_cards()
    assert len(kit.service.open_cards()) == 1


def test_crash_after_an_edit_costs_one_more_edit(
    driver: BotDriver, kit: CourierKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, card = order_file(kit)
    kit.service.cancel(READER, job_id)

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as broken:
        broken.setattr(kit.service, "mark_shown", crash)
        with pytest.raises(RuntimeError):
            driver.update_cards()
    assert card.text == f"📄 emma.pdf\n{EN['CANCELLED']}"
    driver.time += 3
    driver.update_cards()
    assert kit.service.open_cards() == []


def test_failed_update_is_retried(
    driver: BotDriver, kit: CourierKit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    order_file(kit)
    monkeypatch.setattr(card_updater, "INTERVAL", 0.01)
    looks, open_cards = [0], kit.service.open_cards
    stop = asyncio.Event()

    def fails_once() -> object:
        looks[0] += 1
        if looks[0] == 1:
            raise RuntimeError("secret")
        if looks[0] == 3:
            driver.runner.get_loop().call_soon_threadsafe(stop.set)
        return open_cards()

    monkeypatch.setattr(kit.service, "open_cards", fails_once)
    driver.runner.run(asyncio.wait_for(driver.cards.run(stop), 20))
    assert edits(kit) == 1
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
