"""The Yandex Disk token on both databases: shared by all processes, renewed ahead of time, and never shown."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy.exc import SQLAlchemyError

from apps.courier import tables
from apps.courier.clients.yandex_tokens import RENEW_BEFORE, RENEWAL_LEASE, Tokens
from apps.courier.errors import CourierError, NotCheckedError, PermanentError, TemporaryError
from apps.courier.redact import redact_text
from apps.courier.tests.disk_helpers import disk_settings
from apps.courier.tests.token_helpers import NOON, TokenKit, open_token_kit


@pytest.fixture
def token_kit(database_url: str) -> Iterator[TokenKit]:
    with open_token_kit(database_url) as token_kit:
        yield token_kit


# ---------------------------------------------------------------- a shared token


def test_token_of_the_settings_is_the_first(token_kit: TokenKit) -> None:
    assert token_kit.expires_at() is None
    assert token_kit.get_token() == token_kit.fake.token
    assert (token_kit.row()["generation"], token_kit.renewals, token_kit.expires_at()) == (1, 0, None)


def test_refresh_token_alone_is_enough(token_kit: TokenKit) -> None:
    token_kit.settings = disk_settings(token_kit.fake, yandex_token=None)
    assert token_kit.get_token() == token_kit.fake.token
    assert token_kit.get_token() == token_kit.fake.token
    assert token_kit.renewals == 1


def test_renewal_is_stored_with_its_refresh_token_and_expiry(token_kit: TokenKit) -> None:
    first = token_kit.get_token()
    second = token_kit.renew(first)
    assert second == token_kit.fake.token != first
    assert token_kit.row() | {"service": "", "settings_hash": ""} == {
        "service": "",
        "settings_hash": "",
        "access": second,
        "refresh": token_kit.fake.refresh_token,
        "expires_at": NOON + timedelta(seconds=31_536_000),
        "renewing_until": None,
        "generation": 2,
    }
    assert token_kit.get_token() == second
    assert token_kit.expires_at() == NOON + timedelta(seconds=31_536_000)


def test_rotated_refresh_token_renews_the_next_time(token_kit: TokenKit) -> None:
    stale = token_kit.get_token()
    for _ in range(3):
        stale = token_kit.renew(stale)
        assert stale == token_kit.fake.token
    assert token_kit.renewals == 3


# ---------------------------------------------------------------- ahead of time


def test_token_is_renewed_before_it_expires(token_kit: TokenKit) -> None:
    token_kit.fake.expires_in = 3600
    first = token_kit.renew(token_kit.get_token())
    token_kit.now = NOON + timedelta(hours=1) - RENEW_BEFORE
    assert token_kit.get_token() == first
    token_kit.now += timedelta(seconds=1)
    assert token_kit.get_token() == token_kit.fake.token != first
    assert token_kit.renewals == 2
    assert token_kit.expires_at() == token_kit.now + timedelta(hours=1)


@pytest.mark.parametrize("status", [400, 500])
def test_token_that_cannot_be_renewed_ahead_is_used_until_it_expires(token_kit: TokenKit, status: int) -> None:
    token_kit.fake.expires_in = 3600
    first = token_kit.renew(token_kit.get_token())
    token_kit.fake.fail("token", status, times=2)
    token_kit.now = NOON + timedelta(minutes=58)
    assert token_kit.get_token() == first
    token_kit.now = NOON + timedelta(minutes=60)
    with pytest.raises(CourierError):
        token_kit.get_token()
    assert token_kit.get_token() == token_kit.fake.token


def test_renewal_ahead_of_time_blocks_no_other_process(token_kit: TokenKit) -> None:
    token_kit.fake.expires_in = 3600
    first = token_kit.renew(token_kit.get_token())
    token_kit.now = NOON + timedelta(minutes=58)
    token_kit.write(renewing_until=token_kit.now + RENEWAL_LEASE)
    assert token_kit.get_token() == first
    assert token_kit.renewals == 1


def test_token_without_refresh_token_is_used_as_it_is(token_kit: TokenKit) -> None:
    token_kit.settings = disk_settings(
        token_kit.fake, yandex_client_id=None, yandex_client_secret=None, yandex_refresh_token=None
    )
    token_kit.get_token()
    token_kit.write(expires_at=NOON)
    assert token_kit.get_token() == token_kit.fake.token


# ---------------------------------------------------------------- new secrets


def test_new_secrets_replace_the_stored_ones(token_kit: TokenKit) -> None:
    token_kit.renew(token_kit.get_token())
    old = token_kit.row()
    token_kit.settings = disk_settings(token_kit.fake, yandex_token="y0_given_by_an_administrator")
    assert token_kit.get_token() == "y0_given_by_an_administrator"
    assert (token_kit.row()["generation"], token_kit.row()["expires_at"]) == (3, None)
    assert token_kit.row()["settings_hash"] != old["settings_hash"]


def test_dry_run_replaces_no_stored_secrets(token_kit: TokenKit) -> None:
    """The new secrets are tried, and running processes keep the stored ones."""
    token_kit.renew(token_kit.get_token())
    before = token_kit.row()
    token_kit.settings, token_kit.dry_run = (
        disk_settings(token_kit.fake, yandex_token="y0_on_trial_and_of_no_use"),
        True,
    )
    assert token_kit.get_token() == "y0_on_trial_and_of_no_use"
    with pytest.raises(PermanentError):
        token_kit.renew("y0_on_trial_and_of_no_use")
    assert token_kit.row() == before


def test_dry_run_does_not_use_up_a_new_refresh_token(token_kit: TokenKit) -> None:
    token_kit.get_token()
    before, asked = token_kit.row(), len(token_kit.fake.requests_for("token"))
    token_kit.settings, token_kit.dry_run = (
        disk_settings(token_kit.fake, yandex_token=None, yandex_refresh_token="1:another-one-of-no-use"),
        True,
    )
    with pytest.raises(NotCheckedError):
        token_kit.get_token()
    assert (token_kit.row(), len(token_kit.fake.requests_for("token"))) == (before, asked)


def test_dry_run_renews_secrets_that_are_in_use(token_kit: TokenKit) -> None:
    token_kit.dry_run = True
    assert token_kit.renew(token_kit.get_token()) == token_kit.fake.token


def test_unchanged_secrets_keep_the_renewed_token(token_kit: TokenKit) -> None:
    second = token_kit.renew(token_kit.get_token())
    before = token_kit.row()
    assert token_kit.get_token() == second
    assert token_kit.row() == before


def test_process_with_old_settings_uses_the_new_secrets(token_kit: TokenKit) -> None:
    async def asked(tokens: Tokens) -> str:
        await tokens.get_token()
        token_kit.settings = disk_settings(token_kit.fake, yandex_token="y0_given_by_an_administrator")
        await asyncio.to_thread(token_kit.get_token)
        return await tokens.get_token()

    assert token_kit.ask(asked) == "y0_given_by_an_administrator"


def test_deleted_row_is_stored_again(token_kit: TokenKit) -> None:
    async def asked(tokens: Tokens) -> str:
        await tokens.get_token()
        with token_kit.engine.begin() as tx:
            tx.execute(tables.tokens.delete())
        with pytest.raises(TemporaryError):
            await tokens.get_token()
        return await tokens.get_token()

    assert token_kit.ask(asked) == token_kit.fake.token


# ---------------------------------------------------------------- secrecy


def test_no_secret_is_in_a_representation_or_a_database_error(token_kit: TokenKit) -> None:
    secrets = [token_kit.fake.token, token_kit.fake.refresh_token, token_kit.fake.client_secret]

    async def asked(tokens: Tokens) -> str:
        await tokens.get_token()
        return f"{tokens!r} {tokens._stored()!r} {token_kit.settings!r}"

    shown = token_kit.ask(asked)
    tables.tokens.drop(token_kit.engine)
    with pytest.raises(SQLAlchemyError) as failed:
        token_kit.get_token()
    assert not [secret for secret in secrets if secret in f"{shown} {failed.value} {failed.value!r}"]


def test_renewed_token_is_redacted_from_logs(token_kit: TokenKit) -> None:
    second = token_kit.renew(token_kit.get_token())
    assert redact_text(f"{second} and {token_kit.fake.refresh_token}") == "*** and ***"
