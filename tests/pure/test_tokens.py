"""Tokens of questions: nobody can make or change one without a secret, and secrets can be replaced."""

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import App, InterlockError, InvalidToken, UsageError
from interlock.core.ids import uuid7
from interlock.jobs.question import Question, Terms
from interlock.jobs.tokens import VARIABLE, Tokens

OLD, NEW = "the first secret, 24 characters", "the second secret, 24 characters"
JOB = "019b76da-a800-7000-8000-000000000007"
TOKEN = Tokens(NEW).sign("publish", JOB)
URL_SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."


def test_token_names_its_job_and_is_the_same_each_time() -> None:
    """Also in another process, and with a kind that is not ASCII."""
    assert Tokens(NEW).sign("publish", JOB) == TOKEN
    assert Tokens(NEW).read(TOKEN) == ("publish", JOB)
    assert Tokens(NEW).read(Tokens(NEW).sign("veröffentlichen/1", JOB)) == ("veröffentlichen/1", JOB)
    assert Tokens(NEW).sign("publish", uuid7()) != TOKEN


@given(kind=st.text(min_size=1, max_size=255).filter(str.isprintable))
def test_token_fits_into_a_url(kind: str) -> None:
    """It needs no escaping, whatever the name of the kind."""
    assert re.fullmatch("[A-Za-z0-9._-]{60,1600}", Tokens(NEW).sign(kind, JOB))


# ---------------------------------------------------------------- forged tokens
@given(place=st.integers(0, len(TOKEN) - 1), other=st.one_of(st.sampled_from(URL_SAFE), st.characters()))
def test_token_with_a_changed_character_is_refused(place: int, other: str) -> None:
    """Also the last character, some bits of which do not belong to the signature."""
    changed = TOKEN[:place] + other + TOKEN[place + 1 :]
    if changed != TOKEN:
        with pytest.raises(InvalidToken):
            Tokens(NEW).read(changed)


@given(place=st.integers(0, len(TOKEN)), extra=st.text(min_size=1, max_size=3))
def test_token_with_an_inserted_character_is_refused(place: int, extra: str) -> None:
    """Base64 would ignore some characters, such as spaces and padding."""
    with pytest.raises(InvalidToken):
        Tokens(NEW).read(TOKEN[:place] + extra + TOKEN[place:])


@given(place=st.integers(0, len(TOKEN) - 1))
def test_token_with_a_missing_character_is_refused(place: int) -> None:
    with pytest.raises(InvalidToken):
        Tokens(NEW).read(TOKEN[:place] + TOKEN[place + 1 :])


@pytest.mark.parametrize("last", range(64))
def test_every_other_last_character_is_refused(last: int) -> None:
    changed = TOKEN[:-1] + URL_SAFE[last]
    if changed != TOKEN:
        with pytest.raises(InvalidToken):
            Tokens(NEW).read(changed)


@pytest.mark.parametrize("text", ["", ".", "a.b", "\ud800", "ü.ü", JOB, None, 7, b"a.b"])
def test_text_that_is_no_token_is_refused(text: Any) -> None:
    with pytest.raises(InvalidToken, match="not valid"):
        Tokens(NEW).read(text)


def test_token_of_another_secret_is_refused() -> None:
    with pytest.raises(InvalidToken, match="signed with another secret"):
        Tokens(OLD).read(TOKEN)


def test_token_that_another_part_of_the_program_signed_is_refused() -> None:
    """Even with the same secret: a token of a question has its own salt."""
    from itsdangerous import URLSafeSerializer

    with pytest.raises(InvalidToken):
        Tokens(NEW).read(str(URLSafeSerializer(NEW).dumps(["publish", JOB])))


# ---------------------------------------------------------------- secrets
def test_first_secret_signs_and_every_secret_is_accepted() -> None:
    """So a secret can be replaced while links signed with the old one are in mails."""
    both = Tokens([NEW, OLD])
    assert both.sign("publish", JOB) == TOKEN
    assert both.read(Tokens(OLD).sign("publish", JOB)) == both.read(TOKEN) == ("publish", JOB)


def test_environment_gives_the_secrets_if_the_app_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several are separated by spaces."""
    first, second = NEW.replace(" ", "-"), OLD.replace(" ", "-")
    monkeypatch.setenv(VARIABLE, f"{first} {second}")
    assert Tokens().sign("publish", JOB) == Tokens(first).sign("publish", JOB)
    assert Tokens().read(Tokens(second).sign("publish", JOB)) == ("publish", JOB)
    assert Tokens(NEW).sign("publish", JOB) == TOKEN


@pytest.mark.parametrize("value", ["", "  ", None])
def test_missing_secret_raises_an_error_that_says_how_to_make_one(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(UsageError, match=r"pass App\(secret=…\) or set INTERLOCK_SECRET.*token_urlsafe"):
        Tokens().sign("publish", JOB)
    with pytest.raises(UsageError):
        Tokens().read(TOKEN)


@pytest.mark.parametrize("secret", ["short", "", [], [NEW, "short"], [None], 7 * [b"x" * 40]])
def test_weak_secret_is_refused_when_the_app_is_made(secret: Any, tmp_path: Any) -> None:
    """The error does not show the secret."""
    with pytest.raises(UsageError, match="at least 24 random characters") as raised:
        App(f"sqlite:///{tmp_path}/jobs.db", secret=secret)
    assert "short" not in str(raised.value)


def test_weak_secret_of_the_environment_is_refused_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(UsageError, match="at least 24 random characters"):
        Tokens().sign("publish", JOB)


def test_missing_library_raises_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "itsdangerous", None)
    for use in (lambda: Tokens(NEW).sign("publish", JOB), lambda: Tokens(NEW).read(TOKEN)):
        with pytest.raises(InterlockError, match=r"pip install 'interlock\[links\]'"):
            use()


# ---------------------------------------------------------------- terms
@given(
    timeout=st.floats(0.001, 1e9), default=st.one_of(st.none(), st.sampled_from(["null", "false", '{"a":[1]}', '"x"']))
)
def test_terms_are_stored_and_read_back(timeout: float, default: str | None) -> None:
    """A default of None differs from no default."""
    terms = Terms(timeout, default)
    assert Terms.load(terms.dump()) == terms


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "1 second"),
        (90, "90 seconds"),
        (0.5, "0.5 seconds"),
        (60, "1 minute"),
        (5400, "90 minutes"),
        (3600, "1 hour"),
        (129_600, "36 hours"),
        (86_400, "1 day"),
        (259_200, "3 days"),
    ],
)
def test_reason_names_the_time_in_the_largest_unit_that_divides_it(seconds: float, words: str) -> None:
    assert Terms(seconds).unanswered == f"nobody answered within {words}"


def test_printed_question_does_not_show_its_token() -> None:
    """Whoever reads a log must not be able to answer."""
    assert TOKEN not in repr(Question[bool]("question:1", TOKEN, Terms(60.0)))
