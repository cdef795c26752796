"""The HTTP endpoint of a worker: which pages it serves, and what it refuses."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from interlock.cli.worker_pages import Addresses, Served, serve
from interlock.errors import UsageError
from interlock.telemetry import endpoint as endpoints
from interlock.telemetry.endpoint import LARGEST_REQUEST, Address, Endpoint, probe
from interlock.telemetry.events import Claimed, Events
from interlock.telemetry.metrics import metrics_page
from interlock.worker.health import Health
from tests.loops.event_examples import WORKER

FREE = Address("127.0.0.1", 0)


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def endpoint(problems: list[str]) -> Iterator[Endpoint]:
    """An endpoint whose only page is /readyz."""
    endpoint = Endpoint(FREE, {"/readyz": probe("ready", lambda: problems)})
    yield endpoint
    endpoint.close()


def ask(url: str, method: str = "GET") -> tuple[int, str]:
    """Return the status and the body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def talk(address: Address, sent: bytes) -> bytes:
    """Send some bytes, and return everything that the endpoint sends until it closes the connection."""
    received = b""
    with socket.create_connection((address.host, address.port), 30) as connection:
        connection.sendall(sent)
        while part := connection.recv(4096):
            received += part
    return received


# ---------------------------------------------------------------- pages
def test_probe_says_what_is_wrong(endpoint: Endpoint, problems: list[str]) -> None:
    """200 if nothing is; otherwise 503, and a sentence for each problem."""
    url = f"{endpoint.address.url}/readyz"
    assert ask(url) == (200, '{"status": "ready", "problems": []}\n')
    problems += ["The database is unreachable.", "The worker is stopping."]
    code, body = ask(url)
    assert (code, json.loads(body)) == (503, {"status": "not ready", "problems": problems})
    assert ask(url, "HEAD") == (503, "")


def test_unknown_page_and_method_are_refused(endpoint: Endpoint) -> None:
    """The answer names the pages."""
    assert ask(f"{endpoint.address.url}/ready") == (404, "There is no such page here. The pages are: /readyz.\n")
    assert ask(f"{endpoint.address.url}/readyz", "POST") == (405, "Use GET.\n")
    assert ask(f"{endpoint.address.url}/readyz?verbose=1")[0] == 200


def test_metrics_are_served_until_the_endpoint_is_closed() -> None:
    events = Events()
    page, stop = metrics_page(events, states=lambda: {"paint": {"PENDING": 6}})
    endpoint = Endpoint(FREE, {"/metrics": page})
    events.emit(Claimed(WORKER, 4, 0.002))
    _, text = ask(f"{endpoint.address.url}/metrics")
    assert "interlock_claimed_jobs_total 4.0" in text
    assert 'interlock_jobs{lifecycle="paint",state="PENDING"} 6.0' in text
    endpoint.close()
    stop()
    assert not events.active
    with socket.socket() as other:
        assert other.connect_ex((endpoint.address.host, endpoint.address.port)) != 0


# ---------------------------------------------------------------- addresses
def test_address_in_use_is_refused_with_a_hint(endpoint: Endpoint) -> None:
    port = endpoint.address.port
    with pytest.raises(UsageError, match=rf"^/metrics cannot be served at 127.0.0.1, port {port}: .*Use another port"):
        Endpoint(Address("127.0.0.1", port), {"/metrics": probe("ready", list)})


@pytest.mark.parametrize("host", ["no host", "256.1.1.1", f"{'a' * 64}.example"])
def test_unknown_host_is_refused(host: str) -> None:
    """Another port would not help."""
    with pytest.raises(UsageError, match=rf"at {host}, port 0: the host is unknown \(.*\)\. Use an address") as refused:
        Endpoint(Address(host, 0), {"/metrics": probe("ready", list)})
    assert "Use another port" not in str(refused.value)


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"at 192.0.2.1, port 0: .*requested address\. Use another address\.$"):
        Endpoint(Address("192.0.2.1", 0), {"/metrics": probe("ready", list)})


def test_endpoint_opens_without_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of this machine is not needed, and a broken DNS server would delay the start for minutes."""

    def hang(name: str = "") -> str:
        raise AssertionError(f"asked for the name of {name}")

    monkeypatch.setattr(socket, "getfqdn", hang)
    with closing(Endpoint(FREE, {"/readyz": probe("ready", list)})) as endpoint:
        assert ask(f"{endpoint.address.url}/readyz")[0] == 200


def test_ipv6_addresses_are_served() -> None:
    with closing(Endpoint(Address("::1", 0), {"/readyz": probe("ready", list)})) as endpoint:
        assert ask(f"http://[::1]:{endpoint.address.port}/readyz")[0] == 200
        assert endpoint.address.url == f"http://[::1]:{endpoint.address.port}"


def _serve(addresses: Addresses, stack: ExitStack) -> Served:
    page, _ = metrics_page(Events())
    served = serve(addresses, page, lambda: Health(["frozen"], ["frozen", "stopping"]))
    stack.callback(served.close)
    return served


def test_metrics_and_health_share_a_server_if_their_addresses_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are resolved first. Otherwise each has its own."""
    find = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **how: find("127.0.0.1" if host == "shop" else host, *args, **how)
    )
    with ExitStack() as stack:
        one = _serve(Addresses(metrics=FREE, health=FREE), stack)
        named = _serve(Addresses(metrics=FREE, health=Address("shop", 0)), stack)
        two = _serve(Addresses(metrics=FREE, health=Address("127.0.0.2", 0)), stack)
        only = _serve(Addresses(health=FREE), stack)
        assert {name: [ask(str(served.urls[name]))[0] for served in (one, named, two)] for name in one.urls} == {
            "metrics": [200] * 3,
            "healthz": [503] * 3,
            "readyz": [503] * 3,
        }
        assert [len(_ports(served.urls)) for served in (one, named, two)] == [1, 1, 2]
        assert set(only.urls) == {"healthz", "readyz"}
        problems = {name: json.loads(ask(str(only.urls[name]))[1])["problems"] for name in only.urls}
        assert problems == {"healthz": ["frozen"], "readyz": ["frozen", "stopping"]}


