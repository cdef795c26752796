"""Promises about dead letters: each gets one decision, whoever makes it and however; one that is driven again is paid for again."""

from functools import partial

import pytest

from apps.studio.errors import Conflict, NotFound, Refusal
from apps.studio.ledger import Balance
from apps.studio.people import User
from apps.studio.tests.images_api import Fault
from apps.studio.tests.kit import COMPLETED, PROMPT, Atelier
from apps.studio.tests.scenes import ENOUGH, IN_STATE, at_once
from interlock import TransitionRefused

NO_ID = "01900000-0000-7000-8000-000000000000"


@pytest.fixture
def ann(atelier: Atelier) -> User:
    return atelier.user(credits=3, name="ann")


def buried(atelier: Atelier, user: User, prompt: str = PROMPT) -> str:
    """A dead letter of this user."""
    atelier.images.fail(Fault.unauthorized())
    job = atelier.order(user, prompt)
    atelier.run()
    assert atelier.state(job) == "dead_letter"
    return job


# ---------------------------------------------------------------- the list
def test_a_dead_letter_is_listed_with_its_user_and_the_reason(atelier: Atelier, ann: User) -> None:
    job = buried(atelier, ann)
    [letter] = atelier.review.open()
    assert letter == atelier.review.show(job) == atelier.review.every()[0]
    assert (letter.job, letter.user_name, letter.job.retry_count) == (atelier.gallery.job(ann.id, job), "ann", 1)
    assert letter.reason == atelier.app.get(job).last_error
    assert "STUDIO_API_KEY" in letter.reason
    assert (letter.decision, letter.successor, letter.note, letter.by, letter.at) == (None, None, None, None, None)


def test_one_that_failed_too_often_is_listed_with_its_last_trouble(atelier: Atelier, ann: User) -> None:
    atelier.images.fail(*[Fault.trouble(500)] * 3, Fault.trouble(503))
    job = atelier.order(ann)
    for _ in range(4):
        atelier.later(ENOUGH)
    [letter] = atelier.review.open()
    assert (letter.job.id, letter.job.retry_count) == (job, 4)
    assert "503" in letter.reason


def test_the_newest_is_listed_first_and_no_more_than_asked_for(atelier: Atelier, ann: User) -> None:
    jobs = [buried(atelier, ann, f"a boat, {n}") for n in range(3)]
    assert [letter.job.id for letter in atelier.review.open()] == jobs[::-1]
    assert [letter.job.id for letter in atelier.review.open(limit=2)] == jobs[:0:-1]


def test_only_dead_letters_are_listed(atelier: Atelier) -> None:
    jobs = {state: come_to(atelier) for state, come_to in IN_STATE.items()}
    assert [letter.job.id for letter in atelier.review.every()] == [jobs["dead_letter"]]


# ---------------------------------------------------------------- drive again
def test_a_redrive_is_a_new_job_that_reserves_again(atelier: Atelier, ann: User) -> None:
    old = buried(atelier, ann)
    assert atelier.balance(ann) == Balance(3, 3, 0, 0, 0)
    new = atelier.review.redrive(old, by="olga", reason="the key is right now")
    assert atelier.balance(ann) == Balance(3, 2, 1, 0, 0)
    atelier.check()
    atelier.run()
    assert (atelier.path(new), atelier.state(old), atelier.balance(ann)) == (COMPLETED, "dead_letter", Balance(3, 2, 0, 1, 0))
    assert atelier.gallery.job(ann.id, new).redrive_of == old
    atelier.check()


def test_a_redrive_says_who_did_it_and_why(atelier: Atelier, ann: User) -> None:
    old = buried(atelier, ann)
    new = atelier.review.redrive(old, by="olga", reason="as before: the key is right now")
    letter = atelier.review.show(old)
    assert (letter.decision, letter.successor, letter.by, letter.note) == ("redriven", new, "olga", "as before: the key is right now")
    assert letter.at is not None
    assert atelier.review.open() == []


def test_without_a_reason_there_is_no_note(atelier: Atelier, ann: User) -> None:
    old = buried(atelier, ann)
    atelier.review.redrive(old, by="olga")
    assert (atelier.review.show(old).by, atelier.review.show(old).note) == ("olga", None)


def test_a_redrive_asks_the_provider_anew(atelier: Atelier, ann: User) -> None:
    """A link that the provider has dropped is not asked for again."""
    atelier.images.answers = "url"
    atelier.images.fail_links(Fault.trouble(404))
    old = atelier.order(ann)
    atelier.run()
    assert atelier.state(old) == "dead_letter"
    new = atelier.review.redrive(old, by="olga")
    atelier.run()
    assert (atelier.state(new), [asked.key for asked in atelier.images.asked]) == ("completed", [old, new])


