"""The token of Yandex Disk, on both databases: kept for all, renewed before it ends, and never shown."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy.exc import SQLAlchemyError

from apps.courier import tables
from apps.courier.errors import CourierError, Refusal, Trouble, Untried
from apps.courier.redact import scrub
from apps.courier.tests.keyring import NOON, Keyring, keyring
from apps.courier.tests.reading import settings_of
from apps.courier.tokens import AHEAD, RENEWING, Tokens


@pytest.fixture
def keys(database_url: str) -> Iterator[Keyring]:
    with keyring(database_url) as keys:
        yield keys


# ---------------------------------------------------------------- one token for all


def test_the_token_of_the_settings_is_the_first(keys: Keyring) -> None:
    assert keys.expires_at() is None
    assert keys.access() == keys.fake.token
    assert (keys.row()["generation"], keys.renewals, keys.expires_at()) == (1, 0, None)


def test_a_refresh_token_alone_is_enough(keys: Keyring) -> None:
    keys.settings = settings_of(keys.fake, yandex_token=None)
    assert keys.access() == keys.fake.token
    assert keys.access() == keys.fake.token
    assert keys.renewals == 1


def test_a_renewal_is_stored_with_its_refresh_token_and_its_end(keys: Keyring) -> None:
    first = keys.access()
    second = keys.renewed(first)
    assert second == keys.fake.token != first
    assert keys.row() | {"service": "", "given": ""} == {
        "service": "", "given": "", "access": second, "refresh": keys.fake.refresh_token, "expires_at": NOON + timedelta(seconds=31_536_000),
        "renewing_until": None, "generation": 2,
    }  # fmt: skip
    assert keys.access() == second
    assert keys.expires_at() == NOON + timedelta(seconds=31_536_000)


def test_the_rotated_refresh_token_renews_the_next_time(keys: Keyring) -> None:
    stale = keys.access()
    for _ in range(3):
        stale = keys.renewed(stale)
        assert stale == keys.fake.token
    assert keys.renewals == 3


# ---------------------------------------------------------------- ahead of time


def test_a_token_is_renewed_before_it_ends(keys: Keyring) -> None:
    keys.fake.expires_in = 3600
    first = keys.renewed(keys.access())
    keys.now = NOON + timedelta(hours=1) - AHEAD
    assert keys.access() == first
    keys.now += timedelta(seconds=1)
    assert keys.access() == keys.fake.token != first
    assert keys.renewals == 2
    assert keys.expires_at() == keys.now + timedelta(hours=1)


@pytest.mark.parametrize("status", [400, 500])
def test_a_token_that_cannot_be_renewed_ahead_serves_to_its_end(keys: Keyring, status: int) -> None:
    keys.fake.expires_in = 3600
    first = keys.renewed(keys.access())
    keys.fake.fail("token", status, times=2)
    keys.now = NOON + timedelta(minutes=58)
    assert keys.access() == first
    keys.now = NOON + timedelta(minutes=60)
    with pytest.raises(CourierError):
        keys.access()
    assert keys.access() == keys.fake.token


def test_nobody_waits_for_a_renewal_ahead_of_time(keys: Keyring) -> None:
    keys.fake.expires_in = 3600
    first = keys.renewed(keys.access())
    keys.now = NOON + timedelta(minutes=58)
    keys.write(renewing_until=keys.now + RENEWING)
    assert keys.access() == first
    assert keys.renewals == 1


def test_a_token_without_a_refresh_token_serves_as_long_as_it_does(keys: Keyring) -> None:
    keys.settings = settings_of(keys.fake, yandex_client_id=None, yandex_client_secret=None, yandex_refresh_token=None)
    keys.access()
    keys.write(expires_at=NOON)
    assert keys.access() == keys.fake.token


# ---------------------------------------------------------------- new secrets


def test_new_secrets_in_the_settings_replace_what_is_stored(keys: Keyring) -> None:
    keys.renewed(keys.access())
    old = keys.row()
    keys.settings = settings_of(keys.fake, yandex_token="y0_given_by_an_administrator")
    assert keys.access() == "y0_given_by_an_administrator"
    assert (keys.row()["generation"], keys.row()["expires_at"]) == (3, None)
    assert keys.row()["given"] != old["given"]


def test_new_secrets_that_are_on_trial_replace_nobodys(keys: Keyring) -> None:
    """They are tried as they are, and whoever is at work goes on with what is stored."""
    keys.renewed(keys.access())
    before = keys.row()
    keys.settings, keys.trial = settings_of(keys.fake, yandex_token="y0_on_trial_and_of_no_use"), True
    assert keys.access() == "y0_on_trial_and_of_no_use"
    with pytest.raises(Refusal):
        keys.renewed("y0_on_trial_and_of_no_use")
    assert keys.row() == before


def test_a_new_refresh_token_is_not_used_up_by_a_trial(keys: Keyring) -> None:
    keys.access()
    before, asked = keys.row(), len(keys.fake.asked("token"))
    keys.settings, keys.trial = settings_of(keys.fake, yandex_token=None, yandex_refresh_token="1:another-one-of-no-use"), True
    with pytest.raises(Untried):
        keys.access()
    assert (keys.row(), len(keys.fake.asked("token"))) == (before, asked)


def test_secrets_that_are_in_use_are_renewed_in_a_trial_too(keys: Keyring) -> None:
    keys.trial = True
    assert keys.renewed(keys.access()) == keys.fake.token


def test_the_same_secrets_in_the_settings_leave_what_became_of_them(keys: Keyring) -> None:
    second = keys.renewed(keys.access())
    before = keys.row()
    assert keys.access() == second
    assert keys.row() == before


def test_a_process_with_the_old_settings_takes_the_new_secrets_from_the_database(keys: Keyring) -> None:
    async def asked(tokens: Tokens) -> str:
        await tokens.access()
        keys.settings = settings_of(keys.fake, yandex_token="y0_given_by_an_administrator")
        await asyncio.to_thread(keys.access)
        return await tokens.access()

    assert keys.ask(asked) == "y0_given_by_an_administrator"


def test_a_row_that_was_deleted_is_put_there_again(keys: Keyring) -> None:
    async def asked(tokens: Tokens) -> str:
        await tokens.access()
        with keys.engine.begin() as tx:
            tx.execute(tables.tokens.delete())
        with pytest.raises(Trouble):
            await tokens.access()
        return await tokens.access()

    assert keys.ask(asked) == keys.fake.token


# ---------------------------------------------------------------- never shown


def test_no_secret_is_in_a_representation_or_in_an_error_of_the_database(keys: Keyring) -> None:
    secrets = [keys.fake.token, keys.fake.refresh_token, keys.fake.client_secret]

    async def asked(tokens: Tokens) -> str:
        await tokens.access()
        return f"{tokens!r} {tokens._stored()!r} {keys.settings!r}"

    shown = keys.ask(asked)
    tables.tokens.drop(keys.engine)
    with pytest.raises(SQLAlchemyError) as failed:
        keys.access()
    assert not [secret for secret in secrets if secret in f"{shown} {failed.value} {failed.value!r}"]


def test_a_token_that_was_renewed_is_scrubbed_from_logs_as_the_first_is(keys: Keyring) -> None:
    second = keys.renewed(keys.access())
    assert scrub(f"{second} and {keys.fake.refresh_token}") == "*** and ***"
