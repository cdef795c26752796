"""The clients of one event loop: closing loses no renewal, and pauses are kept, up to a day."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from apps.common.retry_after import parse_retry_after
from apps.courier.clients import yandex_tokens as tokens_module
from apps.courier.clients.connections import Clients
from apps.courier.clients.yandex_errors import response_error
from apps.courier.clients.yandex_tokens import Tokens
from apps.courier.errors import MAX_PAUSE, TemporaryError
from apps.courier.redact import user_alias
from apps.courier.tests.disk_helpers import disk_settings
from apps.courier.tests.token_helpers import TokenKit, open_token_kit


@pytest.fixture
def token_kit(database_url: str) -> Iterator[TokenKit]:
    with open_token_kit(database_url) as token_kit:
        yield token_kit


@pytest.fixture
def clients(quick_path: Path) -> Iterator[Clients]:
    with open_token_kit(f"sqlite:///{quick_path / 'outside'}.db") as token_kit:
        yield Clients(token_kit.settings, token_kit.engine)


def run_with_clients(clients: Clients, question: Callable[[], Awaitable[None]]) -> None:
    """Run a function in a new event loop with open clients."""

    async def run() -> None:
        async with asyncio.timeout(30), clients.open():
            await question()

    asyncio.run(run())


# ---------------------------------------------------------------- closing


@pytest.mark.parametrize("leaving", ["at its end", "cancelled"])
def test_renewed_token_is_stored_even_if_the_process_stops(token_kit: TokenKit, leaving: str) -> None:
    clients, gate = Clients(token_kit.settings, token_kit.engine), token_kit.fake.gate("token")

    async def stopped() -> None:
        asked = asyncio.create_task(clients.tokens.renew(await clients.tokens.get_token()))
        await asyncio.to_thread(gate.arrived.wait, 10)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        asyncio.get_running_loop().call_later(0.1, gate.open)
        if leaving == "cancelled":
            raise asyncio.CancelledError

    if leaving == "cancelled":
        with pytest.raises(asyncio.CancelledError):
            run_with_clients(clients, stopped)
    else:
        run_with_clients(clients, stopped)
    assert (token_kit.row()["access"], token_kit.row()["refresh"]) == (
        token_kit.fake.token,
        token_kit.fake.refresh_token,
    )
    assert (token_kit.row()["generation"], token_kit.row()["renewing_until"]) == (2, None)


def test_hanging_renewal_does_not_block_the_exit(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "RENEWAL_TIMEOUT", 0.1)
    begun = asyncio.Event()

    async def hangs(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Tokens, "_request_renewal", hangs)

    async def stopped() -> None:
        asked = asyncio.create_task(clients.tokens.renew(await clients.tokens.get_token()))
        await begun.wait()
        asked.cancel()

    run_with_clients(clients, stopped)
    assert begun.is_set()


# ---------------------------------------------------------------- pauses


def test_longest_pause_wins_and_ends(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    time, seen = [1000.0], list[float]()

    async def paused() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "time", lambda: time[0])
            for now, asked in (
                (1000.0, None),
                (1000.0, 30.0),
                (1000.0, 7.0),
                (1000.0, 40.0),
                (1039.0, None),
                (1040.0, None),
                (5000.0, None),
                (5000.0, 2.0),
            ):
                time[0] = now
                if asked:
                    clients.pause(asked)
                seen.append(clients.pause_left)

    run_with_clients(clients, paused)
    assert seen == [0.0, 30.0, 30.0, 40.0, 1.0, 0.0, 0.0, 2.0]


def test_each_event_loop_has_its_own_pause(clients: Clients) -> None:
    async def other() -> None:
        assert clients.pause_left == 0.0
        clients.pause(1000.0)

    async def one() -> None:
        clients.pause(100.0)
        await asyncio.to_thread(run_with_clients, clients, other)
        assert 0.0 < clients.pause_left <= 100.0

    run_with_clients(clients, one)


def test_pause_ends_with_its_clients(clients: Clients) -> None:
    async def twice() -> None:
        async with clients.open():
            clients.pause(100.0)
        async with clients.open():
            assert clients.pause_left == 0.0

    asyncio.run(twice())


@pytest.mark.parametrize(
    "said", ["86401", "1e300", str(10**12), "Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -1200"]
)
def test_pause_is_limited_to_a_day(said: str) -> None:
    assert MAX_PAUSE == 86400.0
    error = response_error(httpx.Response(429, headers={"Retry-After": said}))
    assert isinstance(error, TemporaryError)
    assert error.retry_after == MAX_PAUSE


@pytest.mark.parametrize(
    "said",
    [
        f"Fri, {10**20} Dec 2026 23:59:59 GMT",
        f"Fri, 31 Dec 2026 23:59:59 +{10**20}",
        f"Fri, 31 Dec {10**20} 23:59:59 GMT",
    ],
)
def test_impossible_date_is_no_pause(said: str) -> None:
    assert parse_retry_after({"Retry-After": said}) is None


# ---------------------------------------------------------------- user aliases


def test_alias_depends_on_the_bot_and_is_stable_when_clients_open(
    quick_path: Path,
) -> None:
    with open_token_kit(f"sqlite:///{quick_path / 'named'}.db") as token_kit:
        names = list[str]()
        for letter in "bcb":
            clients = Clients(disk_settings(token_kit.fake, bot_token="1:" + letter * 30), token_kit.engine)
            names.append(user_alias(7))

            async def named() -> None:
                assert user_alias(7) == names[-1]

            run_with_clients(clients, named)
    assert names[0] == names[2] != names[1]
