"""Promises about logs: whatever a library or an error says there, no token, no secret of an address and nobody's id is in it."""

import asyncio
import hashlib
import io
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import AiogramError
from typing_extensions import override

from apps.courier import redact
from apps.courier.redact import CHATTY, Redacting, hide, key, quiet, scrub, who

BOT, ACCESS, REFRESH, SECRET, SIGNATURE = "7654321:CANARYbot-0123456789_abcdef", "y0_CANARYaccess", "1:CANARYrefresh", "CANARYsecret", "CANARYsignature"
PATH = "disk:/CANARY"
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


# ---------------------------------------------------------------- a text
@pytest.mark.parametrize(("text", "shown"), [
    (f"https://api.telegram.org/bot{BOT}/getMe", "https://api.telegram.org/bot***/getMe"),
    (f"https://api.telegram.org/bot{BOT.replace(':', '%3A')}/getMe", "https://api.telegram.org/bot***/getMe"),
    (f"POST /bot{BOT}/sendDocument HTTP/1.1", "POST /bot***/sendDocument HTTP/1.1"),
    (f"https://api.telegram.org/file/bot{BOT}/documents/1", "https://api.telegram.org/file/bot***/documents/1"),
    (f"Bot token={BOT!r}", "Bot token='***'"),
    (f"Authorization: OAuth {ACCESS}", "Authorization: OAuth ***"),
    (f"{{'authorization': 'OAuth {ACCESS}', 'a': 1}}", "{'authorization': 'OAuth ***', 'a': 1}"),
    (f"[(b'Authorization', b'OAuth {ACCESS}')]", "[(b'Authorization', b'OAuth ***')]"),
    (f"authorization: bearer {ACCESS}", "authorization: bearer ***"),
    (f"grant_type=refresh_token&refresh_token={REFRESH}&client_secret={SECRET}", "grant_type=refresh_token&refresh_token=***&client_secret=***"),
    (f'{{"access_token": "{ACCESS}", "refresh_token":"{REFRESH}", "expires_in": 5}}', '{"access_token": "***", "refresh_token":"***", "expires_in": 5}'),
    (f"{{'client_secret': '{SECRET}'}}", "{'client_secret': '***'}"),
    (f"https://oauth.yandex.ru/#access_token={ACCESS}&x=1", "https://oauth.yandex.ru/#access_token=***&x=1"),
    ("GET https://cloud-api.yandex.net/v1/disk/resources?path=disk%3A%2FCANARY&limit=1 done", "GET https://cloud-api.yandex.net/v1/disk/resources?*** done"),
    ('"GET /v1/disk/resources?path=CANARY HTTP/1.1" 200', '"GET /v1/disk/resources?*** HTTP/1.1" 200'),
    (f"URL('https://downloader.disk.yandex.ru/disk/{SIGNATURE}/CANARY?uid=7&filename=CANARY')", "URL('https://downloader.disk.yandex.ru/disk/***')"),
    (f"https://s1.storage.yandex.net/rdisk/{SIGNATURE}/CANARY broke", "https://s1.storage.yandex.net/rdisk/*** broke"),
    ("http://courier:CANARY@proxy:3128/x", "http://courier:***@proxy:3128/x"),
])
def test_what_must_not_be_read_is_taken_out(text: str, shown: str) -> None:
    assert scrub(text) == shown
    assert scrub(shown) == shown


@pytest.mark.parametrize("text", [
    "The disk answered 429; asked again in 30 s.", "2026-08-01T10:20:30.123456Z robot12 started", "is that so? yes=no", "bot 7 of 9", "u_0a1b2c3d was let in",
    "postgresql://localhost/courier", "slots=4 queues=default", "http://127.0.0.1:8081/x", "12:30", "",
])
def test_what_may_be_read_stays(text: str) -> None:
    assert scrub(text) == text


@pytest.fixture
def hidden() -> Iterator[None]:
    before = set(redact._hidden)
    yield
    redact._hidden.clear()
    redact._hidden.update(before)