def _ports(urls: Mapping[str, Any]) -> set[str]:
    return {str(url).split(":")[2].partition("/")[0] for url in urls.values()}


# ---------------------------------------------------------------- limits
def test_client_that_sends_its_request_too_slowly_is_disconnected(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are answered meanwhile. Each byte in time does not help: the limit is for the whole request."""
    monkeypatch.setattr(endpoints, "REQUEST_TIMEOUT", 0.3)
    with socket.create_connection((endpoint.address.host, endpoint.address.port), 30) as slow:
        slow.sendall(b"GET /readyz HTTP/1.0\r\n")
        assert ask(f"{endpoint.address.url}/readyz")[0] == 200
        sent = 0
        slow.settimeout(0.05)
        while True:
            try:
                slow.sendall(b"x")
                sent += 1
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                assert sent < 600
            except OSError:
                break
    assert ask(f"{endpoint.address.url}/readyz")[0] == 200


def test_request_that_is_too_large_is_refused(endpoint: Endpoint) -> None:
    """The endpoint does not read on until memory runs out."""
    head = b"GET /readyz HTTP/1.0\r\n"
    assert talk(endpoint.address, head + b"A: " + b"a" * LARGEST_REQUEST).startswith(b"HTTP/1.0 431 ")
    assert talk(endpoint.address, head + b"A: " + b"a" * 1000 + b"\r\n\r\n").startswith(b"HTTP/1.0 200 ")


def test_client_that_sends_nothing_is_disconnected(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "REQUEST_TIMEOUT", 0.3)
    with socket.create_connection((endpoint.address.host, endpoint.address.port), 10) as silent:
        assert silent.recv(1) == b""


LARGE = b"x" * (32 << 20)
"""A page that no buffers of sockets can hold."""


@pytest.fixture
def large() -> Iterator[Endpoint]:
    def page(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", [])
        return [LARGE]

    endpoint = Endpoint(FREE, {"/large": page})
    yield endpoint
    endpoint.close()


def test_client_that_does_not_read_its_answer_is_disconnected(large: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "REQUEST_TIMEOUT", 0.3)
    with socket.create_connection((large.address.host, large.address.port), 10) as slow:
        slow.sendall(b"GET /large HTTP/1.0\r\n\r\n")
        first = slow.recv(1)
        end = time.monotonic() + 10
        while _serving():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert len(first + _read(slow)) < len(LARGE)


def test_client_has_the_same_time_again_to_read_its_answer(large: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after it has sent its request slowly."""
    monkeypatch.setattr(endpoints, "REQUEST_TIMEOUT", 3.0)
    with socket.create_connection((large.address.host, large.address.port), 10) as slow:
        slow.sendall(b"GET /large HTTP/1.0\r\n")
        time.sleep(2)
        slow.sendall(b"Accept: */*\r\n")
        time.sleep(0.1)
        slow.sendall(b"\r\n")
        time.sleep(1.9)
        assert len(_read(slow)) > len(LARGE)


def _serving() -> list[str]:
    """The threads that serve connections."""
    return [thread.name for thread in threading.enumerate() if "process_request_thread" in thread.name]


def _read(connection: socket.socket) -> bytes:
    """Return everything up to the end, or until the other side gives up."""
    received: list[bytes] = []
    try:
        while part := connection.recv(1 << 20):
            received.append(part)
    except ConnectionError:
        pass
    return b"".join(received)


def test_connections_above_the_limit_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no client makes the worker open threads without end. Others are served when one has ended."""
    monkeypatch.setattr(endpoints, "MOST_CONNECTIONS", 3)
    with closing(Endpoint(FREE, {"/readyz": probe("ready", list)})) as endpoint, ExitStack() as stack:
        where = (endpoint.address.host, endpoint.address.port)
        idle = [stack.enter_context(socket.create_connection(where, 10)) for _ in range(3)]
        with socket.create_connection(where, 2) as fourth:
            assert _read(fourth) == b""
        idle[0].close()
        while len(_serving()) > 2:
            time.sleep(0.01)
        assert ask(f"{endpoint.address.url}/readyz")[0] == 200


def test_many_connections_can_wait_to_be_accepted() -> None:
    """A probe is not delayed for seconds because many clients connect at the same moment."""
    with ExitStack() as stack:
        server = endpoints.open_server(FREE)
        stack.callback(server.server_close)
        for _ in range(64):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 0.9))
