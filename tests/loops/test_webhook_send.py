"""Webhook messages are sent only to checked addresses, and the response decides whether they are retried."""

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from interlock.jobs import webhook
from interlock.jobs.results import Fail, Retry

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"type":"job.succeeded"}'
SIGNED = webhook.headers(SECRET, "msg_1", 1_700_000_000, BODY)


@dataclass
class Receiver:
    """A receiver on loopback that records its requests."""

    port: int = 0
    status: int = 200
    answer: dict[str, str] = field(default_factory=dict)
    heard: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://hooks.example:{self.port}/jobs?from=us"


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.heard.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(receiver.status)
            for name, value in receiver.answer.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"thanks")

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore senders that disconnect, as some tests do."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        receiver.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@contextmanager
def raw(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Serve one connection: read the request, then call `talk`, which sends the response."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                try:
                    talk(connection, stop)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://hooks.example:{listening.getsockname()[1]}/"
        finally:
            stop.set()
            thread.join()


def leads_to(*addresses: str) -> webhook.Resolve:
    return lambda host, port: list(addresses)


HERE = leads_to("127.0.0.1")


def post(url: str, *, allow_private: bool = True, timeout: float = 5.0, resolve: webhook.Resolve = HERE) -> int:
    return webhook.send(url, BODY, SIGNED, timeout=timeout, allow_private=allow_private, resolve=resolve)


# ---------------------------------------------------------------- the message
def test_message_arrives_as_it_was_signed(receiver: Receiver) -> None:
    assert post(receiver.url) == 200
    [(path, headers, body)] = receiver.heard
    assert path == "/jobs?from=us"
    assert headers["host"] == f"hooks.example:{receiver.port}"
    assert headers["content-type"] == "application/json"
    assert webhook.verify([SECRET], headers, body, now=1_700_000_010)


def test_host_is_resolved_by_the_system(receiver: Receiver) -> None:
    assert webhook.send(f"http://localhost:{receiver.port}", BODY, SIGNED, timeout=5, allow_private=True) == 200
    assert receiver.heard[0][0] == "/"


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://[::1]:81/", "[::1]:81"), ("https://a.example/", "a.example"), ("http://a.example:80/", "a.example")],
)
def test_host_header_follows_http(url: str, host: str) -> None:
    assert webhook._target(url).named == host


# ---------------------------------------------------------------- the address
@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::ffff:127.0.0.1"], ["10.1.2.3"], ["169.254.169.254"], ["::1"], ["8.8.8.8", "127.0.0.1"]],
)
def test_host_with_a_private_address_is_refused(receiver: Receiver, addresses: list[str]) -> None:
    """Nothing is sent, even if another of its addresses is public."""
    with pytest.raises(Fail, match="which is not public"):
        post(receiver.url, allow_private=False, resolve=leads_to(*addresses))
    assert not receiver.heard


def test_address_in_the_url_is_checked(receiver: Receiver) -> None:
    """It is checked in any notation."""
    for host in ("127.0.0.1", "2130706433", "0x7f.1", "localhost"):
        with pytest.raises(Fail, match="which is not public"):
            webhook.send(f"http://{host}:{receiver.port}/", BODY, SIGNED, timeout=5, allow_private=False)
    assert not receiver.heard