@pytest.mark.usefixtures("hidden")
def test_a_hidden_value_is_taken_out_wherever_it_stands() -> None:
    hide(["pass/word CANARY", "short", ""])
    assert scrub("<pass/word CANARY>") == "<***>"
    assert scrub("x=pass%2Fword%20CANARY; pass/word%20CANARY") == "x=***; ***"
    assert scrub("short is no secret") == "short is no secret"


@pytest.mark.usefixtures("hidden")
def test_of_two_hidden_values_the_longer_goes_first() -> None:
    hide(["canary", "canary-and-more"])
    assert scrub("canary-and-more canary") == "*** ***"


def test_a_person_has_one_name_in_logs_and_it_is_not_their_id() -> None:
    assert who(123456789) == who(123456789) != who(123456788)
    assert who(7).startswith("u_")
    assert len(who(7)) == 10
    assert "123456789" not in who(123456789)


def elsewhere(before: str = "") -> str:
    """Somebody's name in the logs of a process of its own."""
    program = f"from apps.courier.redact import key, who\n{before}\nprint(who(123456789))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_a_person_has_the_same_name_in_every_process_with_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_key", b"")
    key(BOT)
    mine = who(123456789)
    assert elsewhere(f"key({BOT!r})") == mine
    key(f"{BOT}x")
    assert who(123456789) != mine


def test_without_a_key_nobody_can_try_out_whose_name_it_is() -> None:
    assert len({elsewhere(), elsewhere(), f"u_{hashlib.sha256(b'123456789').hexdigest()[:8]}"}) == 3


