"""Links of a provider never lead into the local network of the studio (SSRF)."""

import asyncio
import socket
from collections.abc import Callable

import httpx
import pytest

from apps.studio.clients.image_links import MAX_REDIRECTS, LinkFetcher, is_public
from apps.studio.clients.openai_images import OpenAIImages
from apps.studio.clients.provider import Link
from apps.studio.errors import PermanentError, TemporaryError
from apps.studio.tests.fake_images_api import FakeImages, Fault, png

PUBLIC = "https://api.openai.com/v1"
FILES = "https://files.example/one.png?sig=secret"
ADDRESS = "93.184.216.34"
NAMES = {
    "files.example": [ADDRESS], "other.example": ["2606:2800:220:1::1"], "inside.example": ["10.0.0.7"],
    "both.example": ["2606:2800:220:1::1", ADDRESS],
    "half.example": [ADDRESS, "127.0.0.1"],
    "metadata.example": ["169.254.169.254"], "scoped.example": ["fe80::1%eth0"], "nowhere.example": [],
}  # fmt: skip


async def resolve(host: str, port: int) -> list[str]:
    del port
    if host not in NAMES:
        raise OSError("no such name")
    return NAMES[host]


def image(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=png("1024x1024"), headers={"Content-Type": "image/png"})


def fetched(
    url: str, answer: Callable[[httpx.Request], httpx.Response] = image, base_url: str = PUBLIC
) -> tuple[bytes, list[httpx.Request]]:
    """The result, and the requests that were sent."""
    sent: list[httpx.Request] = []

    def send(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return answer(request)

    async def asked() -> bytes:
        async with httpx.AsyncClient(transport=httpx.MockTransport(send)) as http:
            return await LinkFetcher(base_url, http, resolve=resolve).fetch(url)

    try:
        return asyncio.run(asked()), sent
    except PermanentError as error:
        error.add_note(f"{len(sent)} sent")
        raise


def test_public_link_is_requested_at_the_checked_address() -> None:
    """The name is not resolved a second time; the certificate is still checked for the name."""
    data, [request] = fetched(FILES)
    assert data == png("1024x1024")
    assert request.url == f"https://{ADDRESS}/one.png?sig=secret"
    assert request.headers["Host"] == "files.example"
    assert request.extensions["sni_hostname"] == "files.example"


def test_ipv6_address_and_port_are_preserved() -> None:
    _, [request] = fetched("https://other.example:8443/one.png")
    assert (request.url.host, request.url.port, request.headers["Host"]) == (
        "2606:2800:220:1::1",
        8443,
        "other.example:8443",
    )


def test_next_address_is_tried_after_an_unreachable_one() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if ":" in request.url.host:
            raise httpx.ConnectError("no route")
        return image(request)

    _, sent = fetched("https://both.example/one.png", answer)
    assert [request.url.host for request in sent] == NAMES["both.example"]
    with pytest.raises(httpx.ConnectError):
        fetched("https://other.example/one.png", answer)


INSIDE = [
    "https://127.0.0.1/x", "https://localhost/x", "https://10.0.0.7/x", "https://192.168.1.1/x",
    "https://169.254.169.254/latest/meta-data", "https://0.0.0.0/x",
    "https://[::1]/x", "https://[::ffff:127.0.0.1]/x", "https://[fd00:ec2::254]/x", "https://[64:ff9b::7f00:1]/x",
    "https://[2002:7f00:1::]/x",
    "https://[fec0::1]/x", "https://[::127.0.0.1]/x", "https://[64:ff9b:1::7f00:1]/x", "https://[::ffff:0:7f00:1]/x",
    "https://[2001:0:4136:e378::1]/x",
    "https://100.64.0.1/x", "https://224.0.0.1/x", "https://inside.example/x", "https://half.example/x",
    "https://metadata.example/x",
    "https://scoped.example/x", "https://nowhere.example/x",
]  # fmt: skip
FOREIGN = [
    "http://files.example/x", "ftp://files.example/x", "file:///etc/passwd", "data:image/png;base64,AAAA",
    "gopher://files.example/x",
    "//files.example/x", "x", "",
]  # fmt: skip


@pytest.fixture(autouse=True)
def localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "localhost", ["127.0.0.1"])


@pytest.mark.parametrize("url", [*INSIDE, *FOREIGN])
def test_public_provider_link_must_be_public_and_use_tls(url: str) -> None:
    with pytest.raises(PermanentError) as caught:
        fetched(url)
    assert caught.value.__notes__ == ["0 sent"]


@pytest.mark.parametrize("url", [*INSIDE, *FOREIGN[:5]])
def test_redirects_are_checked_like_links(url: str) -> None:
    with pytest.raises(PermanentError) as caught:
        fetched(FILES, lambda _: httpx.Response(302, headers={"Location": url}))
    assert caught.value.__notes__ == ["1 sent"]


