"""What becomes of a delivery for everything that can go wrong outside: the state, the tries it cost, and what its user is told."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from apps.courier import jobs, words
from apps.courier import telegram as telegrams
from apps.courier.carriage import AWAY
from apps.courier.tests.kit import ADMIN, BEGUN, CLAIMED, DELIVERED, FOLDER, READER, STREAMED, Office
from interlock import Backoff

NAME, CONTENT = "emma.pdf", b"It is a truth " * 50_000
ENOUGH = 3600.0
"""Seconds after which every backoff is over."""
Fault = Callable[[Office], object]


@dataclass(frozen=True)
class Row:
    """A fault, and what it comes to. `doubted`: whether the file may have arrived in spite of it, which only Telegram's last word can leave open."""

    fault: Fault
    path: list[tuple[str | None, str | None]]
    doubted: bool = False
    copies: int = 1


BACK = [("DOWNLOADING", "QUEUED")]
BROKEN = [("STREAMING", "QUEUED")]

PASSING = {
    "disk: timeout": Row(lambda office: office.yandex.stall("resources"), BEGUN + BACK),
    "disk: 500": Row(lambda office: office.yandex.fail("resources", 500), BEGUN + BACK),
    "disk: 408": Row(lambda office: office.yandex.fail("resources", 408), BEGUN + BACK),
    "disk: 425 at the link": Row(lambda office: office.yandex.fail("download", 425), BEGUN + BACK),
    "disk: 503 at the link": Row(lambda office: office.yandex.fail("download", 503), BEGUN + BACK),
    "disk: 502 at the first byte": Row(lambda office: office.yandex.fail("content", 502), STREAMED + BROKEN),
    "disk: 429": Row(lambda office: office.yandex.fail("resources", 429), BEGUN + BACK),
    "disk: wrong bytes": Row(lambda office: office.yandex.corrupt(f"{FOLDER}/{NAME}"), STREAMED + BROKEN),
    "telegram: cut in mid-stream": Row(lambda office: office.telegram.cut("sendDocument", after=1000), STREAMED + BROKEN),
    "telegram: 500 before the end": Row(lambda office: office.telegram.fail("sendDocument", 500, early=True), STREAMED + BROKEN),
    "telegram: 429": Row(lambda office: office.telegram.fail("sendDocument", 429, retry_after=5), STREAMED + BROKEN),
    "telegram: 500": Row(lambda office: office.telegram.fail("sendDocument", 500), STREAMED + BROKEN, doubted=True),
    "telegram: timeout": Row(lambda office: office.telegram.stall("sendDocument"), STREAMED + BROKEN, doubted=True),
    "telegram: answer lost": Row(lambda office: office.telegram.lose("sendDocument"), STREAMED + BROKEN, doubted=True, copies=2),
}


