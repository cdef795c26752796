"""The creation of an image, A of the transitions: three guards, each of which alone turns a wish away, and the credits that are reserved with the job."""

from dataclasses import astuple

import pytest
from sqlalchemy.exc import DBAPIError

from apps.studio.counter import Counter
from apps.studio.errors import Refusal, Unjudged
from apps.studio.ledger import Balance
from apps.studio.order import LARGEST_SEED, PRICES, Params
from apps.studio.prompt_guard import LONGEST, PromptGuard
from apps.studio.tests.kit import QUEUED, Atelier
from apps.studio.tests.scenes import broken, elsewhere
from interlock import Refused

PROMPT = "A harbour at dawn, in the rain"


def untouched(atelier: Atelier, before: dict[str, int], user_id: int, credits: int) -> None:
    """Nothing was stored, nothing was deducted, and nobody was asked."""
    assert atelier.stored() == before
    assert atelier.balance(user_id) == Balance(granted=credits, available=credits, reserved=0, captured=0, forfeited=0)
    assert atelier.images.asked == []
    atelier.check()


# ---------------------------------------------------------------- all guards say yes
@pytest.mark.parametrize("size", list(PRICES))
def test_a_wish_that_passes_is_queued_with_its_credits_reserved(atelier: Atelier, size: str) -> None:
    user = atelier.user(credits=5)
    made = atelier.counter.create_job(user.id, f"  {PROMPT}\r\n", Params(size, 7))
    cost = PRICES[size]
    assert (made.created, atelier.path(made.id)) == (True, QUEUED)
    assert atelier.rows("SELECT prompt, size, seed, cost, user_id FROM studio_orders") == [(PROMPT, size, 7, cost, user.id)]
    assert atelier.rows("SELECT entry, amount FROM studio_entries WHERE job_id = :id", id=made.id) == [("reserve", cost)]
    assert atelier.balance(user.id) == Balance(granted=5, available=5 - cost, reserved=cost, captured=0, forfeited=0)
    atelier.check()


@pytest.mark.parametrize("prompt", ["7", "夜の港", "A harbour\nat\tdawn 🌅", "<b>bold</b> & 'quoted' \"%s\" ; DROP TABLE studio_users", "é" * LONGEST])
def test_whatever_can_be_read_is_drawn(atelier: Atelier, prompt: str) -> None:
    """And it reaches the provider as it was written."""
    job = atelier.order(prompt=prompt)
    atelier.run()
    assert (atelier.state(job), [asked.prompt for asked in atelier.images.asked]) == ("completed", [prompt])
    atelier.check()


def test_the_last_credit_is_enough(atelier: Atelier) -> None:
    user = atelier.user(credits=2)
    atelier.counter.create_job(user.id, PROMPT, Params("1536x1024"))
    assert atelier.balance(user.id).available == 0
    atelier.check()


# ---------------------------------------------------------------- PromptGuard
@pytest.mark.parametrize(("prompt", "code"), [
    ("", "prompt_empty"), (" \n ", "prompt_empty"), ("… !", "prompt_empty"), ("x" * (LONGEST + 1), "prompt_too_long"), ("a\x00b", "prompt_characters"),
    ("a\x1bb", "prompt_characters"), ("a\ud800b", "prompt_characters"), ("a\u202eb", "prompt_characters"), ("a \ue000", "prompt_characters"),
])
def test_a_prompt_that_the_guard_refuses_makes_no_job(atelier: Atelier, prompt: str, code: str) -> None:
    user = atelier.user(credits=5)
    before = atelier.stored()
    with pytest.raises(Refusal) as refused:
        atelier.counter.create_job(user.id, prompt)
    assert refused.value.code == code
    untouched(atelier, before, user.id, 5)


@pytest.mark.parametrize("prompt", ["a bomb", "A BOMB!", "bo\u0301mb", "ｂｏｍｂ", "a car  crash", "b\u00adomb"])
def test_a_prompt_with_a_blocked_word_makes_no_job(atelier: Atelier, prompt: str) -> None:
    """However it is written, and whichever process judges it."""
    user = atelier.user(credits=5)
    before = atelier.stored()
    with elsewhere(atelier, guard=PromptGuard.of(["bomb", "car crash"])) as studio:
        with pytest.raises(Refusal) as refused:
            Counter(studio, now=atelier.clock.now).create_job(user.id, prompt)
        assert refused.value.code == "prompt_blocked"
        untouched(atelier, before, user.id, 5)
        assert Counter(studio, now=atelier.clock.now).create_job(user.id, "a bombastic carpet").created


def test_the_guard_stands_inside_the_transaction_too(atelier: Atelier) -> None:
    """Whoever goes round the counter meets it there."""
    user = atelier.user(credits=5)
    before = atelier.stored()
    order = {"user_id": user.id, "prompt": "", "cost": 1, "params": {"size": "1024x1024", "seed": None}}
    with pytest.raises(Refused):
        atelier.app.enqueue_named("image", {"order": order})
    with pytest.raises(Refused):
        atelier.app.enqueue_named("image", {"order": {**order, "prompt": PROMPT, "params": {"size": "9x9", "seed": None}}})
    untouched(atelier, before, user.id, 5)


