"""Renewal of the Yandex Disk token on both databases: one process renews, the others wait, a failure loses nothing."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from apps.courier.clients import yandex_tokens as tokens_module
from apps.courier.clients.yandex_tokens import RENEWAL_LEASE, Tokens
from apps.courier.errors import NotSentError, PermanentError, TemporaryError
from apps.courier.tests.disk_helpers import assert_no_secrets, disk_settings
from apps.courier.tests.token_helpers import NOON, TokenKit, open_token_kit


@pytest.fixture
def token_kit(database_url: str) -> Iterator[TokenKit]:
    with open_token_kit(database_url) as token_kit:
        yield token_kit


# ---------------------------------------------------------------- several processes


def test_late_process_gets_the_token_that_another_renewed(token_kit: TokenKit) -> None:
    first = token_kit.get_token()
    second = token_kit.renew(first)
    assert token_kit.renew(first) == second
    assert token_kit.renewals == 1


def test_concurrent_renewals_ask_yandex_once(token_kit: TokenKit, monkeypatch: pytest.MonkeyPatch) -> None:
    first, waiting, all_wait = token_kit.get_token(), set[int](), threading.Event()

    async def sleep(seconds: float) -> None:
        waiting.add(threading.get_ident())
        if len(waiting) == 4:
            all_wait.set()
        await asyncio.sleep(seconds)

    monkeypatch.setattr(tokens_module, "sleep", sleep)
    gate = token_kit.fake.gate("token")
    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(token_kit.renew, first) for _ in range(5)]
        there = gate.arrived.wait(20) and all_wait.wait(20)
        gate.open()
        assert {answer.result(30) for answer in answers} == {token_kit.fake.token}
    assert there
    assert token_kit.fake.token != first
    assert token_kit.renewals == 1


def test_no_transaction_is_open_during_the_request(token_kit: TokenKit) -> None:
    first = token_kit.get_token()
    gate = token_kit.fake.gate("token")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(token_kit.renew, first)
        assert gate.arrived.wait(10)
        token_kit.write(expires_at=NOON)  # SQLite has one writer at a time, PostgreSQL one per row
        gate.open()
        assert answer.result(30) == token_kit.fake.token


def test_renewal_of_a_dead_process_is_taken_over(token_kit: TokenKit) -> None:
    first = token_kit.get_token()
    token_kit.write(renewing_until=NOON + RENEWAL_LEASE)
    token_kit.now = NOON + RENEWAL_LEASE
    assert token_kit.renew(first) == token_kit.fake.token
    assert token_kit.row()["renewing_until"] is None


def test_renewal_of_a_live_process_is_awaited(token_kit: TokenKit, monkeypatch: pytest.MonkeyPatch) -> None:
    first, looked = token_kit.get_token(), threading.Event()
    token_kit.write(renewing_until=NOON + RENEWAL_LEASE)

    async def sleep(seconds: float) -> None:
        if looked.is_set():
            token_kit.now = NOON + RENEWAL_LEASE
        else:
            assert token_kit.renewals == 0
            looked.set()

    monkeypatch.setattr(tokens_module, "sleep", sleep)
    assert token_kit.renew(first) == token_kit.fake.token
    assert looked.is_set()


def test_answer_is_stored_even_if_the_caller_is_cancelled(token_kit: TokenKit) -> None:
    gate = token_kit.fake.gate("token")

    async def cancelled(tokens: Tokens) -> None:
        renew_once = asyncio.create_task(tokens.renew(await tokens.get_token()))
        await asyncio.to_thread(gate.arrived.wait, 10)
        renew_once.cancel()
        with pytest.raises(asyncio.CancelledError):
            await renew_once
        gate.open()
        await tokens.wait_for_renewals()

    token_kit.ask(cancelled)
    assert (token_kit.row()["access"], token_kit.row()["refresh"]) == (
        token_kit.fake.token,
        token_kit.fake.refresh_token,
    )
    assert token_kit.row()["generation"] == 2


def test_renewal_may_return_the_same_token(token_kit: TokenKit) -> None:
    token_kit.fake.keeps_token = True
    first = token_kit.get_token()
    assert token_kit.renew(first) == first
    assert token_kit.row()["generation"] == 2
    assert token_kit.renew(first) == first
    assert token_kit.renewals == 2


# ---------------------------------------------------------------- failures


def test_token_without_refresh_token_cannot_be_renewed(token_kit: TokenKit) -> None:
    token_kit.settings = disk_settings(
        token_kit.fake, yandex_client_id=None, yandex_client_secret=None, yandex_refresh_token=None
    )
    with pytest.raises(PermanentError, match="no refresh token") as refused:
        token_kit.renew(token_kit.get_token())
    assert refused.value.code == "disk_token_rejected"
    assert token_kit.renewals == 0


@pytest.mark.parametrize("wrong", ["refresh", "secret"])
def test_rejected_renewal_is_permanent_and_changes_nothing(token_kit: TokenKit, wrong: str) -> None:
    if wrong == "refresh":
        token_kit.fake.revoke(refresh=True)
    else:
        token_kit.settings = disk_settings(token_kit.fake, yandex_client_secret="no-longer-the-secret")
    first = token_kit.get_token()
    before = token_kit.row()
    with pytest.raises(PermanentError, match="rejects the refresh token") as refused:
        token_kit.renew(first)
    assert refused.value.code == "disk_token_rejected"
    assert "no-longer" not in str(refused.value)
    assert token_kit.row() == before


def test_failed_renewal_can_be_retried_at_once(token_kit: TokenKit) -> None:
    first = token_kit.get_token()
    before = token_kit.row()
    for status in (503, 408, 425, 429):
        token_kit.fake.fail("token", status)
        with pytest.raises(TemporaryError) as trouble:
            token_kit.renew(first)
        assert trouble.value.status_code == status
    token_kit.fake.cut("token")
    with pytest.raises(TemporaryError, match="broke"):
        token_kit.renew(first)
    token_kit.fake.down()
    with pytest.raises(NotSentError):
        token_kit.renew(first)
    assert token_kit.row() == before
    token_kit.fake.up()
    assert token_kit.renew(first) == token_kit.fake.token


def test_renewal_timeout_is_temporary(token_kit: TokenKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "RENEWAL_TIMEOUT", 0.2)
    first = token_kit.get_token()
    token_kit.fake.stall("token")
    with pytest.raises(TemporaryError, match="in time"):
        token_kit.renew(first)
    assert token_kit.renew(first) == token_kit.fake.token


def test_rejected_renewal_returns_the_token_of_another_process(token_kit: TokenKit) -> None:
    first = token_kit.get_token()
    gate = token_kit.fake.gate("token")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(token_kit.renew, first)  # it takes longer than its claim
        assert gate.arrived.wait(10)
        token_kit.now = NOON + RENEWAL_LEASE
        second = token_kit.renew(first)
        gate.open()
        assert answer.result(30) == second
    assert token_kit.renewals == 2
    assert (token_kit.row()["access"], token_kit.row()["renewing_until"]) == (second, None)


def test_unreadable_answer_is_temporary_and_changes_nothing(token_kit: TokenKit) -> None:
    first, before = token_kit.get_token(), token_kit.row()

    async def renew_with(answer: bytes) -> str:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=answer))
        async with httpx.AsyncClient(transport=transport) as http:
            return await Tokens(token_kit.engine, http, token_kit.settings, now=lambda: NOON).renew(first)

    for answer in (
        b"",
        b"<html>",
        b"[]",
        b'{"access_token": ""}',
        b'{"access_token": "y0_abc", "expires_in": "soon"}',
    ):
        with pytest.raises(TemporaryError, match="not readable") as error:
            asyncio.run(renew_with(answer))
        assert_no_secrets(error.value, token_kit.fake, "y0_abc")
        assert token_kit.row() == before
