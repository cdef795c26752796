"""The HTTP endpoint of a worker: which pages it serves, and what it refuses."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

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


def test_unknown_host_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be served at no host, port 0: "):
        Endpoint(Address("no host", 0), {"/metrics": probe("ready", list)})


def test_ipv6_addresses_are_served() -> None:
    with closing(Endpoint(Address("::1", 0), {"/readyz": probe("ready", list)})) as endpoint:
        assert ask(f"http://[::1]:{endpoint.address.port}/readyz")[0] == 200
        assert endpoint.address.url == f"http://[::1]:{endpoint.address.port}"


def _serve(addresses: Addresses, stack: ExitStack) -> Served:
    page, _ = metrics_page(Events())
    served = serve(addresses, page, lambda: Health(["frozen"], ["frozen", "stopping"]))
    stack.callback(served.close)
    return served


def test_metrics_and_health_share_a_server_if_their_addresses_are_equal() -> None:
    """Otherwise each has its own."""
    with ExitStack() as stack:
        one = _serve(Addresses(metrics=FREE, health=FREE), stack)
        two = _serve(Addresses(metrics=FREE, health=Address("localhost", 0)), stack)
        only = _serve(Addresses(health=FREE), stack)
        assert {name: [ask(str(served.urls[name]))[0] for served in (one, two)] for name in one.urls} == {
            "metrics": [200, 200],
            "healthz": [503, 503],
            "readyz": [503, 503],
        }
        assert (len(_ports(one.urls)), len(_ports(two.urls)), set(only.urls)) == (1, 2, {"healthz", "readyz"})
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
