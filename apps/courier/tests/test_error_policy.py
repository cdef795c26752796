"""Every error of the external systems: the resulting state, its cost in tries, and the message to the user."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from apps.courier import formatting, jobs
from apps.courier.clients import telegram as telegrams
from apps.courier.delivery_attempt import UNREACHABLE_PAUSE
from apps.courier.tests.courier_kit import ADMIN, CLAIMED, DELIVERED, DOWNLOADING, FOLDER, READER, STREAMING, CourierKit
from interlock import Backoff

NAME, CONTENT = "emma.pdf", b"It is a truth " * 50_000
LONG_ENOUGH = 3600.0
"""Seconds after which every backoff has ended."""
Fault = Callable[[CourierKit], object]
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""The policy does not depend on the database. `test_delivery.py` and `test_doubt.py` run on both."""


@dataclass(frozen=True)
class Case:
    """A fault and its result. `doubted`: the file may have arrived despite the fault."""

    fault: Fault
    path: list[tuple[str | None, str | None]]
    doubted: bool = False
    copies: int = 1


def withhold_the_end(kit: CourierKit) -> None:
    """Keep back the file's last byte. Otherwise the kernel may buffer the whole upload before the fault occurs."""
    kit.yandex.gate("content", after=len(CONTENT) - 1)


RETRY_DOWNLOAD = [("DOWNLOADING", "QUEUED")]
RETRY_STREAM = [("STREAMING", "QUEUED")]

TEMPORARY = {
    "disk: timeout": Case(lambda kit: kit.yandex.stall("resources"), DOWNLOADING + RETRY_DOWNLOAD),
    "disk: 500": Case(lambda kit: kit.yandex.fail("resources", 500), DOWNLOADING + RETRY_DOWNLOAD),
    "disk: 408": Case(lambda kit: kit.yandex.fail("resources", 408), DOWNLOADING + RETRY_DOWNLOAD),
    "disk: 425 at the link": Case(lambda kit: kit.yandex.fail("download", 425), DOWNLOADING + RETRY_DOWNLOAD),
    "disk: 503 at the link": Case(lambda kit: kit.yandex.fail("download", 503), DOWNLOADING + RETRY_DOWNLOAD),
    "disk: 502 at the first byte": Case(lambda kit: kit.yandex.fail("content", 502), STREAMING + RETRY_STREAM),
    "disk: 429": Case(lambda kit: kit.yandex.fail("resources", 429), DOWNLOADING + RETRY_DOWNLOAD),
    "disk: wrong bytes": Case(lambda kit: kit.yandex.corrupt(f"{FOLDER}/{NAME}"), STREAMING + RETRY_STREAM),
    "telegram: cut in mid-stream": Case(
        lambda kit: (withhold_the_end(kit), kit.telegram.cut_upload("sendDocument", after=1000)),
        STREAMING + RETRY_STREAM,
    ),
    "telegram: 500 before the end": Case(
        lambda kit: (withhold_the_end(kit), kit.telegram.fail("sendDocument", 500, early=True)),
        STREAMING + RETRY_STREAM,
    ),
    "telegram: 429": Case(lambda kit: kit.telegram.fail("sendDocument", 429, retry_after=5), STREAMING + RETRY_STREAM),
    "telegram: 500": Case(lambda kit: kit.telegram.fail("sendDocument", 500), STREAMING + RETRY_STREAM, doubted=True),
    "telegram: timeout": Case(lambda kit: kit.telegram.stall("sendDocument"), STREAMING + RETRY_STREAM, doubted=True),
    "telegram: answer lost": Case(
        lambda kit: kit.telegram.lose_answer("sendDocument"), STREAMING + RETRY_STREAM, doubted=True, copies=2
    ),
}


