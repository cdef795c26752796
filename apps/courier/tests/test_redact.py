"""Logs contain no token, no secret part of an address and no user ID, regardless of what libraries and errors log."""

import asyncio
import hashlib
import io
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import AiogramError

from apps.courier import redact
from apps.courier.redact import (
    VERBOSE_LOGGERS,
    RedactingFilter,
    add_secrets,
    protect_logs,
    redact_text,
    set_alias_key,
    user_alias,
)
from apps.courier.tests.echo_server import SIGNATURE, run_echo_server

BOT, ACCESS, REFRESH, SECRET = (
    "7654321:CANARYbot-0123456789_abcdef",
    "y0_CANARYaccess",
    "1:CANARYrefresh",
    "CANARYsecret",
)
PATH = "disk:/CANARY"
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


# ---------------------------------------------------------------- texts
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"https://api.telegram.org/bot{BOT}/getMe", "https://api.telegram.org/bot***/getMe"),
        (f"https://api.telegram.org/bot{BOT.replace(':', '%3A')}/getMe", "https://api.telegram.org/bot***/getMe"),
        (f"POST /bot{BOT}/sendDocument HTTP/1.1", "POST /bot***/sendDocument HTTP/1.1"),
        (f"https://api.telegram.org/file/bot{BOT}/documents/1", "https://api.telegram.org/file/bot***/documents/1"),
        (f"Bot token={BOT!r}", "Bot token='***'"),
        (f"Authorization: OAuth {ACCESS}", "Authorization: OAuth ***"),
        (f"{{'authorization': 'OAuth {ACCESS}', 'a': 1}}", "{'authorization': 'OAuth ***', 'a': 1}"),
        (f"[(b'Authorization', b'OAuth {ACCESS}')]", "[(b'Authorization', b'OAuth ***')]"),
        (f"authorization: bearer {ACCESS}", "authorization: bearer ***"),
        (
            f"grant_type=refresh_token&refresh_token={REFRESH}&client_secret={SECRET}",
            "grant_type=refresh_token&refresh_token=***&client_secret=***",
        ),
        (
            f'{{"access_token": "{ACCESS}", "refresh_token":"{REFRESH}", "expires_in": 5}}',
            '{"access_token": "***", "refresh_token":"***", "expires_in": 5}',
        ),
        (f"{{'client_secret': '{SECRET}'}}", "{'client_secret': '***'}"),
        (f"https://oauth.yandex.ru/#access_token={ACCESS}&x=1", "https://oauth.yandex.ru/#access_token=***&x=1"),
        (
            "GET https://cloud-api.yandex.net/v1/disk/resources?path=disk%3A%2FCANARY&limit=1 done",
            "GET https://cloud-api.yandex.net/v1/disk/resources?*** done",
        ),
        ('"GET /v1/disk/resources?path=CANARY HTTP/1.1" 200', '"GET /v1/disk/resources?*** HTTP/1.1" 200'),
        (
            f"URL('https://downloader.disk.yandex.ru/disk/{SIGNATURE}/CANARY?uid=7&filename=CANARY')",
            "URL('https://downloader.disk.yandex.ru/disk/***')",
        ),
        (
            f"https://s1.storage.yandex.net/rdisk/{SIGNATURE}/CANARY broke",
            "https://s1.storage.yandex.net/rdisk/*** broke",
        ),
        ("http://courier:CANARY@proxy:3128/x", "http://courier:***@proxy:3128/x"),
    ],
)
def test_secrets_are_redacted(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "The disk answered 429; asked again in 30 s.",
        "2026-08-01T10:20:30.123456Z robot12 started",
        "is that so? yes=no",
        "bot 7 of 9",
        "u_0a1b2c3d was let in",
        "postgresql://localhost/courier",
        "slots=4 queues=default",
        "http://127.0.0.1:8081/x",
        "12:30",
        "",
    ],
)
def test_other_text_is_kept(text: str) -> None:
    assert redact_text(text) == text


@pytest.fixture
def hidden() -> Iterator[None]:
    before = set(redact._secrets)
    yield
    redact._secrets.clear()
    redact._secrets.update(before)