def test_without_credits_nothing_is_driven_again_and_nothing_is_stored(atelier: Atelier, ann: User) -> None:
    old = buried(atelier, ann)
    for n in range(3):
        atelier.order(ann, f"a boat, {n}")
    before = atelier.stored()
    with pytest.raises(Refusal) as refusal:
        atelier.review.redrive(old, by="olga")
    assert refusal.value.code == "credits_insufficient"
    assert (atelier.stored(), atelier.review.show(old).decision) == (before, None)
    atelier.people.grant("ann", 1)
    atelier.review.redrive(old, by="olga")
    atelier.check()


def test_what_the_guard_refuses_by_now_is_not_driven_again(atelier: Atelier, ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    old, guard = buried(atelier, ann), atelier.studio.means.guard

    def refuse(_: object, prompt: str) -> None:
        raise Refusal("prompt_blocked", f"Not {prompt}.")

    monkeypatch.setattr(type(guard), "validate", refuse)
    before = atelier.stored()
    with pytest.raises(Refusal, match=PROMPT):
        atelier.review.redrive(old, by="olga")
    assert atelier.stored() == before


def test_the_engines_own_redrive_is_the_same_decision(atelier: Atelier, ann: User) -> None:
    """As `interlock redrive` does it."""
    old = buried(atelier, ann)
    new = atelier.app.redrive(old, by="a shell", reason="by hand").id
    assert atelier.balance(ann).reserved == 1
    letter = atelier.review.show(old)
    assert (letter.decision, letter.successor, letter.by, letter.note) == ("redriven", new, "a shell", "by hand")
    with pytest.raises(Conflict):
        atelier.review.close(old, by="olga")
    atelier.check()


def test_the_engines_own_redrive_is_refused_without_credits_too(atelier: Atelier, ann: User) -> None:
    old = buried(atelier, ann)
    for n in range(3):
        atelier.order(ann, f"a boat, {n}")
    before = atelier.stored()
    with pytest.raises(Refusal):
        atelier.app.redrive(old, by="a shell")
    assert atelier.stored() == before


def test_whoever_dies_right_after_the_redrive_has_decided_all_the_same(atelier: Atelier, ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job, its credits, the decision and who made it are one transaction; only the reason is told after it."""

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    old, store = buried(atelier, ann), atelier.app.database.store()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(store), "remark", dies)
        atelier.review.redrive(old, by="olga", reason="lost with its process")
    letter = atelier.review.show(old)
    assert (letter.decision, letter.by, letter.note) == ("redriven", "olga", None)
    atelier.check()
    with pytest.raises(Conflict):
        atelier.review.redrive(old, by="olga", reason="again")
    atelier.run()
    assert atelier.state(letter.successor or "") == "completed"
    with pytest.raises(Conflict, match="Somebody has decided"):
        atelier.review.redrive(old, by="olga", reason="again")
    assert atelier.balance(ann) == Balance(3, 2, 0, 1, 0)
    atelier.check()


def test_a_redrive_that_dies_is_a_dead_letter_of_its_own(atelier: Atelier, ann: User) -> None:
    first = buried(atelier, ann)
    atelier.images.fail(Fault.unauthorized())
    second = atelier.review.redrive(first, by="olga")
    atelier.run()
    assert [letter.job.id for letter in atelier.review.open()] == [second]
    assert atelier.balance(ann) == Balance(3, 3, 0, 0, 0)
    third = atelier.review.redrive(second, by="olga")
    atelier.run()
    assert [(letter.job.id, letter.successor) for letter in atelier.review.every()] == [(second, third), (first, second)]
    assert (atelier.state(third), atelier.balance(ann)) == ("completed", Balance(3, 2, 0, 1, 0))
    atelier.check()


@pytest.mark.parametrize("state", sorted(set(IN_STATE) - {"dead_letter"}))
def test_only_a_dead_letter_is_driven_again_or_closed(atelier: Atelier, state: str) -> None:
    job = IN_STATE[state](atelier)
    before = atelier.stored()
    with pytest.raises(Conflict) as conflict:
        atelier.review.redrive(job, by="olga")
    assert str(conflict.value) == f"Job {job} is not driven again: it is {state}."
    with pytest.raises((TransitionRefused, Refusal)):
        atelier.app.redrive(job, by="a shell")
    with pytest.raises(NotFound):
        atelier.review.close(job, by="olga")
    assert atelier.stored() == before


def test_the_same_wish_while_its_redrive_is_under_way_finds_it(atelier: Atelier, ann: User) -> None:
    old = buried(atelier, ann)
    new = atelier.review.redrive(old, by="olga")
    assert atelier.order(ann) == new
    assert atelier.balance(ann).reserved == 1


def test_while_the_same_wish_is_under_way_anew_its_dead_letter_waits(atelier: Atelier, ann: User) -> None:
    old = buried(atelier, ann)
    again = atelier.order(ann)
    assert again != old
    before = atelier.stored()
    with pytest.raises(Conflict) as waits:
        atelier.review.redrive(old, by="olga")
    assert str(waits.value) == f"Job {old} is not driven again yet: the same order is under way as job {again}. Wait for its end."
    assert (atelier.stored(), atelier.review.show(old).decision) == (before, None)
    atelier.run()
    atelier.review.redrive(old, by="olga")
    atelier.check()


@pytest.mark.parametrize("ended", [False, True])
def test_one_that_was_driven_again_says_as_which(atelier: Atelier, ann: User, *, ended: bool) -> None:
    """In the studio's own words, for the page as well as for the commands."""
    old = buried(atelier, ann)
    new = atelier.review.redrive(old, by="olga")
    if ended:
        atelier.run()
    before = atelier.stored()
    for decide in (lambda: atelier.review.close(old, by="ivan"), lambda: atelier.review.redrive(old, by="ivan")):
        with pytest.raises(Conflict) as decided:
            decide()
        assert str(decided.value) == f"Somebody has decided about job {old} already: it was driven again as {new}."
    assert atelier.stored() == before


# ---------------------------------------------------------------- close
def test_a_closed_one_stays_as_it_is_with_a_note(atelier: Atelier, ann: User) -> None:
    job = buried(atelier, ann)
    before = atelier.app.get(job)
    atelier.review.close(job, by="olga", note="the user was told")
    letter = atelier.review.show(job)
    assert (letter.decision, letter.successor, letter.by, letter.note) == ("closed", None, "olga", "the user was told")
    assert (atelier.review.open(), atelier.review.every(), atelier.app.get(job)) == ([], [letter], before)
    assert atelier.balance(ann) == Balance(3, 3, 0, 0, 0)
    atelier.check()


@pytest.mark.parametrize("verb", ["redrive", "close"])
def test_whatever_is_written_of_a_decision_is_kept_in_one_line_that_can_be_read(atelier: Atelier, ann: User, verb: str) -> None:
    job, strange = buried(atelier, ann), "the user\nwas\x00told\ud800."
    if verb == "redrive":
        atelier.review.redrive(job, by="olga", reason=strange)
    else:
        atelier.review.close(job, by="olga", note=strange)
    note = atelier.review.show(job).note or ""
    assert note.isprintable()
    assert note.startswith("the user was")


def test_one_that_is_decided_is_decided(atelier: Atelier, ann: User) -> None:
    job = buried(atelier, ann)
    atelier.review.close(job, by="olga", note="first")
    before = atelier.stored()
    for decide in (lambda: atelier.review.close(job, by="ivan", note="second"), lambda: atelier.review.redrive(job, by="ivan")):
        with pytest.raises(Conflict, match="Somebody has decided"):
            decide()
    with pytest.raises(Refusal, match="Somebody has decided"):
        atelier.app.redrive(job, by="ivan")
    assert atelier.stored() == before
    assert (atelier.review.show(job).by, atelier.review.show(job).note) == ("olga", "first")


@pytest.mark.parametrize("id", [NO_ID, "1", "", "'; DROP TABLE studio_reviews", "\x00"])
def test_what_is_no_dead_letter_is_not_found(atelier: Atelier, id: str) -> None:
    for ask in (lambda: atelier.review.show(id), lambda: atelier.review.redrive(id, by="olga"), lambda: atelier.review.close(id, by="olga", note="")):
        with pytest.raises(NotFound) as missing:
            ask()
        assert str(missing.value) == f"There is no dead letter {id}."


# ---------------------------------------------------------------- at once
@pytest.mark.parametrize("verbs", [("redrive", "redrive"), ("close", "close"), ("redrive", "close")])
def test_two_administrators_at_once_make_one_decision(atelier: Atelier, ann: User, verbs: tuple[str, str]) -> None:
    for n in range(5):
        job = buried(atelier, ann, f"a boat, {n}")
        reserved = atelier.balance(ann).reserved
        said = at_once(*[partial(getattr(atelier.review, verb), job, by=str(by)) for by, verb in enumerate(verbs)])
        assert sum(isinstance(each, Conflict) for each in said) == 1, said
        [winner] = [n for n, each in enumerate(said) if not isinstance(each, Exception)]
        letter = atelier.review.show(job)
        assert (letter.by, letter.decision) == (str(winner), {"redrive": "redriven", "close": "closed"}[verbs[winner]])
        assert atelier.balance(ann).reserved - reserved == (letter.decision == "redriven")
        atelier.check()
        if letter.successor is not None:
            atelier.images.fail(Fault.blocked())
            atelier.people.grant("ann", 1)
            atelier.run()
