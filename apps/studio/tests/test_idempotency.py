"""Idempotency: identical orders of a user within one minute are one job and one deduction."""

from datetime import timedelta

import pytest

from apps.studio.ledger import Balance
from apps.studio.order import Order, Params
from apps.studio.orders import Created, Orders
from apps.studio.prompt_guard import PromptGuard
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.scenarios import AFTER_ANY_BACKOFF, RETRIED, another_process, assert_consistent, during_request
from apps.studio.tests.studio_kit import COMPLETED, StudioKit
from apps.studio.users import User

PROMPT = "A harbour at dawn, in the rain"
MINUTE = 60.0


@pytest.fixture
def ann(kit: StudioKit) -> User:
    """A user with five credits, at the start of a minute."""
    now = kit.clock.now()
    kit.clock.advance((now.replace(second=0, microsecond=0) + timedelta(minutes=1) - now).total_seconds())
    return kit.user(credits=5)


def asks(kit: StudioKit, user: User, prompt: str = PROMPT, params: Params | None = None) -> Created:
    return kit.orders.create_job(user.id, prompt, params or Params())


def reserves(kit: StudioKit) -> int:
    return kit.rows("SELECT count(*) FROM studio_entries WHERE entry = 'reserve'")[0][0]


# ---------------------------------------------------------------- the same order
def test_double_click_creates_one_job_and_one_deduction(kit: StudioKit, ann: User) -> None:
    first, second = asks(kit, ann), asks(kit, ann)
    assert (first.created, second) == (True, Created(first.id, created=False))
    assert kit.balance(ann.id) == Balance(granted=5, available=4, reserved=1, captured=0, forfeited=0)
    assert_consistent(kit)


def test_network_retry_returns_the_running_job(kit: StudioKit, ann: User) -> None:
    first, seen = asks(kit, ann), list[tuple[Created, str]]()
    during_request(kit, lambda: seen.append((asks(kit, ann), kit.state(first.id))))
    assert seen == [(Created(first.id, created=False), "running")]
    assert (kit.transitions(first.id), len(kit.images.asked), reserves(kit)) == (COMPLETED, 1, 1)
    assert_consistent(kit)


def test_orders_in_two_processes_create_one_job(kit: StudioKit, ann: User) -> None:
    with another_process(kit) as studio:
        first, second = asks(kit, ann), Orders(studio, now=kit.clock.now).create_job(ann.id, PROMPT)
    assert (second, reserves(kit)) == (Created(first.id, created=False), 1)
    assert_consistent(kit)


@pytest.mark.parametrize(
    ("prompt", "again"),
    [(PROMPT, f"  {PROMPT}\n"), ("Café\r\nat night", "Cafe\u0301\nat night")],
    ids=["space around it", "composed"],
)
def test_prompts_that_normalize_to_the_same_text_are_one_order(
    kit: StudioKit, ann: User, prompt: str, again: str
) -> None:
    first = asks(kit, ann, prompt)
    assert asks(kit, ann, again) == Created(first.id, created=False)
    assert_consistent(kit)


# ---------------------------------------------------------------- another order
def test_same_order_in_the_next_minute_is_a_new_job(kit: StudioKit, ann: User) -> None:
    first = asks(kit, ann)
    kit.clock.advance(MINUTE - 1)
    assert asks(kit, ann) == Created(first.id, created=False)
    kit.clock.advance(1)
    next_one = asks(kit, ann)
    assert (next_one.created, reserves(kit)) == (True, 2)
    assert_consistent(kit)


def test_another_user_prompt_size_or_seed_is_another_order(kit: StudioKit, ann: User) -> None:
    bob = kit.user(credits=5)
    made = [
        asks(kit, ann),
        asks(kit, bob),
        asks(kit, ann, PROMPT + "!"),
        asks(kit, ann, params=Params(seed=0)),
        asks(kit, ann, params=Params(seed=1)),
        asks(kit, bob, params=Params("1536x1024")),
        asks(kit, bob, params=Params("1024x1536")),
    ]
    assert all(each.created for each in made)
    assert len({each.id for each in made}) == reserves(kit) == len(made)
    assert (kit.balance(ann.id).reserved, kit.balance(bob.id).reserved) == (4, 5)
    assert_consistent(kit)


def test_different_orders_never_share_a_key(kit: StudioKit) -> None:
    """A prompt cannot imitate another user, size or seed."""
    now = kit.clock.now()
    orders = [
        Order(1, "11", 1),
        Order(11, "1", 1),
        Order(1, '11", "size', 1),
        Order(1, "1", 1, Params(seed=1)),
        Order(1, "11", 1, Params(seed=1)),
    ]
    assert len({order.key(now) for order in orders}) == len(orders)
    assert Order(1, "11", 2).key(now) == Order(1, "11", 1).key(now)