def shorten_timeouts(kit: CourierKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect silence quickly."""
    monkeypatch.setattr(kit.courier.clients, "_timeout", 0.7)
    monkeypatch.setattr(telegrams, "ANSWER_TIMEOUT", 0.7)


def documents(kit: CourierKit, user: int = READER) -> list[str]:
    return [message.document.name for message in kit.telegram.chat(user) if message.document]


def texts(kit: CourierKit, user: int = READER) -> list[str]:
    return [message.text for message in kit.telegram.chat(user) if message.text]


@pytest.mark.parametrize("name", TEMPORARY)
def test_temporary_error_costs_one_try_and_is_retried(
    kit: CourierKit, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = TEMPORARY[name]
    shorten_timeouts(kit, monkeypatch)
    job = kit.order(file_id=kit.add_file(NAME, CONTENT))
    row.fault(kit)
    kit.run()
    waiting = kit.app.get(job)
    assert (waiting.state, waiting.tries_left, kit.transitions(job)) == ("QUEUED", 2, row.path)
    assert (waiting.last_error or "").startswith("temporary: ")
    kit.yandex.clear_faults()
    kit.run_after(LONG_ENOUGH)
    assert kit.transitions(job) == [*row.path, *DELIVERED[1:]]
    assert documents(kit) == [NAME] * row.copies
    assert texts(kit) == ([formatting.render("en", "doubt", name="emma.pdf")] if row.doubted else [])
    assert kit.rows("SELECT doubted FROM courier_deliveries") == [(row.doubted,)]
    assert kit.app.verify().ok


@pytest.mark.parametrize("system", ["yandex", "telegram"])
def test_unreachable_system_costs_one_try_and_leaves_no_doubt(
    kit: CourierKit, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker also pauses new deliveries."""
    paused = list[float]()
    monkeypatch.setattr(kit.courier.clients, "pause", paused.append)
    job = kit.order(file_id=kit.add_file(NAME, CONTENT))
    server = getattr(kit, system)
    server.down()
    kit.run()
    assert (kit.state(job), kit.app.get(job).tries_left, paused) == ("QUEUED", 2, [UNREACHABLE_PAUSE])
    server.up()
    kit.run_after(LONG_ENOUGH)
    assert (kit.state(job), documents(kit), texts(kit)) == ("DELIVERED", [NAME], [])


@pytest.mark.parametrize("system", ["yandex", "telegram"])
def test_retry_after_of_a_429_is_respected(kit: CourierKit, system: str) -> None:
    job = kit.order()
    if system == "yandex":
        kit.yandex.fail("resources", 429, retry_after=700)
    else:
        kit.telegram.fail("sendDocument", 429, retry_after=700)
    kit.run()
    kit.run_after(699.5)
    assert (kit.state(job), kit.app.get(job).attempt) == ("QUEUED", 1)
    kit.run_after(1.0)
    assert (kit.state(job), kit.app.get(job).attempt) == ("DELIVERED", 2)


@pytest.mark.parametrize("asked", [0, 1])
def test_short_retry_after_does_not_shorten_the_backoff(
    kit: CourierKit, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    """Otherwise all three tries would be spent within seconds."""
    monkeypatch.setattr(jobs, "BACKOFF", Backoff(30.0, factor=8.0, cap=600.0, jitter=False))
    job = kit.order()
    kit.yandex.fail("resources", 429, retry_after=asked, times=2)
    kit.run()
    waits = list[float]()
    for _ in range(2):
        waits.append((kit.app.get(job).due_at - kit.clock.now()).total_seconds())
        kit.run_after(waits[-1])
    assert (waits, kit.state(job)) == ([30.0, 240.0], "DELIVERED")


@pytest.mark.parametrize("system", ["yandex", "telegram"])
def test_rate_limit_pauses_all_deliveries_without_cost(
    kit: CourierKit, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other deliveries are postponed before they send a request."""
    asked, clients = list[float](), kit.courier.clients
    monkeypatch.setattr(clients, "pause", asked.append)
    kit.order()
    if system == "yandex":
        kit.yandex.fail("resources", 429, retry_after=30)
    else:
        kit.telegram.fail("sendDocument", 429, retry_after=30)
    kit.run()
    monkeypatch.undo()
    assert asked == [30.0]

    @asynccontextmanager
    async def paused_lifespan() -> AsyncGenerator[None]:
        async with clients.open():
            clients.pause(asked[0])
            yield

    other = kit.order(READER, kit.add_file("persuasion.pdf"))
    kit.yandex.log.clear()
    with monkeypatch.context() as patched:
        patched.setattr(kit.app, "lifespan", paused_lifespan)
        kit.run()
    assert (kit.transitions(other), kit.app.get(other).tries_left, kit.yandex.log) == (
        DOWNLOADING + RETRY_DOWNLOAD,
        3,
        [],
    )
    kit.run_after(31)
    assert kit.state(other) == "DELIVERED"


def test_interrupted_download_is_resumed_without_cost(kit: CourierKit) -> None:
    job = kit.order(file_id=kit.add_file(NAME, CONTENT))
    kit.yandex.cut("content", after=300_000)
    kit.run()
    assert (kit.transitions(job), kit.app.get(job).attempt) == (DELIVERED, 1)
    assert [asked.range is not None for asked in kit.yandex.requests_for("content")] == [False, True]


def test_rejected_token_is_renewed_without_cost(kit: CourierKit) -> None:
    job = kit.order()
    kit.yandex.revoke()
    kit.run()
    assert (kit.transitions(job), kit.app.get(job).attempt, len(kit.yandex.requests_for("token"))) == (DELIVERED, 1, 1)


PERMANENT = {
    "disk: 403": Case(lambda kit: kit.yandex.fail("resources", 403), DOWNLOADING),
    "disk: 404": Case(lambda kit: kit.yandex.remove(f"{FOLDER}/{NAME}"), DOWNLOADING),
    "disk: 401 twice": Case(lambda kit: kit.yandex.fail("resources", 401, times=2), DOWNLOADING),
    "disk: renewal refused": Case(lambda kit: kit.yandex.revoke(refresh=True), DOWNLOADING),
    "telegram: 413": Case(lambda kit: kit.telegram.fail("sendDocument", 413), STREAMING),
    "telegram: 400": Case(
        lambda kit: kit.telegram.fail("sendDocument", 400, description="Bad Request: not enough rights"), STREAMING
    ),
}
CODES = {
    "disk: 403": "forbidden",
    "disk: 404": "not_found",
    "disk: 401 twice": "disk_token_rejected",
    "disk: renewal refused": "disk_token_rejected",
    "telegram: 413": "too_big",
    "telegram: 400": "refused",
}


@pytest.mark.parametrize("name", PERMANENT)
def test_permanent_error_fails_at_once_and_notifies_the_user(kit: CourierKit, name: str) -> None:
    row, code = PERMANENT[name], CODES[name]
    job = kit.order(file_id=kit.add_file(NAME, CONTENT))
    row.fault(kit)
    kit.run()
    failed = kit.app.get(job)
    assert (failed.attempt, kit.transitions(job)) == (1, [*row.path, (row.path[-1][1], "FAILED")])
    assert (failed.last_error or "").startswith(f"{code}: ")
    assert texts(kit) == [
        formatting.render("en", "failed", name=NAME, reason=formatting.render_failure("en", f"{code}: "))
    ]
    assert documents(kit) == []


def test_too_large_file_fails_before_the_transfer(kit: CourierKit) -> None:
    kit.add_user()
    job = kit.order(READER, kit.add_file(NAME, b"x"))
    kit.yandex.nodes[f"{FOLDER}/{NAME}"].body = _huge(kit.settings.max_file_size + 1)
    kit.run()
    assert kit.transitions(job) == [*DOWNLOADING, ("DOWNLOADING", "FAILED")]
    assert (kit.yandex.served, kit.yandex.requests_for("download"), kit.telegram.requests_for("sendDocument")) == (
        0,
        [],
        [],
    )
    assert formatting.render_failure("en", "too_big: ") in texts(kit)[0]


def _huge(size: int) -> object:
    from apps.courier.tests.fake_yandex import GeneratedContent

    return GeneratedContent(size)


def test_empty_file_fails_and_notifies_the_user(kit: CourierKit) -> None:
    kit.add_user()
    job = kit.order(READER, kit.add_file(NAME, b""))
    kit.run()
    assert (kit.transitions(job), kit.telegram.requests_for("sendDocument")) == (
        [*DOWNLOADING, ("DOWNLOADING", "FAILED")],
        [],
    )
    assert formatting.render_failure("en", "empty: ") in texts(kit)[0]


def test_user_who_blocked_the_bot_is_not_notified(kit: CourierKit) -> None:
    job = kit.order()
    kit.telegram.person(READER).block_bot()
    kit.run()
    assert (kit.state(job), kit.app.get(job).attempt) == ("FAILED", 1)
    assert (kit.app.get(job).last_error or "").startswith("blocked: ")
    assert [tell.state for tell in kit.app.jobs(kind="notify")] == ["SUCCEEDED"]


def test_third_failure_is_final_and_notifies_the_user(kit: CourierKit) -> None:
    job = kit.order()
    kit.yandex.fail("resources", 500, times=3)
    kit.run()
    kit.run_after(LONG_ENOUGH)
    assert (kit.state(job), texts(kit)) == ("QUEUED", [])
    kit.run_after(LONG_ENOUGH)
    failed = kit.app.get(job)
    assert (failed.state, failed.attempt, failed.tries_left) == ("FAILED", 3, 0)
    assert texts(kit) == [
        formatting.render("en", "failed", name="emma.pdf", reason=formatting.render_failure("en", failed.last_error))
    ]


def test_blocked_user_gets_nothing(kit: CourierKit) -> None:
    """This is checked when the attempt starts, after the claim."""
    job = kit.order()
    kit.add_user(READER, "BLOCKED")
    kit.run()
    assert kit.transitions(job) == [*CLAIMED, ("CLAIMED", "FAILED")]
    assert (kit.yandex.log, documents(kit)) == ([], [])
    assert formatting.render_failure("en", "inactive: ") in texts(kit)[0]


def test_expired_delivery_notifies_the_user(kit: CourierKit) -> None:
    job = kit.order()
    kit.run_after(kit.settings.ttl + 1)
    assert kit.transitions(job) == [(None, "QUEUED"), ("QUEUED", "EXPIRED")]
    assert texts(kit) == [formatting.render("en", "expired", name="emma.pdf")]
    assert kit.yandex.log == []


def test_administrators_are_alerted_once_about_a_rejected_token(kit: CourierKit) -> None:
    """The next alert needs a new token, however many deliveries fail."""
    kit.add_user(ADMIN)
    jobs = [kit.order(), kit.order(READER, kit.add_file("persuasion.pdf"))]
    kit.yandex.revoke(refresh=True)
    kit.run()
    assert [kit.state(job) for job in jobs] == ["FAILED", "FAILED"]
    assert texts(kit, ADMIN) == [formatting.render("en", "alert_token")]


def test_administrators_are_alerted_once_even_if_each_renewal_succeeds(kit: CourierKit) -> None:
    kit.add_user(ADMIN)
    kit.add_user(READER)
    kit.yandex.fail("resources", 401, times=4)
    for file in (kit.add_file("emma.pdf"), kit.add_file("persuasion.pdf")):
        job = kit.order(READER, file)
        kit.run()
        assert kit.state(job) == "FAILED"
    assert len(kit.yandex.requests_for("token")) == 2
    assert texts(kit, ADMIN) == [formatting.render("en", "alert_token")]
