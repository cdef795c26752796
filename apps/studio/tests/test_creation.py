"""Creation of a job (transition A of the specification): three guards and the reservation of credits."""

from dataclasses import astuple

import pytest
from sqlalchemy.exc import DBAPIError

from apps.studio.errors import ModerationUnavailable, Refusal
from apps.studio.ledger import Balance
from apps.studio.order import MAX_SEED, PRICES, Params
from apps.studio.orders import Orders
from apps.studio.prompt_guard import MAX_LENGTH, PromptGuard
from apps.studio.tests.scenarios import another_process, broken
from apps.studio.tests.studio_kit import QUEUED, StudioKit
from interlock import Refused

PROMPT = "A harbour at dawn, in the rain"


def untouched(kit: StudioKit, before: dict[str, int], user_id: int, credits: int) -> None:
    """Assert that nothing was stored or deducted and the provider was not called."""
    assert kit.stored() == before
    assert kit.balance(user_id) == Balance(granted=credits, available=credits, reserved=0, captured=0, forfeited=0)
    assert kit.images.asked == []
    kit.check()


# ---------------------------------------------------------------- accepted orders
@pytest.mark.parametrize("size", list(PRICES))
def test_valid_order_is_queued_and_reserves_credits(kit: StudioKit, size: str) -> None:
    user = kit.user(credits=5)
    made = kit.orders.create_job(user.id, f"  {PROMPT}\r\n", Params(size, 7))
    cost = PRICES[size]
    assert (made.created, kit.transitions(made.id)) == (True, QUEUED)
    assert kit.rows("SELECT prompt, size, seed, cost, user_id FROM studio_orders") == [(PROMPT, size, 7, cost, user.id)]
    assert kit.rows("SELECT entry, amount FROM studio_entries WHERE job_id = :id", id=made.id) == [("reserve", cost)]
    assert kit.balance(user.id) == Balance(granted=5, available=5 - cost, reserved=cost, captured=0, forfeited=0)
    kit.check()


@pytest.mark.parametrize(
    "prompt",
    [
        "7",
        "夜の港",
        "A harbour\nat\tdawn 🌅",
        "<b>bold</b> & 'quoted' \"%s\" ; DROP TABLE studio_users",
        "é" * MAX_LENGTH,
    ],
)
def test_prompts_in_any_script_are_accepted(kit: StudioKit, prompt: str) -> None:
    """The provider gets the prompt unchanged."""
    job = kit.order(prompt=prompt)
    kit.run()
    assert (kit.state(job), [asked.prompt for asked in kit.images.asked]) == ("completed", [prompt])
    kit.check()


def test_last_credit_is_enough(kit: StudioKit) -> None:
    user = kit.user(credits=2)
    kit.orders.create_job(user.id, PROMPT, Params("1536x1024"))
    assert kit.balance(user.id).available == 0
    kit.check()


# ---------------------------------------------------------------- PromptGuard
@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("", "prompt_empty"),
        (" \n ", "prompt_empty"),
        ("… !", "prompt_empty"),
        ("x" * (MAX_LENGTH + 1), "prompt_too_long"),
        ("a\x00b", "prompt_characters"),
        ("a\x1bb", "prompt_characters"),
        ("a\ud800b", "prompt_characters"),
        ("a\u202eb", "prompt_characters"),
        ("a \ue000", "prompt_characters"),
    ],
)
def test_invalid_prompt_creates_no_job(kit: StudioKit, prompt: str, code: str) -> None:
    user = kit.user(credits=5)
    before = kit.stored()
    with pytest.raises(Refusal) as refused:
        kit.orders.create_job(user.id, prompt)
    assert refused.value.code == code
    untouched(kit, before, user.id, 5)


@pytest.mark.parametrize("prompt", ["a bomb", "A BOMB!", "bo\u0301mb", "ｂｏｍｂ", "a car  crash", "b\u00adomb"])
def test_blocked_word_creates_no_job(kit: StudioKit, prompt: str) -> None:
    """This holds for any spelling and in any process."""
    user = kit.user(credits=5)
    before = kit.stored()
    with another_process(kit, guard=PromptGuard.of(["bomb", "car crash"])) as studio:
        with pytest.raises(Refusal) as refused:
            Orders(studio, now=kit.clock.now).create_job(user.id, prompt)
        assert refused.value.code == "prompt_blocked"
        untouched(kit, before, user.id, 5)
        assert Orders(studio, now=kit.clock.now).create_job(user.id, "a bombastic carpet").created


def test_guard_also_runs_inside_the_transaction(kit: StudioKit) -> None:
    """A direct `enqueue` cannot bypass it."""
    user = kit.user(credits=5)
    before = kit.stored()
    order = {"user_id": user.id, "prompt": "", "cost": 1, "params": {"size": "1024x1024", "seed": None}}
    with pytest.raises(Refused):
        kit.app.enqueue_named("image", {"order": order})
    with pytest.raises(Refused):
        kit.app.enqueue_named("image", {"order": {**order, "prompt": PROMPT, "params": {"size": "9x9", "seed": None}}})
    untouched(kit, before, user.id, 5)


