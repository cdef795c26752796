"""The same wish of the same user within one minute is one job and one deduction, whatever happened to it and to the network meanwhile."""

from datetime import timedelta

import pytest

from apps.studio.counter import Counter, Created
from apps.studio.ledger import Balance
from apps.studio.order import Order, Params
from apps.studio.people import User
from apps.studio.prompt_guard import PromptGuard
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import COMPLETED, Atelier
from apps.studio.tests.scenes import ENOUGH, RETRIED, elsewhere, sound, while_asked

PROMPT = "A harbour at dawn, in the rain"
MINUTE = 60.0


@pytest.fixture
def ann(atelier: Atelier) -> User:
    """With five credits, at the beginning of a minute."""
    now = atelier.clock.now()
    atelier.clock.advance((now.replace(second=0, microsecond=0) + timedelta(minutes=1) - now).total_seconds())
    return atelier.user(credits=5)


def asks(atelier: Atelier, user: User, prompt: str = PROMPT, params: Params | None = None) -> Created:
    return atelier.counter.create_job(user.id, prompt, params or Params())


def reserves(atelier: Atelier) -> int:
    return atelier.rows("SELECT count(*) FROM studio_entries WHERE entry = 'reserve'")[0][0]


# ---------------------------------------------------------------- the same
def test_a_double_click_makes_one_job_and_one_deduction(atelier: Atelier, ann: User) -> None:
    first, second = asks(atelier, ann), asks(atelier, ann)
    assert (first.created, second) == (True, Created(first.id, created=False))
    assert atelier.balance(ann.id) == Balance(granted=5, available=4, reserved=1, captured=0, forfeited=0)
    sound(atelier)


def test_a_network_retry_while_it_runs_gets_the_job_that_runs(atelier: Atelier, ann: User) -> None:
    first, seen = asks(atelier, ann), list[tuple[Created, str]]()
    while_asked(atelier, lambda: seen.append((asks(atelier, ann), atelier.state(first.id))))
    assert seen == [(Created(first.id, created=False), "running")]
    assert (atelier.path(first.id), len(atelier.images.asked), reserves(atelier)) == (COMPLETED, 1, 1)
    sound(atelier)


def test_two_tabs_that_talk_to_two_processes_make_one_job(atelier: Atelier, ann: User) -> None:
    with elsewhere(atelier) as studio:
        first, second = asks(atelier, ann), Counter(studio, now=atelier.clock.now).create_job(ann.id, PROMPT)
    assert (second, reserves(atelier)) == (Created(first.id, created=False), 1)
    sound(atelier)


@pytest.mark.parametrize(("prompt", "again"), [(PROMPT, f"  {PROMPT}\n"), ("Café\r\nat night", "Cafe\u0301\nat night")], ids=["space around it", "composed"])
def test_what_is_kept_alike_is_the_same_wish(atelier: Atelier, ann: User, prompt: str, again: str) -> None:
    first = asks(atelier, ann, prompt)
    assert asks(atelier, ann, again) == Created(first.id, created=False)
    sound(atelier)


# ---------------------------------------------------------------- another
def test_within_a_minute_it_is_the_same_and_in_the_next_another(atelier: Atelier, ann: User) -> None:
    first = asks(atelier, ann)
    atelier.clock.advance(MINUTE - 1)
    assert asks(atelier, ann) == Created(first.id, created=False)
    atelier.clock.advance(1)
    next_one = asks(atelier, ann)
    assert (next_one.created, reserves(atelier)) == (True, 2)
    sound(atelier)


def test_another_user_prompt_size_or_seed_is_another_wish(atelier: Atelier, ann: User) -> None:
    bob = atelier.user(credits=5)
    made = [
        asks(atelier, ann), asks(atelier, bob), asks(atelier, ann, PROMPT + "!"), asks(atelier, ann, params=Params(seed=0)),
        asks(atelier, ann, params=Params(seed=1)), asks(atelier, bob, params=Params("1536x1024")), asks(atelier, bob, params=Params("1024x1536"))]
    assert all(each.created for each in made)
    assert len({each.id for each in made}) == reserves(atelier) == len(made)
    assert (atelier.balance(ann.id).reserved, atelier.balance(bob.id).reserved) == (4, 5)
    sound(atelier)


def test_no_two_wishes_read_alike(atelier: Atelier) -> None:
    """What one puts into the prompt, another cannot have as user, size or seed."""
    now = atelier.clock.now()
    orders = [Order(1, "11", 1), Order(11, "1", 1), Order(1, '11", "size', 1), Order(1, "1", 1, Params(seed=1)), Order(1, "11", 1, Params(seed=1))]
    assert len({order.key(now) for order in orders}) == len(orders)
    assert Order(1, "11", 2).key(now) == Order(1, "11", 1).key(now)