def test_what_the_moderation_model_flags_makes_no_job(atelier: Atelier) -> None:
    user, heard = atelier.user(credits=5), []
    before = atelier.stored()

    def flags(prompt: str) -> str:
        heard.append(prompt)
        return "it shows a person"

    with elsewhere(atelier, moderator=flags) as studio, pytest.raises(Refusal, match="it shows a person") as refused:
        Counter(studio, now=atelier.clock.now).create_job(user.id, PROMPT)
    assert (refused.value.code, heard) == ("prompt_flagged", [PROMPT])
    untouched(atelier, before, user.id, 5)


def test_where_the_moderation_model_cannot_be_asked_nothing_is_ordered(atelier: Atelier) -> None:
    user = atelier.user(credits=5)
    before = atelier.stored()

    def away(prompt: str) -> str:
        raise ConnectionRefusedError(prompt)

    with elsewhere(atelier, moderator=away) as studio, pytest.raises(Unjudged):
        Counter(studio, now=atelier.clock.now).create_job(user.id, PROMPT)
    untouched(atelier, before, user.id, 5)


def test_the_moderation_model_is_asked_outside_any_transaction(atelier: Atelier) -> None:
    """However long it takes, others order meanwhile."""
    user, other = atelier.user(credits=5), atelier.user(credits=5)

    def slow(prompt: str) -> None:
        assert atelier.order(other, prompt)

    with elsewhere(atelier, moderator=slow) as studio:
        made = Counter(studio, now=atelier.clock.now).create_job(user.id, PROMPT)
    assert (made.created, len(atelier.app.jobs())) == (True, 2)
    atelier.check()


# ---------------------------------------------------------------- params
@pytest.mark.parametrize("params", [
    Params("512x512"), Params(""), Params("1024x1024 "), Params(seed=-1), Params(seed=LARGEST_SEED + 1)], ids=lambda params: str(astuple(params)))
def test_what_nobody_draws_makes_no_job(atelier: Atelier, params: Params) -> None:
    user = atelier.user(credits=5)
    before = atelier.stored()
    with pytest.raises(Refusal) as refused:
        atelier.counter.create_job(user.id, PROMPT, params)
    assert refused.value.code == "params_invalid"
    untouched(atelier, before, user.id, 5)


# ---------------------------------------------------------------- Quota
@pytest.mark.parametrize(("credits", "size"), [(0, "1024x1024"), (1, "1536x1024")])
def test_too_few_credits_make_no_job(atelier: Atelier, credits: int, size: str) -> None:
    user, rich = atelier.user(credits=credits), atelier.user(credits=100)
    before = atelier.stored()
    with pytest.raises(Refusal, match=f"price is {PRICES[size]}, and of your credits {credits} can be used") as refused:
        atelier.counter.create_job(user.id, PROMPT, Params(size))
    assert refused.value.code == "credits_insufficient"
    untouched(atelier, before, user.id, credits)
    assert atelier.balance(rich.id).available == 100


def test_what_is_reserved_captured_or_forfeited_is_not_there_to_spend(atelier: Atelier) -> None:
    user = atelier.user(credits=3)
    atelier.images.block_words.add("nude")
    atelier.order(user, "a nude")
    atelier.order(user, "a harbour")
    atelier.run()
    atelier.order(user, "a lighthouse")
    assert atelier.balance(user.id) == Balance(granted=3, available=0, reserved=1, captured=1, forfeited=1)
    with pytest.raises(Refusal, match="0 can be used"):
        atelier.order(user, "a gull")
    atelier.check()


def test_nobody_orders_who_is_not_there(atelier: Atelier) -> None:
    before = atelier.stored()
    for id in (99, 0, -1, 2**31, 2**63):
        with pytest.raises(Refusal) as refused:
            atelier.counter.create_job(id, PROMPT)
        assert refused.value.code == "user_unknown"
    assert atelier.stored() == before
    atelier.check()


# ---------------------------------------------------------------- Idempotency, and all of it together
def test_a_wish_that_is_known_makes_no_job(atelier: Atelier) -> None:
    user = atelier.user(credits=5)
    first = atelier.counter.create_job(user.id, PROMPT)
    before = atelier.stored()
    again = atelier.counter.create_job(user.id, PROMPT)
    assert ((again.id, again.created), atelier.stored()) == ((first.id, False), before)
    assert atelier.balance(user.id) == Balance(granted=5, available=4, reserved=1, captured=0, forfeited=0)
    atelier.check()


@pytest.mark.parametrize("table", ["studio_entries", "studio_orders"])
def test_job_order_and_reserve_are_stored_together_or_not_at_all(atelier: Atelier, table: str) -> None:
    user = atelier.user(credits=5)
    before = atelier.stored()
    with broken(atelier, table), pytest.raises((DBAPIError, Refused)):
        atelier.counter.create_job(user.id, PROMPT)
    untouched(atelier, before, user.id, 5)
    assert atelier.counter.create_job(user.id, PROMPT).created
    atelier.check()