# ---------------------------------------------------------------- after a failure
def test_same_order_makes_a_resting_job_due_at_once(kit: StudioKit, ann: User) -> None:
    kit.images.fail(Fault.limited(3000))
    first = asks(kit, ann)
    kit.run()
    assert kit.state(first.id) == "failed"
    assert kit.app.get(first.id).due_at > kit.clock.now()
    assert asks(kit, ann) == Created(first.id, created=False)
    assert (kit.app.get(first.id).due_at, kit.state(first.id), reserves(kit)) == (
        kit.clock.now(),
        "failed",
        1,
    )
    kit.check()
    kit.run()
    assert kit.transitions(first.id) == [*RETRIED, ("running", "completed")]
    assert kit.balance(ann.id) == Balance(granted=5, available=4, reserved=0, captured=1, forfeited=0)
    assert_consistent(kit)


def test_making_a_job_due_uses_no_try(kit: StudioKit, ann: User) -> None:
    kit.images.fail(Fault.limited(3000))
    first = asks(kit, ann)
    kit.run()
    left = kit.app.get(first.id).tries_left
    for _ in range(5):
        asks(kit, ann)
    assert (kit.app.get(first.id).tries_left, kit.transitions(first.id)[-1]) == (left, ("running", "failed"))
    assert_consistent(kit)


def test_order_in_the_next_minute_does_not_change_the_resting_job(kit: StudioKit, ann: User) -> None:
    kit.images.fail(Fault.limited(3000))
    first = asks(kit, ann)
    kit.run()
    due = kit.app.get(first.id).due_at
    kit.clock.advance(MINUTE)
    assert asks(kit, ann).created
    assert kit.app.get(first.id).due_at == due
    assert_consistent(kit)


def test_same_order_after_a_dead_letter_is_a_new_job(kit: StudioKit, ann: User) -> None:
    kit.images.fail(Fault.unauthorized())
    first = asks(kit, ann)
    kit.run()
    assert kit.state(first.id) == "dead_letter"
    second = asks(kit, ann)
    assert (second.created, second.id != first.id) == (True, True)
    assert kit.balance(ann.id) == Balance(granted=5, available=4, reserved=1, captured=0, forfeited=0)
    assert asks(kit, ann) == Created(second.id, created=False)
    kit.run()
    assert (kit.transitions(second.id), kit.state(first.id)) == (COMPLETED, "dead_letter")
    assert_consistent(kit)


def test_same_order_during_a_redrive_finds_the_successor(kit: StudioKit, ann: User) -> None:
    kit.images.fail(Fault.unauthorized())
    first = asks(kit, ann)
    kit.run()
    again = kit.dead_letters.redrive(first.id, by="olga")
    assert asks(kit, ann) == Created(again, created=False)
    assert kit.balance(ann.id).reserved == 1
    assert_consistent(kit)


@pytest.mark.parametrize(
    ("fault", "end"), [(None, "completed"), (Fault.blocked(), "rejected")], ids=["completed", "rejected"]
)
def test_same_order_after_any_other_end_is_the_same_job(
    kit: StudioKit, ann: User, fault: Fault | None, end: str
) -> None:
    kit.images.fail(*[fault] * (fault is not None))
    first = asks(kit, ann)
    kit.run()
    assert kit.state(first.id) == end
    before = kit.transitions(first.id)
    assert asks(kit, ann) == Created(first.id, created=False)
    kit.run_after(MINUTE - 1)
    assert (kit.transitions(first.id), len(kit.images.asked), reserves(kit)) == (before, 1, 1)
    assert_consistent(kit)


# ---------------------------------------------------------------- the key is looked up first
def test_retry_without_credits_left_returns_its_job(kit: StudioKit) -> None:
    poor = kit.user(credits=1)
    first = asks(kit, poor)
    assert asks(kit, poor) == Created(first.id, created=False)
    assert kit.balance(poor.id) == Balance(granted=1, available=0, reserved=1, captured=0, forfeited=0)
    assert_consistent(kit)


def test_retry_of_a_newly_blocked_prompt_returns_its_job(kit: StudioKit, ann: User) -> None:
    first = asks(kit, ann)
    with another_process(kit, guard=PromptGuard.of(["harbour"])) as studio:
        assert Orders(studio, now=kit.clock.now).create_job(ann.id, PROMPT) == Created(first.id, created=False)
    assert_consistent(kit)


def test_retry_does_not_call_the_moderation_model(kit: StudioKit, ann: User) -> None:
    first = asks(kit, ann)

    def away(prompt: str) -> str:
        raise ConnectionRefusedError(prompt)

    with another_process(kit, moderator=away) as studio:
        assert Orders(studio, now=kit.clock.now).create_job(ann.id, PROMPT) == Created(first.id, created=False)
    assert_consistent(kit)


def test_newly_blocked_order_still_makes_its_job_due(kit: StudioKit, ann: User) -> None:
    kit.images.fail(Fault.trouble())
    first = asks(kit, ann)
    kit.run()
    with another_process(kit, guard=PromptGuard.of(["harbour"])) as studio:
        Orders(studio, now=kit.clock.now).create_job(ann.id, PROMPT)
    kit.run()
    assert kit.state(first.id) == "completed"
    kit.run_after(AFTER_ANY_BACKOFF)
    assert_consistent(kit)