@pytest.mark.parametrize(
    "url", ["https://[::1", "https://files.example:port/x", "https://files.example/\x00", "https://" + "a" * 70_000]
)
def test_invalid_link_is_a_permanent_error(url: str) -> None:
    with pytest.raises(PermanentError):
        fetched(url)
    # A redirect to an invalid address is an invalid response.
    with pytest.raises((PermanentError, httpx.RemoteProtocolError)):
        fetched(FILES, lambda _: httpx.Response(302, headers={"Location": url}))


def test_numeric_host_names_are_checked_after_resolution() -> None:
    """Decimal, octal and short forms of 127.0.0.1 are resolved like names."""

    async def asked(host: str) -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(image)) as http:
            await LinkFetcher(PUBLIC, http).fetch(f"https://{host}/x")

    for host in ("2130706433", "0177.0.0.1", "127.1", "0x7f.0.0.1"):
        with pytest.raises((PermanentError, TemporaryError)):
            asyncio.run(asked(host))


def test_unresolvable_name_is_a_temporary_error() -> None:
    with pytest.raises(TemporaryError, match=r"unknown\.example"):
        fetched("https://unknown.example/x")


def test_relative_redirect_keeps_the_host_name() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return (
            image(request) if request.url.path == "/two.png" else httpx.Response(307, headers={"Location": "/two.png"})
        )

    _, sent = fetched(FILES, answer)
    assert [(request.headers["Host"], request.url.path) for request in sent] == [
        ("files.example", "/one.png"),
        ("files.example", "/two.png"),
    ]


def test_endless_redirects_are_a_permanent_error() -> None:
    with pytest.raises(PermanentError, match="redirects") as caught:
        fetched(FILES, lambda _: httpx.Response(302, headers={"Location": FILES}))
    assert caught.value.__notes__ == [f"{MAX_REDIRECTS + 1} sent"]


@pytest.mark.parametrize(
    "base_url", ["http://127.0.0.1:9000/v1", "http://images:9000/v1", "https://images.internal/v1"]
)
def test_local_provider_may_link_into_the_local_network(base_url: str) -> None:
    _, [request] = fetched("https://10.0.0.7/one.png", base_url=base_url)
    assert request.url == "https://10.0.0.7/one.png"


def test_tls_provider_may_not_link_to_http() -> None:
    with pytest.raises(PermanentError):
        fetched("http://10.0.0.7/one.png", base_url="https://images.internal/v1")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:image/png;base64,AAAA"])
def test_redirect_to_another_scheme_is_refused_over_real_http(images: FakeImages, location: str) -> None:
    async def asked() -> bytes:
        provider = OpenAIImages(images.url, images.api_key, None)
        async with provider.open():
            return await provider.fetch(Link(images.put(png("1024x1024"))))

    images.fail_links(Fault.redirected(location))
    with pytest.raises(PermanentError, match=r"image link (uses|leads to)|not a valid address"):
        asyncio.run(asked())


def test_public_provider_link_never_reaches_this_machine_over_real_http(images: FakeImages) -> None:
    async def asked() -> bytes:
        provider = OpenAIImages(PUBLIC, images.api_key, None)
        async with provider.open():
            return await provider.fetch(Link(images.put(png("1024x1024")).replace("http:", "https:")))

    with pytest.raises(PermanentError, match="not on the public internet"):
        asyncio.run(asked())
    assert images.headers == []


PROXIES = "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_links_do_not_use_a_proxy(images: FakeImages, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """A proxy would resolve the name itself."""

    async def asked() -> bytes:
        provider = OpenAIImages(images.url, images.api_key, None, timeout=5.0)
        async with provider.open():
            return await provider.fetch(Link(images.put(png("1024x1024")).replace("http:", f"{scheme}:")))

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        for name in (*PROXIES, "NO_PROXY"):
            monkeypatch.delenv(name.lower(), raising=False)
            monkeypatch.delenv(name, raising=False)
        for name in PROXIES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        if scheme == "http":
            assert asyncio.run(asked()) == png("1024x1024")
        else:
            # The fake has no TLS; the attempt is enough.
            with pytest.raises(TemporaryError, match="ConnectError"):
                asyncio.run(asked())
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("64:ff9b::808:808", True),
        ("::ffff:8.8.8.8", True),
        ("172.16.0.1", False),
        ("ff02::1", False),
        ("ff0e::1", False),
        ("fec0::1", False),
        ("::8.8.8.8", False),
        ("::ffff:0:808:808", False),
        ("64:ff9b:1::808:808", False),
        ("64:ff9b::a00:7", False),
        ("2002:808:808::1", False),
        ("2002:7f00:1::", False),
        ("2001:0:808:808::1", False),
        ("5f00::1", False),
        ("2001:db8::1", False),
    ],
)
def test_only_public_addresses_are_recognized_as_public(address: str, public: bool) -> None:
    assert is_public(address) is public