def hurried(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed soon."""
    monkeypatch.setattr(office.courier.outside, "_patience", 0.7)
    monkeypatch.setattr(telegrams, "ANSWER", 0.7)


def documents(office: Office, user: int = READER) -> list[str]:
    return [message.document.name for message in office.telegram.chat(user) if message.document]


def told(office: Office, user: int = READER) -> list[str]:
    return [message.text for message in office.telegram.chat(user) if message.text]


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_costs_one_try_and_is_tried_again(office: Office, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = PASSING[name]
    hurried(office, monkeypatch)
    job = office.order(file_id=office.file(NAME, CONTENT))
    row.fault(office)
    office.run()
    waiting = office.app.get(job)
    assert (waiting.state, waiting.tries_left, office.path(job)) == ("QUEUED", 2, row.path)
    assert (waiting.last_error or "").startswith("trouble: ")
    office.yandex.heal()
    office.later(ENOUGH)
    assert office.path(job) == [*row.path, *DELIVERED[1:]]
    assert documents(office) == [NAME] * row.copies
    assert told(office) == ([words.say("en", "doubt", name="emma.pdf")] if row.doubted else [])
    assert office.rows("SELECT doubted FROM courier_deliveries") == [(row.doubted,)]
    assert office.app.verify().ok


@pytest.mark.parametrize("side", ["yandex", "telegram"])
def test_a_side_that_is_away_costs_one_try_and_leaves_no_doubt(office: Office, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for a while nothing else is begun."""
    paused = list[float]()
    monkeypatch.setattr(office.courier.outside, "pause", paused.append)
    job = office.order(file_id=office.file(NAME, CONTENT))
    outside = getattr(office, side)
    outside.down()
    office.run()
    assert (office.state(job), office.app.get(job).tries_left, paused) == ("QUEUED", 2, [AWAY])
    outside.up()
    office.later(ENOUGH)
    assert (office.state(job), documents(office), told(office)) == ("DELIVERED", [NAME], [])


@pytest.mark.parametrize("side", ["yandex", "telegram"])
def test_the_wait_that_a_429_asks_for_is_honoured(office: Office, side: str) -> None:
    job = office.order()
    if side == "yandex":
        office.yandex.fail("resources", 429, retry_after=700)
    else:
        office.telegram.fail("sendDocument", 429, retry_after=700)
    office.run()
    office.later(699.5)
    assert (office.state(job), office.app.get(job).attempt) == ("QUEUED", 1)
    office.later(1.0)
    assert (office.state(job), office.app.get(job).attempt) == ("DELIVERED", 2)


@pytest.mark.parametrize("asked", [0, 1])
def test_one_that_asks_for_a_short_wait_gets_the_usual_one(office: Office, monkeypatch: pytest.MonkeyPatch, asked: int) -> None:
    """Else all three tries would be spent within seconds."""
    monkeypatch.setattr(jobs, "BACKOFF", Backoff(30.0, factor=8.0, cap=600.0, jitter=False))
    job = office.order()
    office.yandex.fail("resources", 429, retry_after=asked, times=2)
    office.run()
    waits = list[float]()
    for _ in range(2):
        waits.append((office.app.get(job).due_at - office.clock.now()).total_seconds())
        office.later(waits[-1])
    assert (waits, office.state(job)) == ([30.0, 240.0], "DELIVERED")


@pytest.mark.parametrize("side", ["yandex", "telegram"])
def test_one_that_was_told_to_wait_speaks_for_all(office: Office, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are put off before they ask for anything, at no cost."""
    asked, outside = list[float](), office.courier.outside
    monkeypatch.setattr(outside, "pause", asked.append)
    office.order()
    if side == "yandex":
        office.yandex.fail("resources", 429, retry_after=30)
    else:
        office.telegram.fail("sendDocument", 429, retry_after=30)
    office.run()
    monkeypatch.undo()
    assert asked == [30.0]

    @asynccontextmanager
    async def told() -> AsyncGenerator[None]:
        async with outside.open():
            outside.pause(asked[0])
            yield

    other = office.order(READER, office.file("persuasion.pdf"))
    office.yandex.log.clear()
    with monkeypatch.context() as patched:
        patched.setattr(office.app, "lifespan", told)
        office.run()
    assert (office.path(other), office.app.get(other).tries_left, office.yandex.log) == (BEGUN + BACK, 3, [])
    office.later(31)
    assert office.state(other) == "DELIVERED"


def test_a_body_that_breaks_off_is_resumed_and_costs_nothing(office: Office) -> None:
    job = office.order(file_id=office.file(NAME, CONTENT))
    office.yandex.cut("content", after=300_000)
    office.run()
    assert (office.path(job), office.app.get(job).attempt) == (DELIVERED, 1)
    assert [asked.range is not None for asked in office.yandex.asked("content")] == [False, True]


def test_a_token_that_is_refused_once_is_renewed_and_costs_nothing(office: Office) -> None:
    job = office.order()
    office.yandex.revoke()
    office.run()
    assert (office.path(job), office.app.get(job).attempt, len(office.yandex.asked("token"))) == (DELIVERED, 1, 1)


FAILING = {
    "disk: 403": Row(lambda office: office.yandex.fail("resources", 403), BEGUN),
    "disk: 404": Row(lambda office: office.yandex.remove(f"{FOLDER}/{NAME}"), BEGUN),
    "disk: 401 twice": Row(lambda office: office.yandex.fail("resources", 401, times=2), BEGUN),
    "disk: renewal refused": Row(lambda office: office.yandex.revoke(refresh=True), BEGUN),
    "telegram: 413": Row(lambda office: office.telegram.fail("sendDocument", 413), STREAMED),
    "telegram: 400": Row(lambda office: office.telegram.fail("sendDocument", 400, description="Bad Request: not enough rights"), STREAMED),
}
CODES = {
    "disk: 403": "forbidden", "disk: 404": "not_found", "disk: 401 twice": "shut_out", "disk: renewal refused": "shut_out",
    "telegram: 413": "too_big", "telegram: 400": "refused",
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_what_will_not_pass_fails_at_once_and_its_user_is_told_why(office: Office, name: str) -> None:
    row, code = FAILING[name], CODES[name]
    job = office.order(file_id=office.file(NAME, CONTENT))
    row.fault(office)
    office.run()
    failed = office.app.get(job)
    assert (failed.attempt, office.path(job)) == (1, [*row.path, (row.path[-1][1], "FAILED")])
    assert (failed.last_error or "").startswith(f"{code}: ")
    assert told(office) == [words.say("en", "failed", name=NAME, reason=words.failure("en", f"{code}: "))]
    assert documents(office) == []


def test_a_file_that_is_too_big_fails_before_a_byte_is_moved(office: Office) -> None:
    office.user()
    job = office.order(READER, office.file(NAME, b"x"))
    office.yandex.nodes[f"{FOLDER}/{NAME}"].body = _huge(office.settings.largest + 1)
    office.run()
    assert office.path(job) == [*BEGUN, ("DOWNLOADING", "FAILED")]
    assert (office.yandex.served, office.yandex.asked("download"), office.telegram.asked("sendDocument")) == (0, [], [])
    assert words.failure("en", "too_big: ") in told(office)[0]


def _huge(size: int) -> object:
    from apps.courier.tests.yandex import Generated

    return Generated(size)


def test_an_empty_file_fails_and_its_user_is_told(office: Office) -> None:
    office.user()
    job = office.order(READER, office.file(NAME, b""))
    office.run()
    assert (office.path(job), office.telegram.asked("sendDocument")) == ([*BEGUN, ("DOWNLOADING", "FAILED")], [])
    assert words.failure("en", "empty: ") in told(office)[0]


def test_whoever_has_blocked_the_bot_is_told_nothing_and_nothing_waits_to_tell_them(office: Office) -> None:
    job = office.order()
    office.telegram.person(READER).blocks()
    office.run()
    assert (office.state(job), office.app.get(job).attempt) == ("FAILED", 1)
    assert (office.app.get(job).last_error or "").startswith("blocked: ")
    assert [tell.state for tell in office.app.jobs(kind="tell")] == ["SUCCEEDED"]


def test_the_third_failure_is_the_last_and_its_user_is_told(office: Office) -> None:
    job = office.order()
    office.yandex.fail("resources", 500, times=3)
    office.run()
    office.later(ENOUGH)
    assert (office.state(job), told(office)) == ("QUEUED", [])
    office.later(ENOUGH)
    failed = office.app.get(job)
    assert (failed.state, failed.attempt, failed.tries_left) == ("FAILED", 3, 0)
    assert told(office) == [words.say("en", "failed", name="emma.pdf", reason=words.failure("en", failed.last_error))]


def test_a_user_who_was_blocked_meanwhile_gets_nothing(office: Office) -> None:
    """Checked as the work would begin, with the lease held."""
    job = office.order()
    office.user(READER, "BLOCKED")
    office.run()
    assert office.path(job) == [*CLAIMED, ("CLAIMED", "FAILED")]
    assert (office.yandex.log, documents(office)) == ([], [])
    assert words.failure("en", "inactive: ") in told(office)[0]


def test_what_waits_for_too_long_expires_and_its_user_is_told(office: Office) -> None:
    job = office.order()
    office.later(office.settings.ttl + 1)
    assert office.path(job) == [(None, "QUEUED"), ("QUEUED", "EXPIRED")]
    assert told(office) == [words.say("en", "expired", name="emma.pdf")]
    assert office.yandex.log == []


def test_administrators_hear_once_of_a_token_that_is_refused(office: Office) -> None:
    """However many deliveries find out, until there is a new one."""
    office.user(ADMIN)
    jobs = [office.order(), office.order(READER, office.file("persuasion.pdf"))]
    office.yandex.revoke(refresh=True)
    office.run()
    assert [office.state(job) for job in jobs] == ["FAILED", "FAILED"]
    assert told(office, ADMIN) == [words.say("en", "alert_token")]


def test_administrators_hear_once_of_a_token_that_is_refused_though_it_is_renewed_each_time(office: Office) -> None:
    office.user(ADMIN)
    office.user(READER)
    office.yandex.fail("resources", 401, times=4)
    for file in (office.file("emma.pdf"), office.file("persuasion.pdf")):
        job = office.order(READER, file)
        office.run()
        assert office.state(job) == "FAILED"
    assert len(office.yandex.asked("token")) == 2
    assert told(office, ADMIN) == [words.say("en", "alert_token")]
