"""The connection to qBittorrent: credentials, sessions, failures, TLS and threads."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.librarian.clients.qbittorrent import QbittorrentClient
from apps.librarian.errors import BadSettings, Banned, LoginRefused, QbittorrentUnavailable, UnsafeCredentials
from apps.librarian.tests import torrent_files
from apps.librarian.tests.fake_http_server import FakeResponse, self_signed
from apps.librarian.tests.fake_qbittorrent import BAN_AFTER, FakeQbittorrent, Record
from apps.librarian.torrent_source import parse_magnet, parse_source

V1 = "ab" * 20
NOWHERE = "http://127.0.0.1:9"


# ---------------------------------------------------------------- credentials and sessions


def test_default_credentials_are_refused_unless_allowed() -> None:
    with pytest.raises(UnsafeCredentials, match="default credentials"):
        QbittorrentClient(NOWHERE, "admin", "adminadmin")
    QbittorrentClient(NOWHERE, "admin", "adminadmin", allow_default_credentials=True)
    QbittorrentClient(NOWHERE, "admin", "another")


@pytest.mark.parametrize(("username", "password"), [("", "secret"), ("reader", ""), ("", "")])
def test_missing_credentials_are_refused(username: str, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBITTORRENTAPI_PASSWORD", "adminadmin")  # the library would read it
    with pytest.raises(UnsafeCredentials, match="Set both"):
        QbittorrentClient(NOWHERE, username, password, allow_default_credentials=True)


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://h", "http://", "http://[", "http://h:x", "https://reader:secret@h"]
)
def test_invalid_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadSettings, match="a host and a port") as refused:
        QbittorrentClient(url, "reader", "secret")
    assert "secret" not in str(refused.value)


def test_wrong_password_is_not_repeated_in_the_error(qbittorrent: FakeQbittorrent) -> None:
    client = QbittorrentClient(qbittorrent.url, qbittorrent.username, "wrong-password")
    for _ in range(BAN_AFTER):
        with pytest.raises(LoginRefused, match="rejects the password of user 'librarian'") as refused:
            client.find_torrents([V1])
        assert "wrong-password" not in str(refused.value)
    with pytest.raises(Banned, match=r"has banned this address.*Restart it, or wait") as banned:
        client.find_torrents([V1])
    assert "credentials" not in str(banned.value)
    assert len(qbittorrent.requests_to("auth/login")) == BAN_AFTER + 1


def test_client_logs_in_again_when_its_session_expires(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    id = client.add(parse_magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads")
    for verb in (
        client.version,
        lambda: client.find_torrents([id]),
        lambda: client.add(parse_source(torrent_files.v1()), "/downloads"),
        lambda: client.remove(id),
    ):
        qbittorrent.expire_sessions()
        verb()
    assert len(qbittorrent.requests_to("auth/login")) == 5
    assert [record.name for record in qbittorrent.torrents.values()] == ["night.epub"]


# ---------------------------------------------------------------- qBittorrent is unavailable


VERBS: dict[str, Callable[[QbittorrentClient], object]] = {
    "version": lambda client: client.version(),
    "add": lambda client: client.add(parse_source(torrent_files.v1()), "/downloads"),
    "look": lambda client: client.find_torrents([V1]),
    "remove": lambda client: client.remove(V1),
}


@pytest.mark.parametrize("verb", VERBS)
def test_refused_connection_is_unavailable_until_qbittorrent_is_back(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient, verb: str
) -> None:
    client.version()
    qbittorrent.down()
    with pytest.raises(QbittorrentUnavailable, match=r"is unreachable\. Check that it is running\.$"):
        VERBS[verb](client)
    qbittorrent.up()
    VERBS[verb](client)


@pytest.mark.parametrize("verb", VERBS)
def test_error_status_is_unavailable(qbittorrent: FakeQbittorrent, client: QbittorrentClient, verb: str) -> None:
    client.version()
    for status, text in (
        (500, "cannot answer now: status 500"),
        (503, "status 503"),
        (404, "Check LIBRARIAN_QBITTORRENT_URL"),
    ):
        qbittorrent.fail_with(status)
        with pytest.raises(QbittorrentUnavailable, match=text):
            VERBS[verb](client)
    qbittorrent.fail_with(None)
    VERBS[verb](client)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("status", "body"),
    [(302, ""), (200, "<html>Welcome</html>"), (200, "[1]"), (200, '[{"hash": "x"}]'), (200, "7"), (200, "null")],
)
def test_answer_of_another_server_is_unavailable(verb: str, status: int, body: str) -> None:
    with FakeQbittorrent() as fake:
        client = QbittorrentClient(fake.url, fake.username, fake.password)
        client.version()
        fake.answer_with(FakeResponse(status, body))
        with pytest.raises(QbittorrentUnavailable, match="Check LIBRARIAN_QBITTORRENT_URL"):
            VERBS[verb](client)


def test_redirect_is_not_followed(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    with FakeQbittorrent() as elsewhere:
        qbittorrent.answer_with(FakeResponse(307, location=f"{elsewhere.url}/api/v2/auth/login"))
        with pytest.raises(QbittorrentUnavailable):
            client.version()
    assert elsewhere.log == []


def test_slow_answer_is_unavailable(qbittorrent: FakeQbittorrent) -> None:
    client = QbittorrentClient(qbittorrent.url, qbittorrent.username, qbittorrent.password, timeout=0.1)
    gate = threading.Event()
    qbittorrent.slow(gate)
    begun = time.monotonic()
    with pytest.raises(QbittorrentUnavailable, match=r"within 0\.1 seconds"):
        client.find_torrents([V1])
    assert time.monotonic() - begun < 10  # the library's own timeout is 30 seconds
    gate.set()
    assert client.find_torrents([V1]) == {}


# ---------------------------------------------------------------- TLS


def test_untrusted_certificate_is_refused_before_the_password_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    monkeypatch.setenv("QBITTORRENTAPI_DO_NOT_VERIFY_WEBUI_CERTIFICATE", "1")  # the library's own switch has no effect
    certificate = self_signed(tmp_path)
    with FakeQbittorrent(certificate=certificate) as fake:
        client = QbittorrentClient(fake.url, fake.username, fake.password)
        with pytest.raises(QbittorrentUnavailable, match="has an untrusted certificate"):
            client.version()
        assert fake.log == []
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert client.version() == "v4.5.2"


# ---------------------------------------------------------------- threads


def test_threads_share_the_sessions(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    qbittorrent.torrents = {id: Record(id, v1=id) for id in (f"{number:040x}" for number in range(1, 41))}
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda one: list(client.find_torrents([one])) == [one], [*qbittorrent.torrents] * 3))
    assert len(qbittorrent.requests_to("auth/login")) <= 8