@pytest.mark.usefixtures("hidden")
def test_added_secret_is_redacted_everywhere() -> None:
    add_secrets(["pass/word CANARY", "short", ""])
    assert redact_text("<pass/word CANARY>") == "<***>"
    assert redact_text("x=pass%2Fword%20CANARY; pass/word%20CANARY") == "x=***; ***"
    assert redact_text("short is no secret") == "short is no secret"


@pytest.mark.usefixtures("hidden")
def test_longer_secret_is_redacted_first() -> None:
    add_secrets(["canary", "canary-and-more"])
    assert redact_text("canary-and-more canary") == "*** ***"


def test_user_alias_is_stable_and_not_the_id() -> None:
    assert user_alias(123456789) == user_alias(123456789) != user_alias(123456788)
    assert user_alias(7).startswith("u_")
    assert len(user_alias(7)) == 10
    assert "123456789" not in user_alias(123456789)


def alias_in_new_process(before: str = "") -> str:
    """Return the alias of a user in a new process."""
    program = f"from apps.courier.redact import set_alias_key, user_alias\n{before}\nprint(user_alias(123456789))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_user_alias_is_the_same_in_every_process_with_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_alias_key", b"")
    set_alias_key(BOT)
    mine = user_alias(123456789)
    assert alias_in_new_process(f"set_alias_key({BOT!r})") == mine
    set_alias_key(f"{BOT}x")
    assert user_alias(123456789) != mine


def test_user_alias_cannot_be_guessed_without_a_key() -> None:
    assert (
        len({alias_in_new_process(), alias_in_new_process(), f"u_{hashlib.sha256(b'123456789').hexdigest()[:8]}"}) == 3
    )


