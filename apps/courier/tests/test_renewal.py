"""Renewing the token of Yandex Disk, on both databases: one process does it, the others wait, and a renewal that fails loses nothing."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from apps.courier import tokens as tokens_module
from apps.courier.errors import Refusal, Trouble, Unsent
from apps.courier.tests.keyring import NOON, Keyring, keyring
from apps.courier.tests.reading import innocent, settings_of
from apps.courier.tokens import RENEWING, Tokens


@pytest.fixture
def keys(database_url: str) -> Iterator[Keyring]:
    with keyring(database_url) as keys:
        yield keys


# ---------------------------------------------------------------- one of many


def test_whoever_comes_late_gets_the_token_that_another_has_renewed(keys: Keyring) -> None:
    first = keys.access()
    second = keys.renewed(first)
    assert keys.renewed(first) == second
    assert keys.renewals == 1


def test_many_that_renew_at_once_ask_yandex_once_and_all_get_the_new_token(keys: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    first, waiting, all_wait = keys.access(), set[int](), threading.Event()

    async def sleep(seconds: float) -> None:
        waiting.add(threading.get_ident())
        if len(waiting) == 4:
            all_wait.set()
        await asyncio.sleep(seconds)

    monkeypatch.setattr(tokens_module, "sleep", sleep)
    gate = keys.fake.gate("token")
    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(keys.renewed, first) for _ in range(5)]
        there = gate.arrived.wait(20) and all_wait.wait(20)
        gate.open()
        assert {answer.result(30) for answer in answers} == {keys.fake.token}
    assert there
    assert keys.fake.token != first
    assert keys.renewals == 1


def test_no_transaction_is_open_while_yandex_is_asked(keys: Keyring) -> None:
    first = keys.access()
    gate = keys.fake.gate("token")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(keys.renewed, first)
        assert gate.arrived.wait(10)
        keys.write(expires_at=NOON)  # SQLite has one writer at a time, PostgreSQL one per row
        gate.open()
        assert answer.result(30) == keys.fake.token


def test_a_renewal_whose_process_died_is_taken_over_when_its_time_is_over(keys: Keyring) -> None:
    first = keys.access()
    keys.write(renewing_until=NOON + RENEWING)
    keys.now = NOON + RENEWING
    assert keys.renewed(first) == keys.fake.token
    assert keys.row()["renewing_until"] is None


def test_a_renewal_that_may_be_alive_is_waited_for(keys: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    first, looked = keys.access(), threading.Event()
    keys.write(renewing_until=NOON + RENEWING)

    async def sleep(seconds: float) -> None:
        if looked.is_set():
            keys.now = NOON + RENEWING
        else:
            assert keys.renewals == 0
            looked.set()

    monkeypatch.setattr(tokens_module, "sleep", sleep)
    assert keys.renewed(first) == keys.fake.token
    assert looked.is_set()


def test_what_yandex_answers_is_kept_though_the_caller_is_cancelled(keys: Keyring) -> None:
    gate = keys.fake.gate("token")

    async def cancelled(tokens: Tokens) -> None:
        asked = asyncio.create_task(tokens.renewed(await tokens.access()))
        await asyncio.to_thread(gate.arrived.wait, 10)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        gate.open()
        await tokens.finish()

    keys.ask(cancelled)
    assert (keys.row()["access"], keys.row()["refresh"]) == (keys.fake.token, keys.fake.refresh_token)
    assert keys.row()["generation"] == 2


def test_a_renewal_may_answer_the_same_token(keys: Keyring) -> None:
    keys.fake.keeps_token = True
    first = keys.access()
    assert keys.renewed(first) == first
    assert keys.row()["generation"] == 2
    assert keys.renewed(first) == first
    assert keys.renewals == 2


# ---------------------------------------------------------------- refused


def test_without_a_refresh_token_there_is_nothing_to_renew(keys: Keyring) -> None:
    keys.settings = settings_of(keys.fake, yandex_client_id=None, yandex_client_secret=None, yandex_refresh_token=None)
    with pytest.raises(Refusal, match="none to renew it with") as refused:
        keys.renewed(keys.access())
    assert refused.value.code == "shut_out"
    assert keys.renewals == 0


@pytest.mark.parametrize("wrong", ["refresh", "secret"])
def test_a_renewal_that_yandex_refuses_is_a_refusal_and_changes_nothing(keys: Keyring, wrong: str) -> None:
    if wrong == "refresh":
        keys.fake.revoke(refresh=True)
    else:
        keys.settings = settings_of(keys.fake, yandex_client_secret="no-longer-the-secret")
    first = keys.access()
    before = keys.row()
    with pytest.raises(Refusal, match="refuses to renew") as refused:
        keys.renewed(first)
    assert refused.value.code == "shut_out"
    assert "no-longer" not in str(refused.value)
    assert keys.row() == before


def test_a_renewal_that_fails_may_be_tried_again_at_once(keys: Keyring) -> None:
    first = keys.access()
    before = keys.row()
    for status in (503, 408, 425, 429):
        keys.fake.fail("token", status)
        with pytest.raises(Trouble) as trouble:
            keys.renewed(first)
        assert trouble.value.status_code == status
    keys.fake.cut("token")
    with pytest.raises(Trouble, match="broke"):
        keys.renewed(first)
    keys.fake.down()
    with pytest.raises(Unsent):
        keys.renewed(first)
    assert keys.row() == before
    keys.fake.up()
    assert keys.renewed(first) == keys.fake.token


def test_a_renewal_that_gets_no_answer_is_trouble(keys: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "PATIENCE", 0.2)
    first = keys.access()
    keys.fake.stall("token")
    with pytest.raises(Trouble, match="in time"):
        keys.renewed(first)
    assert keys.renewed(first) == keys.fake.token


def test_whoever_is_refused_looks_whether_another_has_succeeded_meanwhile(keys: Keyring) -> None:
    first = keys.access()
    gate = keys.fake.gate("token")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(keys.renewed, first)  # it takes so long that its time is over
        assert gate.arrived.wait(10)
        keys.now = NOON + RENEWING
        second = keys.renewed(first)
        gate.open()
        assert answer.result(30) == second
    assert keys.renewals == 2
    assert (keys.row()["access"], keys.row()["renewing_until"]) == (second, None)


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'{"access_token": ""}', b'{"access_token": "y0_abc", "expires_in": "soon"}'])
def test_an_answer_that_is_no_token_is_trouble_and_changes_nothing(keys: Keyring, answer: bytes) -> None:
    first, before = keys.access(), keys.row()

    async def asked() -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=answer))) as http:
            return await Tokens(keys.engine, http, keys.settings, now=lambda: NOON).renewed(first)

    with pytest.raises(Trouble, match="cannot read") as trouble:
        asyncio.run(asked())
    innocent(trouble.value, keys.fake, "y0_abc")
    assert keys.row() == before
