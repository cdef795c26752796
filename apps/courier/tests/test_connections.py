"""The outside of one event loop: no renewal is lost when it is left, and a side that asks for a pause gets it, but never more than a day."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from apps.common.pauses import retry_after
from apps.courier import tokens as tokens_module
from apps.courier.answers import refused
from apps.courier.errors import LONGEST, Trouble
from apps.courier.outside import Outside
from apps.courier.redact import who
from apps.courier.tests.keyring import Keyring, keyring
from apps.courier.tests.reading import settings_of
from apps.courier.tokens import Tokens


@pytest.fixture
def keys(database_url: str) -> Iterator[Keyring]:
    with keyring(database_url) as keys:
        yield keys


@pytest.fixture
def outside(quick_path: Path) -> Iterator[Outside]:
    with keyring(f"sqlite:///{quick_path / 'outside'}.db") as keys:
        yield Outside(keys.settings, keys.engine)


def within(outside: Outside, question: Callable[[], Awaitable[None]]) -> None:
    """Ask it on an event loop of its own, with the outside open."""

    async def opened() -> None:
        async with asyncio.timeout(30), outside.open():
            await question()

    asyncio.run(opened())


# ---------------------------------------------------------------- left


@pytest.mark.parametrize("leaving", ["at its end", "cancelled"])
def test_the_answer_to_a_renewal_is_kept_though_the_process_stops(keys: Keyring, leaving: str) -> None:
    outside, gate = Outside(keys.settings, keys.engine), keys.fake.gate("token")

    async def stopped() -> None:
        asked = asyncio.create_task(outside.tokens.renewed(await outside.tokens.access()))
        await asyncio.to_thread(gate.arrived.wait, 10)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        asyncio.get_running_loop().call_later(0.1, gate.open)
        if leaving == "cancelled":
            raise asyncio.CancelledError

    if leaving == "cancelled":
        with pytest.raises(asyncio.CancelledError):
            within(outside, stopped)
    else:
        within(outside, stopped)
    assert (keys.row()["access"], keys.row()["refresh"]) == (keys.fake.token, keys.fake.refresh_token)
    assert (keys.row()["generation"], keys.row()["renewing_until"]) == (2, None)


def test_a_renewal_that_hangs_keeps_no_process_for_ever(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "PATIENCE", 0.1)
    begun = asyncio.Event()

    async def hangs(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Tokens, "_asked", hangs)

    async def stopped() -> None:
        asked = asyncio.create_task(outside.tokens.renewed(await outside.tokens.access()))
        await begun.wait()
        asked.cancel()

    within(outside, stopped)
    assert begun.is_set()


# ---------------------------------------------------------------- asked to be left alone


def test_the_longest_pause_holds_and_ends_by_itself(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    time, seen = [1000.0], list[float]()

    async def paused() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "time", lambda: time[0])
            for now, asked in ((1000.0, None), (1000.0, 30.0), (1000.0, 7.0), (1000.0, 40.0), (1039.0, None), (1040.0, None), (5000.0, None), (5000.0, 2.0)):
                time[0] = now
                if asked:
                    outside.pause(asked)
                seen.append(outside.pauses)

    within(outside, paused)
    assert seen == [0.0, 30.0, 30.0, 40.0, 1.0, 0.0, 0.0, 2.0]


def test_another_event_loop_has_its_own_pause(outside: Outside) -> None:
    async def other() -> None:
        assert outside.pauses == 0.0
        outside.pause(1000.0)

    async def one() -> None:
        outside.pause(100.0)
        await asyncio.to_thread(within, outside, other)
        assert 0.0 < outside.pauses <= 100.0

    within(outside, one)


def test_a_pause_is_forgotten_with_the_outside_that_was_told_of_it(outside: Outside) -> None:
    async def twice() -> None:
        async with outside.open():
            outside.pause(100.0)
        async with outside.open():
            assert outside.pauses == 0.0

    asyncio.run(twice())


@pytest.mark.parametrize("said", ["86401", "1e300", str(10**12), "Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -1200"])
def test_no_server_is_left_alone_for_longer_than_a_day(said: str) -> None:
    assert LONGEST == 86400.0
    error = refused(httpx.Response(429, headers={"Retry-After": said}))
    assert isinstance(error, Trouble)
    assert error.retry_after == LONGEST


@pytest.mark.parametrize("said", [f"Fri, {10**20} Dec 2026 23:59:59 GMT", f"Fri, 31 Dec 2026 23:59:59 +{10**20}", f"Fri, 31 Dec {10**20} 23:59:59 GMT"])
def test_a_date_that_there_cannot_be_is_no_wait(said: str) -> None:
    assert retry_after({"Retry-After": said}) is None


# ---------------------------------------------------------------- named in logs


def test_a_person_is_named_by_the_bot_they_talk_to_and_the_same_before_and_after_the_outside_is_open(quick_path: Path) -> None:
    with keyring(f"sqlite:///{quick_path / 'named'}.db") as keys:
        names = list[str]()
        for letter in "bcb":
            outside = Outside(settings_of(keys.fake, bot_token="1:" + letter * 30), keys.engine)
            names.append(who(7))

            async def named() -> None:
                assert who(7) == names[-1]

            within(outside, named)
    assert names[0] == names[2] != names[1]