# ---------------------------------------------------------------- after a failure
def test_the_same_wish_while_the_job_rests_makes_that_job_due_at_once(atelier: Atelier, ann: User) -> None:
    atelier.images.fail(Fault.limited(3000))
    first = asks(atelier, ann)
    atelier.run()
    assert atelier.state(first.id) == "failed"
    assert atelier.app.get(first.id).due_at > atelier.clock.now()
    assert asks(atelier, ann) == Created(first.id, created=False)
    assert (atelier.app.get(first.id).due_at, atelier.state(first.id), reserves(atelier)) == (atelier.clock.now(), "failed", 1)
    atelier.check()
    atelier.run()
    assert atelier.path(first.id) == [*RETRIED, ("running", "completed")]
    assert atelier.balance(ann.id) == Balance(granted=5, available=4, reserved=0, captured=1, forfeited=0)
    sound(atelier)


def test_hurrying_a_job_spends_no_try_of_it(atelier: Atelier, ann: User) -> None:
    atelier.images.fail(Fault.limited(3000))
    first = asks(atelier, ann)
    atelier.run()
    left = atelier.app.get(first.id).tries_left
    for _ in range(5):
        asks(atelier, ann)
    assert (atelier.app.get(first.id).tries_left, atelier.path(first.id)[-1]) == (left, ("running", "failed"))
    sound(atelier)


def test_the_next_minute_hurries_nobody(atelier: Atelier, ann: User) -> None:
    atelier.images.fail(Fault.limited(3000))
    first = asks(atelier, ann)
    atelier.run()
    due = atelier.app.get(first.id).due_at
    atelier.clock.advance(MINUTE)
    assert asks(atelier, ann).created
    assert atelier.app.get(first.id).due_at == due
    sound(atelier)


def test_after_a_dead_letter_the_same_wish_is_a_new_job(atelier: Atelier, ann: User) -> None:
    atelier.images.fail(Fault.unauthorized())
    first = asks(atelier, ann)
    atelier.run()
    assert atelier.state(first.id) == "dead_letter"
    second = asks(atelier, ann)
    assert (second.created, second.id != first.id) == (True, True)
    assert atelier.balance(ann.id) == Balance(granted=5, available=4, reserved=1, captured=0, forfeited=0)
    assert asks(atelier, ann) == Created(second.id, created=False)
    atelier.run()
    assert (atelier.path(second.id), atelier.state(first.id)) == (COMPLETED, "dead_letter")
    sound(atelier)


def test_while_a_dead_letter_is_driven_again_the_same_wish_finds_its_successor(atelier: Atelier, ann: User) -> None:
    atelier.images.fail(Fault.unauthorized())
    first = asks(atelier, ann)
    atelier.run()
    again = atelier.review.redrive(first.id, by="olga")
    assert asks(atelier, ann) == Created(again, created=False)
    assert atelier.balance(ann.id).reserved == 1
    sound(atelier)


@pytest.mark.parametrize(("fault", "end"), [(None, "completed"), (Fault.blocked(), "rejected")], ids=["completed", "rejected"])
def test_after_any_other_end_the_same_wish_is_the_old_job(atelier: Atelier, ann: User, fault: Fault | None, end: str) -> None:
    atelier.images.fail(*[fault] * (fault is not None))
    first = asks(atelier, ann)
    atelier.run()
    assert atelier.state(first.id) == end
    before = atelier.path(first.id)
    assert asks(atelier, ann) == Created(first.id, created=False)
    atelier.later(MINUTE - 1)
    assert (atelier.path(first.id), len(atelier.images.asked), reserves(atelier)) == (before, 1, 1)
    sound(atelier)


# ---------------------------------------------------------------- the key is looked up first
def test_a_retry_after_the_last_credit_was_spent_gets_its_job(atelier: Atelier) -> None:
    poor = atelier.user(credits=1)
    first = asks(atelier, poor)
    assert asks(atelier, poor) == Created(first.id, created=False)
    assert atelier.balance(poor.id) == Balance(granted=1, available=0, reserved=1, captured=0, forfeited=0)
    sound(atelier)


def test_a_retry_of_a_prompt_that_has_been_blocked_since_gets_its_job(atelier: Atelier, ann: User) -> None:
    first = asks(atelier, ann)
    with elsewhere(atelier, guard=PromptGuard.of(["harbour"])) as studio:
        assert Counter(studio, now=atelier.clock.now).create_job(ann.id, PROMPT) == Created(first.id, created=False)
    sound(atelier)


def test_a_retry_does_not_ask_the_moderation_model_again(atelier: Atelier, ann: User) -> None:
    first = asks(atelier, ann)

    def away(prompt: str) -> str:
        raise ConnectionRefusedError(prompt)

    with elsewhere(atelier, moderator=away) as studio:
        assert Counter(studio, now=atelier.clock.now).create_job(ann.id, PROMPT) == Created(first.id, created=False)
    sound(atelier)


def test_what_was_blocked_since_is_still_hurried_when_its_user_asks_again(atelier: Atelier, ann: User) -> None:
    atelier.images.fail(Fault.trouble())
    first = asks(atelier, ann)
    atelier.run()
    with elsewhere(atelier, guard=PromptGuard.of(["harbour"])) as studio:
        Counter(studio, now=atelier.clock.now).create_job(ann.id, PROMPT)
    atelier.run()
    assert atelier.state(first.id) == "completed"
    atelier.later(ENOUGH)
    sound(atelier)
