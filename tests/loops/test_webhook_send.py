"""Messages are posted to the very addresses that were checked, and the answer says what becomes of them."""

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
    """A receiver on loopback, and what it has heard."""

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
            """Not on the screen."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A sender that hangs up is what some tests are about."""

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
    """A receiver that reads a request and then says what it likes, until it is told to stop."""
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


# ---------------------------------------------------------------- what is sent
def test_a_message_arrives_as_it_was_signed(receiver: Receiver) -> None:
    assert post(receiver.url) == 200
    [(path, headers, body)] = receiver.heard
    assert path == "/jobs?from=us"
    assert headers["host"] == f"hooks.example:{receiver.port}"
    assert headers["content-type"] == "application/json"
    assert webhook.verify([SECRET], headers, body, now=1_700_000_010)


def test_the_system_finds_the_address_of_a_host(receiver: Receiver) -> None:
    assert webhook.send(f"http://localhost:{receiver.port}", BODY, SIGNED, timeout=5, allow_private=True) == 200
    assert receiver.heard[0][0] == "/"


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://[::1]:81/", "[::1]:81"), ("https://a.example/", "a.example"), ("http://a.example:80/", "a.example")],
)
def test_the_host_is_named_as_http_has_it(url: str, host: str) -> None:
    assert webhook._target(url).named == host


# ---------------------------------------------------------------- where it is sent
@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::ffff:127.0.0.1"], ["10.1.2.3"], ["169.254.169.254"], ["::1"], ["8.8.8.8", "127.0.0.1"]],
)
def test_a_host_that_leads_to_an_address_that_is_not_public_is_refused(
    receiver: Receiver, addresses: list[str]
) -> None:
    """Even if another address of it is public: nothing is sent."""
    with pytest.raises(Fail, match="which is not public"):
        post(receiver.url, allow_private=False, resolve=leads_to(*addresses))
    assert not receiver.heard


def test_an_address_in_the_url_is_checked_too(receiver: Receiver) -> None:
    """However it is written."""
    for host in ("127.0.0.1", "2130706433", "0x7f.1", "localhost"):
        with pytest.raises(Fail, match="which is not public"):
            webhook.send(f"http://{host}:{receiver.port}/", BODY, SIGNED, timeout=5, allow_private=False)
    assert not receiver.heard


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads elsewhere a moment later leads nobody astray: it is asked for once."""
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


def test_the_next_address_is_tried_where_one_does_not_answer(receiver: Receiver) -> None:
    assert post(receiver.url, resolve=leads_to("127.0.0.2", "127.0.0.1")) == 200


@pytest.mark.parametrize("url", ["ftp://a.example/", "https://user:pw@a.example/", "https://a.example:x/", "nonsense"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(Fail, match="The webhook's URL"):
        post(url)


# ---------------------------------------------------------------- what is answered
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_good_status_is_success(receiver: Receiver, status: int) -> None:
    receiver.status = status
    assert post(receiver.url) == status


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
def test_a_receiver_that_refuses_is_not_asked_again(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with pytest.raises(Fail, match=f"status {status}"):
        post(receiver.url)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 304])
def test_a_receiver_in_trouble_is_asked_again(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with pytest.raises(Retry, match=f"status {status}") as caught:
        post(receiver.url)
    assert caught.value.after is None


@pytest.mark.parametrize(("said", "after"), [("17", 17), ("0", None)])
def test_a_receiver_says_when_to_ask_again_and_cannot_have_it_at_once(
    receiver: Receiver, said: str, after: float | None
) -> None:
    receiver.status, receiver.answer = 429, {"Retry-After": said}
    with pytest.raises(Retry) as caught:
        post(receiver.url)
    assert caught.value.after == after


def test_no_redirect_is_followed(receiver: Receiver) -> None:
    receiver.status, receiver.answer = 307, {"Location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    with pytest.raises(Retry, match="redirects are not followed"):
        post(receiver.url)
    assert len(receiver.heard) == 1


# ---------------------------------------------------------------- trouble on the way
def test_a_host_that_is_not_there_is_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Retry, match="is unreachable: ConnectionRefusedError"):
        post(f"http://hooks.example:{port}/")
    with pytest.raises(Retry, match="the host has no address"):
        post("http://hooks.example/", resolve=leads_to())


def test_a_name_that_is_not_found_is_asked_again() -> None:
    def nowhere(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(Retry, match="was not found"):
        post("http://hooks.example/", resolve=nowhere)
    with pytest.raises(Fail, match="not a valid host name"):
        post(f"http://{'a' * 70}.example/", resolve=webhook.resolve)


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 two hundred\r\n\r\n"])
def test_an_answer_that_is_not_http_is_asked_for_again(said: bytes) -> None:
    with raw(lambda connection, stop: connection.sendall(said)) as url, pytest.raises(Retry, match="is unreachable"):
        post(url)


def test_an_answer_is_not_read_beyond_its_bound() -> None:
    """Its headers neither: they are cut off, and the status holds."""

    def chatter(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"x" * 30_000) for n in range(3)))
        stop.wait(10)

    with raw(chatter) as url:
        assert post(url) == 200


def test_no_byte_is_read_beyond_the_bound() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * (webhook.MOST + 500))
        line, read = webhook._DeadlineSocket(ours, time.monotonic() + 5), 0
        while count := line.readinto(bytearray(1000)):
            read += count
        assert (read, len(ours.recv(1000))) == (webhook.MOST, 500)


def test_a_status_holds_though_the_rest_of_the_answer_does_not_come() -> None:
    with raw(lambda connection, stop: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nthan")) as url:
        assert post(url) == 200


def test_the_timeout_is_for_the_whole_exchange() -> None:
    """A receiver that says one letter at a time holds nobody up."""

    def drip(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
        for _ in range(100):
            if stop.wait(0.02):
                return
            connection.sendall(b"x")

    with raw(drip) as url, pytest.raises(Retry, match="TimeoutError"):
        post(url, timeout=0.3)


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
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


def test_the_certificate_is_checked_against_the_hosts_name(secure: Receiver) -> None:
    """Not against the address that is connected to."""
    assert post(f"https://hooks.example:{secure.port}/") == 200
    assert secure.heard[0][1]["host"] == f"hooks.example:{secure.port}"
    with pytest.raises(Retry, match="certificate verify failed"):
        post(f"https://evil.example:{secure.port}/")
    assert len(secure.heard) == 1


def test_default_port_is_omitted(secure: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    create_connection = socket.create_connection
    monkeypatch.setattr(
        webhook.socket,
        "create_connection",
        lambda address, timeout: create_connection((address[0], secure.port), timeout),
    )
    assert post("https://hooks.example/") == 200
    assert secure.heard[0][1]["host"] == "hooks.example"