# ---------------------------------------------------------------- log records
@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that is logged at any level, through a root handler after `protect_logs`."""
    out, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s %(extra)s", defaults={"extra": ""}))
    names = [
        *VERBOSE_LOGGERS,
        *(
            name
            for name in logging.root.manager.loggerDict
            if name.startswith((*VERBOSE_LOGGERS, "asyncio", "aiohttp"))
        ),
    ]
    loggers = [root, *(logging.getLogger(name) for name in names)]
    levels = [each.level for each in loggers]
    root.addHandler(handler)
    protect_logs()
    for each in loggers:
        each.setLevel(logging.DEBUG)
    yield out
    root.removeHandler(handler)
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


def test_traceback_of_a_record_is_redacted_and_kept(log: io.StringIO) -> None:
    error = ValueError(f"no /bot{BOT}/getMe")
    error.__cause__ = OSError(f"OAuth {ACCESS}")
    logging.getLogger("courier").error(
        "It broke at %s", f"https://api.telegram.org/bot{BOT}/getMe", stack_info=True, exc_info=error
    )
    assert "CANARY" not in log.getvalue()
    assert log.getvalue().startswith("ERROR courier It broke at https://api.telegram.org/bot***/getMe\n")
    words = ("ValueError: no /bot***/getMe", "OSError: OAuth ***", "the direct cause", "Stack (most recent call last)")
    assert [word for word in words if word not in log.getvalue()] == []


def test_extra_values_of_a_record_are_redacted(log: io.StringIO) -> None:
    extra = {"extra": {"urls": [f"/bot{BOT}/x", (f"OAuth {ACCESS}",)], "error": OSError(f"OAuth {ACCESS}"), "count": 3}}
    logging.getLogger("courier").warning("It broke", extra=extra)
    assert (
        log.getvalue()
        == "WARNING courier It broke {'urls': ['/bot***/x', ['OAuth ***']], 'error': 'OAuth ***', 'count': 3}\n"
    )


def test_record_with_wrong_arguments_is_redacted_and_kept(log: io.StringIO, capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("courier").warning("%d tries", f"OAuth {ACCESS}")
    assert "%d tries" in log.getvalue()
    assert "CANARY" not in log.getvalue() + "".join(capfd.readouterr())


def test_protecting_logs_twice_changes_nothing(log: io.StringIO) -> None:
    protect_logs()
    assert [
        sum(isinstance(each, RedactingFilter) for each in handler.filters)
        for handler in logging.getLogger().handlers
        if handler.filters
    ] != []
    assert all(
        sum(isinstance(each, RedactingFilter) for each in handler.filters) == 1
        for handler in logging.getLogger().handlers
    )
    assert {logging.getLogger(name).level for name in VERBOSE_LOGGERS} == {logging.WARNING}
    assert log.getvalue() == ""


def test_last_resort_handler_is_redacted(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    protect_logs()
    logging.getLogger("courier").warning("OAuth %s", ACCESS)
    assert capfd.readouterr().err == "OAuth ***\n"


# ---------------------------------------------------------------- libraries
def log_everything(error: BaseException, *more: object) -> None:
    """Log everything at every level, as a careless program would."""
    for name in (
        "courier",
        "interlock",
        "asyncio",
        *VERBOSE_LOGGERS,
        "aiogram.event",
        "aiogram.dispatcher",
        "httpcore.connection",
    ):
        for level in LEVELS:
            logging.getLogger(name).log(level, "failed: %s %r %s", error, error, more, exc_info=error)


async def _httpx(url: str, path: str) -> None:
    headers = {"Authorization": f"OAuth {ACCESS}"}
    async with httpx.AsyncClient(timeout=0.5) as http:
        for verb, data in (("GET", None), ("POST", {"refresh_token": REFRESH, "client_secret": SECRET})):
            try:
                answer = await http.request(
                    verb, f"{url}/{path}", params={"path": PATH, "access_token": ACCESS}, headers=headers, data=data
                )
                logging.getLogger("courier").debug(
                    "%r %s %s %s", answer.url, answer.text, dict(answer.headers), answer.request.headers.raw
                )
                answer.raise_for_status()
            except httpx.HTTPError as error:
                log_everything(error, error.request.url, error.request.headers.raw, error.request.read())


async def _aiogram(url: str, method: str) -> None:
    session = AiohttpSession(api=TelegramAPIServer.from_base(url))
    session._connector_init["use_dns_cache"] = False
    async with Bot(BOT, session=session) as bot:
        try:
            if method == "slow":
                session.api = TelegramAPIServer(base=f"{url}/bot{{token}}/{{method}}/slow", file=url)
                await bot.get_me(request_timeout=1)
            else:
                done = await (bot.delete_webhook() if method == "deleteWebhook" else bot.get_me())
                log_everything(ValueError(bot.token), done)
        except (AiogramError, OSError) as error:
            log_everything(error, bot.token, session.api.api_url(bot.token, "getMe"), vars(bot))


def _fail_lookup(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


CALLS: list[tuple[str, Callable[[str, str], Any], str]] = [
    ("httpx answers", _httpx, f"bot{BOT}/deleteWebhook"),
    ("httpx refuses", _httpx, f"bot{BOT}/getMe"),
    ("httpx stalls", _httpx, f"bot{BOT}/slow"),
    ("aiogram answers", _aiogram, "deleteWebhook"),
    ("aiogram refuses", _aiogram, "getMe"),
    ("aiogram stalls", _aiogram, "slow"),
]


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(("call", "path"), [each[1:] for each in CALLS], ids=[each[0] for each in CALLS])
def test_no_token_is_ever_logged(log: io.StringIO, call: Callable[[str, str], Any], path: str) -> None:
    """The secrets are recognized by their shape alone, for a success, a 4xx status and a timeout."""
    with run_echo_server() as url:
        asyncio.run(call(url, path))
    assert log.getvalue().count("\n") > 3
    assert [line for line in log.getvalue().splitlines() if "CANARY" in line] == []


@pytest.mark.parametrize("call", [_httpx, _aiogram])
def test_no_token_is_logged_on_connection_errors(
    log: io.StringIO,
    call: Callable[[str, str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    asyncio.run(call(f"http://127.0.0.1:{port}", f"bot{BOT}/getMe"))
    monkeypatch.setattr(socket, "getaddrinfo", _fail_lookup)
    asyncio.run(call("https://nowhere.invalid", f"bot{BOT}/getMe"))
    assert "Traceback" in log.getvalue()
    assert [line for line in log.getvalue().splitlines() if "CANARY" in line] == []