def test_flagged_prompt_creates_no_job(kit: StudioKit) -> None:
    user, heard = kit.user(credits=5), []
    before = kit.stored()

    def flags(prompt: str) -> str:
        heard.append(prompt)
        return "it shows a person"

    with another_process(kit, moderator=flags) as studio, pytest.raises(Refusal, match="it shows a person") as refused:
        Orders(studio, now=kit.clock.now).create_job(user.id, PROMPT)
    assert (refused.value.code, heard) == ("prompt_flagged", [PROMPT])
    untouched(kit, before, user.id, 5)


def test_unavailable_moderation_creates_no_job(kit: StudioKit) -> None:
    user = kit.user(credits=5)
    before = kit.stored()

    def away(prompt: str) -> str:
        raise ConnectionRefusedError(prompt)

    with another_process(kit, moderator=away) as studio, pytest.raises(ModerationUnavailable):
        Orders(studio, now=kit.clock.now).create_job(user.id, PROMPT)
    untouched(kit, before, user.id, 5)


def test_moderation_runs_outside_any_transaction(kit: StudioKit) -> None:
    """A slow model does not block other orders."""
    user, other = kit.user(credits=5), kit.user(credits=5)

    def slow(prompt: str) -> None:
        assert kit.order(other, prompt)

    with another_process(kit, moderator=slow) as studio:
        made = Orders(studio, now=kit.clock.now).create_job(user.id, PROMPT)
    assert (made.created, len(kit.app.jobs())) == (True, 2)
    kit.check()


# ---------------------------------------------------------------- parameters
@pytest.mark.parametrize(
    "params",
    [Params("512x512"), Params(""), Params("1024x1024 "), Params(seed=-1), Params(seed=MAX_SEED + 1)],
    ids=lambda params: str(astuple(params)),
)
def test_unsupported_parameters_create_no_job(kit: StudioKit, params: Params) -> None:
    user = kit.user(credits=5)
    before = kit.stored()
    with pytest.raises(Refusal) as refused:
        kit.orders.create_job(user.id, PROMPT, params)
    assert refused.value.code == "params_invalid"
    untouched(kit, before, user.id, 5)


# ---------------------------------------------------------------- quota
@pytest.mark.parametrize(("credits", "size"), [(0, "1024x1024"), (1, "1536x1024")])
def test_too_few_credits_create_no_job(kit: StudioKit, credits: int, size: str) -> None:
    user, rich = kit.user(credits=credits), kit.user(credits=100)
    before = kit.stored()
    with pytest.raises(Refusal, match=rf"costs {PRICES[size]} credits?; you have {credits}\.") as refused:
        kit.orders.create_job(user.id, PROMPT, Params(size))
    assert refused.value.code == "credits_insufficient"
    untouched(kit, before, user.id, credits)
    assert kit.balance(rich.id).available == 100


def test_reserved_captured_and_forfeited_credits_cannot_be_spent(kit: StudioKit) -> None:
    user = kit.user(credits=3)
    kit.images.block_words.add("nude")
    kit.order(user, "a nude")
    kit.order(user, "a harbour")
    kit.run()
    kit.order(user, "a lighthouse")
    assert kit.balance(user.id) == Balance(granted=3, available=0, reserved=1, captured=1, forfeited=1)
    with pytest.raises(Refusal, match="you have 0"):
        kit.order(user, "a gull")
    kit.check()


def test_unknown_user_cannot_order(kit: StudioKit) -> None:
    before = kit.stored()
    for id in (99, 0, -1, 2**31, 2**63):
        with pytest.raises(Refusal) as refused:
            kit.orders.create_job(id, PROMPT)
        assert refused.value.code == "user_unknown"
    assert kit.stored() == before
    kit.check()


# ---------------------------------------------------------------- idempotency and atomicity
def test_known_order_creates_no_job(kit: StudioKit) -> None:
    user = kit.user(credits=5)
    first = kit.orders.create_job(user.id, PROMPT)
    before = kit.stored()
    again = kit.orders.create_job(user.id, PROMPT)
    assert ((again.id, again.created), kit.stored()) == ((first.id, False), before)
    assert kit.balance(user.id) == Balance(granted=5, available=4, reserved=1, captured=0, forfeited=0)
    kit.check()


@pytest.mark.parametrize("table", ["studio_entries", "studio_orders"])
def test_job_order_and_reserve_are_stored_together_or_not_at_all(kit: StudioKit, table: str) -> None:
    user = kit.user(credits=5)
    before = kit.stored()
    with broken(kit, table), pytest.raises((DBAPIError, Refused)):
        kit.orders.create_job(user.id, PROMPT)
    untouched(kit, before, user.id, 5)
    assert kit.orders.create_job(user.id, PROMPT).created
    kit.check()
