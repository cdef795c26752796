"""Promises about cards: they follow their delivery, and leave Telegram in peace."""

import asyncio
from collections.abc import Iterator

import pytest

from apps.courier import cards
from apps.courier.errors import Refusal
from apps.courier.tests.bot_api import Message
from apps.courier.tests.counter import Counter, labels
from apps.courier.tests.counter import counter as open_counter
from apps.courier.tests.kit import READER, Office
from apps.courier.words import EN, RU

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def counter(office: Office) -> Iterator[Counter]:
    with open_counter(office) as made:
        yield made


def ordered(office: Office, *, user_id: int = READER, name: str = "emma.pdf", language: str = "en") -> tuple[str, Message]:
    """A delivery that waits, and its card."""
    office.user(user_id, language=language)
    job_id = office.order(user_id, office.file(name))
    card = office.telegram.put(Message(office.telegram.number(), user_id, text="Card"))
    office.desk.card(job_id, card.id)
    return job_id, card


def edits(office: Office) -> int:
    return len(office.telegram.asked("editMessageText"))


# ---------------------------------------------------------------- following
def test_a_card_follows_its_delivery_to_the_end_and_is_closed(counter: Counter, office: Office) -> None:
    _, card = ordered(office, language="ru")
    counter.look()
    assert (card.text, labels(card)) == (f"📄 emma.pdf\n{RU['QUEUED']}", [RU["cancel"]])
    office.run()
    counter.time += 3
    counter.look()
    assert (card.text, labels(card)) == (f"📄 emma.pdf\n{RU['DELIVERED']}", [RU["back"]])
    assert office.desk.open_cards() == []


def test_a_failed_delivery_says_why_and_offers_another_try(counter: Counter, office: Office) -> None:
    job_id, card = ordered(office)
    office.yandex.remove("/Library/emma.pdf")
    office.run()
    assert office.state(job_id) == "FAILED"
    counter.look()
    assert (card.text, labels(card)) == (f"📄 emma.pdf\n❌ It could not be sent. {EN['why_not_found']}", [EN["download"], EN["back"]])


def test_a_delivery_that_waits_for_its_next_try_says_so(counter: Counter, office: Office) -> None:
    _, card = ordered(office)
    office.yandex.fail("resources", 503)
    office.run()
    counter.look()
    assert (card.text or "").startswith("📄 emma.pdf\n⏳ Tries that did not work out: 1 of 3.")
    assert labels(card) == [EN["cancel"]]


def test_an_expired_delivery_says_so(counter: Counter, office: Office) -> None:
    job_id, card = ordered(office)
    office.later(office.settings.ttl + 1)
    assert office.state(job_id) == "EXPIRED"
    counter.look()
    assert card.text == f"📄 emma.pdf\n{EN['EXPIRED']}"


def test_what_has_not_changed_is_not_edited(counter: Counter, office: Office) -> None:
    ordered(office)
    for _ in range(3):
        counter.look()
        counter.time += 10
    assert edits(office) == 1


def test_a_card_is_edited_once_in_three_seconds_at_most(counter: Counter, office: Office) -> None:
    job_id, card = ordered(office)
    counter.look()
    office.desk.cancel(READER, job_id)
    counter.time += 2.9
    counter.look()
    assert edits(office) == 1
    counter.time += 0.1
    counter.look()
    assert card.text == f"📄 emma.pdf\n{EN['CANCELLED']}"


def test_when_telegram_wants_fewer_edits_all_cards_rest(counter: Counter, office: Office) -> None:
    _, one = ordered(office)
    _, other = ordered(office, user_id=8, name="persuasion.pdf")
    office.telegram.fail("editMessageText", 429, retry_after=30)
    counter.look()
    counter.time += 29
    counter.look()
    assert edits(office) == 1
    counter.time += 1
    counter.look()
    assert (one.text, other.text) == (f"📄 emma.pdf\n{EN['QUEUED']}", f"📄 persuasion.pdf\n{EN['QUEUED']}")


@pytest.mark.parametrize("how", ["deleted", "blocked"])
def test_a_card_that_cannot_be_edited_is_closed(counter: Counter, office: Office, how: str) -> None:
    _, card = ordered(office)
    if how == "deleted":
        office.telegram.messages[READER].remove(card)
    else:
        counter.person().blocks()
    counter.look()
    assert office.desk.open_cards() == []


def test_trouble_leaves_a_card_for_later(counter: Counter, office: Office) -> None:
    _, card = ordered(office)
    office.telegram.fail("editMessageText", 502)
    counter.look()
    assert card.text == "Card"
    counter.time += 3
    counter.look()
    assert card.text == f"📄 emma.pdf\n{EN['QUEUED']}"


def test_a_bot_token_that_is_refused_closes_no_card(counter: Counter, office: Office) -> None:
    ordered(office)
    office.telegram.fail("editMessageText", 401)
    with pytest.raises(Refusal):
        counter.look()
    assert len(office.desk.open_cards()) == 1


def test_a_crash_between_an_edit_and_its_note_costs_one_edit(counter: Counter, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, card = ordered(office)
    office.desk.cancel(READER, job_id)

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as broken:
        broken.setattr(office.desk, "mark_shown", crash)
        with pytest.raises(RuntimeError):
            counter.look()
    assert card.text == f"📄 emma.pdf\n{EN['CANCELLED']}"
    counter.time += 3
    counter.look()
    assert office.desk.open_cards() == []


def test_a_look_that_fails_is_followed_by_the_next(counter: Counter, office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ordered(office)
    monkeypatch.setattr(cards, "EVERY", 0.01)
    looks, open_cards = [0], office.desk.open_cards
    stop = asyncio.Event()

    def fails_once() -> object:
        looks[0] += 1
        if looks[0] == 1:
            raise RuntimeError("secret")
        if looks[0] == 3:
            counter.runner.get_loop().call_soon_threadsafe(stop.set)
        return open_cards()

    monkeypatch.setattr(office.desk, "open_cards", fails_once)
    counter.runner.run(asyncio.wait_for(counter.cards.run(stop), 20))
    assert edits(office) == 1
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