# ---------------------------------------------------------------- a record
@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that is logged by anybody at any level, through a plain handler of the root after `quiet`."""
    out, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s %(extra)s", defaults={"extra": ""}))
    names = [*CHATTY, *(name for name in logging.root.manager.loggerDict if name.startswith((*CHATTY, "asyncio", "aiohttp")))]
    loggers = [root, *(logging.getLogger(name) for name in names)]
    levels = [each.level for each in loggers]
    root.addHandler(handler)
    quiet()
    for each in loggers:
        each.setLevel(logging.DEBUG)
    yield out
    root.removeHandler(handler)
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


def test_the_traceback_of_a_record_is_scrubbed_and_there(log: io.StringIO) -> None:
    error = ValueError(f"no /bot{BOT}/getMe")
    error.__cause__ = OSError(f"OAuth {ACCESS}")
    logging.getLogger("courier").error("It broke at %s", f"https://api.telegram.org/bot{BOT}/getMe", stack_info=True, exc_info=error)
    assert "CANARY" not in log.getvalue()
    assert log.getvalue().startswith("ERROR courier It broke at https://api.telegram.org/bot***/getMe\n")
    words = ("ValueError: no /bot***/getMe", "OSError: OAuth ***", "the direct cause", "Stack (most recent call last)")
    assert [word for word in words if word not in log.getvalue()] == []


def test_what_is_given_with_a_record_is_scrubbed(log: io.StringIO) -> None:
    extra = {"extra": {"urls": [f"/bot{BOT}/x", (f"OAuth {ACCESS}",)], "error": OSError(f"OAuth {ACCESS}"), "count": 3}}
    logging.getLogger("courier").warning("It broke", extra=extra)
    assert log.getvalue() == "WARNING courier It broke {'urls': ['/bot***/x', ['OAuth ***']], 'error': 'OAuth ***', 'count': 3}\n"


def test_a_record_whose_arguments_do_not_fit_is_scrubbed_and_not_lost(log: io.StringIO, capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("courier").warning("%d tries", f"OAuth {ACCESS}")
    assert "%d tries" in log.getvalue()
    assert "CANARY" not in log.getvalue() + "".join(capfd.readouterr())


def test_calling_quiet_twice_changes_nothing(log: io.StringIO) -> None:
    quiet()
    assert [sum(isinstance(each, Redacting) for each in handler.filters) for handler in logging.getLogger().handlers if handler.filters] != []
    assert all(sum(isinstance(each, Redacting) for each in handler.filters) == 1 for handler in logging.getLogger().handlers)
    assert {logging.getLogger(name).level for name in CHATTY} == {logging.WARNING}
    assert log.getvalue() == ""


def test_without_any_handler_nothing_slips_out(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    quiet()
    logging.getLogger("courier").warning("OAuth %s", ACCESS)
    assert capfd.readouterr().err == "OAuth ***\n"


# ---------------------------------------------------------------- the libraries
class Answers(BaseHTTPRequestHandler):
    """A server that says back what it was asked: 200, 404, or nothing at all, by the end of the path."""

    release: threading.Event

    def do_GET(self) -> None:
        said = json.dumps({"ok": False, "error_code": 404, "description": f"no {self.path} for {self.headers['Authorization']}", "result": None})
        if self.path.partition("?")[0].endswith("slow"):
            self.release.wait(60)
            return
        ok = self.path.partition("?")[0].endswith("deleteWebhook")
        body = (b'{"ok": true, "result": true}' if ok else said.encode())
        self.send_response(200 if ok else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Link", f"https://downloader.disk.yandex.ru/disk/{SIGNATURE}?filename=CANARY")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - so the library names it

    @override
    def log_message(self, format: str, *args: Any) -> None:
        logging.getLogger("aiohttp.access").info(format, *args)


@contextmanager
def server() -> Iterator[str]:
    Answers.release = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            Answers.release.set()
            http.shutdown()
            thread.join()


def tell(error: BaseException, *more: object) -> None:
    """As a careless program would: everywhere, at every level, with all it has."""
    for name in ("courier", "interlock", "asyncio", *CHATTY, "aiogram.event", "aiogram.dispatcher", "httpcore.connection"):
        for level in LEVELS:
            logging.getLogger(name).log(level, "failed: %s %r %s", error, error, more, exc_info=error)


async def _httpx(url: str, path: str) -> None:
    headers = {"Authorization": f"OAuth {ACCESS}"}
    async with httpx.AsyncClient(timeout=0.5) as http:
        for verb, data in (("GET", None), ("POST", {"refresh_token": REFRESH, "client_secret": SECRET})):
            try:
                answer = await http.request(verb, f"{url}/{path}", params={"path": PATH, "access_token": ACCESS}, headers=headers, data=data)
                logging.getLogger("courier").debug("%r %s %s %s", answer.url, answer.text, dict(answer.headers), answer.request.headers.raw)
                answer.raise_for_status()
            except httpx.HTTPError as error:
                tell(error, error.request.url, error.request.headers.raw, error.request.read())


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
                tell(ValueError(bot.token), done)
        except (AiogramError, OSError) as error:
            tell(error, bot.token, session.api.api_url(bot.token, "getMe"), vars(bot))


def _nowhere(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


LOOKED_UP: list[tuple[str, Callable[[str, str], Any], str]] = [
    ("httpx answers", _httpx, f"bot{BOT}/deleteWebhook"), ("httpx refuses", _httpx, f"bot{BOT}/getMe"), ("httpx stalls", _httpx, f"bot{BOT}/slow"),
    ("aiogram answers", _aiogram, "deleteWebhook"), ("aiogram refuses", _aiogram, "getMe"), ("aiogram stalls", _aiogram, "slow"),
]


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(("call", "path"), [each[1:] for each in LOOKED_UP], ids=[each[0] for each in LOOKED_UP])
def test_no_token_is_ever_logged(log: io.StringIO, call: Callable[[str, str], Any], path: str) -> None:
    """Success, 4xx and time-out, without knowing the secrets: by their shapes alone."""
    with server() as url:
        asyncio.run(call(url, path))
    assert log.getvalue().count("\n") > 3
    assert [line for line in log.getvalue().splitlines() if "CANARY" in line] == []


@pytest.mark.parametrize("call", [_httpx, _aiogram])
def test_no_token_is_logged_when_a_name_is_not_found_or_nobody_listens(
    log: io.StringIO, call: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    asyncio.run(call(f"http://127.0.0.1:{port}", f"bot{BOT}/getMe"))
    monkeypatch.setattr(socket, "getaddrinfo", _nowhere)
    asyncio.run(call("https://nowhere.invalid", f"bot{BOT}/getMe"))
    assert "Traceback" in log.getvalue()
    assert [line for line in log.getvalue().splitlines() if "CANARY" in line] == []