def test_connection_uses_the_checked_address(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is resolved only once, so a later change of its address has no effect."""
    asked: list[str] = []
    connected: list[object] = []
    create_connection = socket.create_connection

    def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["8.8.8.8"] if len(asked) == 1 else ["127.0.0.1"]

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        connected.append(address)
        return create_connection(("127.0.0.1", address[1]), timeout)

    monkeypatch.setattr(webhook.socket, "create_connection", connect)
    assert post(receiver.url, allow_private=False, resolve=resolve) == 200
    assert (asked, connected) == (["hooks.example"], [("8.8.8.8", receiver.port)])


def test_next_address_is_tried_if_one_is_unreachable(receiver: Receiver) -> None:
    assert post(receiver.url, resolve=leads_to("127.0.0.2", "127.0.0.1")) == 200


@pytest.mark.parametrize("url", ["ftp://a.example/", "https://user:pw@a.example/", "https://a.example:x/", "nonsense"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(Fail, match="The webhook's URL"):
        post(url)


# ---------------------------------------------------------------- the response
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_status_is_a_success(receiver: Receiver, status: int) -> None:
    receiver.status = status
    assert post(receiver.url) == status


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
def test_message_refused_with_4xx_is_not_retried(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with pytest.raises(Fail, match=f"status {status}"):
        post(receiver.url)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 304])
def test_message_is_retried_after_a_temporary_status(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with pytest.raises(Retry, match=f"status {status}") as caught:
        post(receiver.url)
    assert caught.value.after is None


@pytest.mark.parametrize(("said", "after"), [("17", 17), ("0", None)])
def test_retry_after_header_is_respected_unless_zero(receiver: Receiver, said: str, after: float | None) -> None:
    receiver.status, receiver.answer = 429, {"Retry-After": said}
    with pytest.raises(Retry) as caught:
        post(receiver.url)
    assert caught.value.after == after


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.status, receiver.answer = 307, {"Location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    with pytest.raises(Retry, match="redirects are not followed"):
        post(receiver.url)
    assert len(receiver.heard) == 1


# ---------------------------------------------------------------- connection errors
def test_message_to_an_unreachable_host_is_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Retry, match="is unreachable: ConnectionRefusedError"):
        post(f"http://hooks.example:{port}/")
    with pytest.raises(Retry, match="the host has no address"):
        post("http://hooks.example/", resolve=leads_to())


def test_message_to_an_unknown_host_name_is_retried() -> None:
    def nowhere(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(Retry, match="was not found"):
        post("http://hooks.example/", resolve=nowhere)
    with pytest.raises(Fail, match="not a valid host name"):
        post(f"http://{'a' * 70}.example/", resolve=webhook.resolve)


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 two hundred\r\n\r\n"])
def test_message_is_retried_after_a_response_that_is_not_http(said: bytes) -> None:
    with raw(lambda connection, stop: connection.sendall(said)) as url, pytest.raises(Retry, match="is unreachable"):
        post(url)


def test_oversized_headers_do_not_prevent_a_success() -> None:
    """The response is read up to the limit, and its status counts."""

    def chatter(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"x" * 30_000) for n in range(3)))
        stop.wait(10)

    with raw(chatter) as url:
        assert post(url) == 200


def test_response_is_not_read_beyond_the_limit() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * (webhook.MOST + 500))
        line, read = webhook._DeadlineSocket(ours, time.monotonic() + 5), 0
        while count := line.readinto(bytearray(1000)):
            read += count
        assert (read, len(ours.recv(1000))) == (webhook.MOST, 500)


def test_status_counts_even_if_the_response_is_incomplete() -> None:
    with raw(lambda connection, stop: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nthan")) as url:
        assert post(url) == 200


def test_timeout_covers_the_whole_exchange() -> None:
    """A receiver that sends one byte at a time is not waited for."""

    def drip(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
        for _ in range(100):
            if stop.wait(0.02):
                return
            connection.sendall(b"x")

    with raw(drip) as url, pytest.raises(Retry, match="TimeoutError"):
        post(url, timeout=0.3)


def test_missing_response_times_out() -> None:
    with raw(lambda connection, stop: stop.wait(10) and None) as url, pytest.raises(Retry, match="TimeoutError"):
        post(url, timeout=0.1)


# ---------------------------------------------------------------- TLS
@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver with a certificate for hooks.example, which this process trusts."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl program here to make a certificate with")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    named = ["-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"]
    made = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        *named,
    ]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    webhook._context.cache_clear()
    with receiving(context) as receiver:
        yield receiver
    webhook._context.cache_clear()


def test_certificate_is_checked_against_the_host_name(secure: Receiver) -> None:
    """It is not checked against the address of the connection."""
    assert post(f"https://hooks.example:{secure.port}/") == 200
    assert secure.heard[0][1]["host"] == f"hooks.example:{secure.port}"
    with pytest.raises(Retry, match="certificate verify failed"):
        post(f"https://evil.example:{secure.port}/")
    assert len(secure.heard) == 1


def test_default_port_is_omitted_from_the_host_header(secure: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    create_connection = socket.create_connection
    monkeypatch.setattr(
        webhook.socket,
        "create_connection",
        lambda address, timeout: create_connection((address[0], secure.port), timeout),
    )
    assert post("https://hooks.example/") == 200
    assert secure.heard[0][1]["host"] == "hooks.example"
